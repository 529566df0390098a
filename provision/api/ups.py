"""Installation of the declared stack: planned, confirmed, executed in waves, and verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.api.fleets import LoadedFleet
from provision.events import Confirm, OnEvent, RunBegan, agree, ignore
from provision.fleet import Fleet
from provision.runs.store import RunFolder
from provision.up import resume as resuming
from provision.up.options import UpOptions
from provision.up.result import UpResult
from provision.up.run import UpRun


def up(
    loaded: LoadedFleet,
    options: UpOptions | None = None,
    *,
    resume: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore,
    confirm: Confirm = agree,
) -> UpResult:
    """Bring the nodes to their declared state and observe each again.

    `confirm` is called once with the plan before any change; if it returns False, GpuprovError is raised.
    `resume`: folder or name of an `up` to resume, "" for the last one. `arguments`: recorded in the run
    folder as those of this run, for resumption on the command line.

    An interrupt (Ctrl-C, SIGTERM) ends running work cleanly and is reported in the result; call this in the
    main thread, the only one that gets signals from Python. Raises GpuprovError after recording it in the run
    folder; errors of a single node are in the result."""
    options = options or UpOptions()
    before = resuming.to_go_on_with(str(resume)) if resume is not None else None
    folder = RunFolder.create("up", dict(arguments or {"nodes": loaded.fleet.pattern}))
    folder.note(inventory=loaded.fleet.place, nodes=list(loaded.nodes))
    if before is not None:
        options = replace(options, earlier=resuming.earlier(before))
        folder.note(resumes=str(before.path.absolute()))
    on_event(RunBegan(folder.path))
    return UpRun(loaded.fleet, loaded.overrides, options, folder, _quick, on_event, confirm).run()


def _quick(
    fleet: Fleet, overrides: Mapping[str, Any], nodes: Sequence[str], options: UpOptions, on_event: OnEvent
) -> dict[str, str]:
    from provision.api import health_gate  # imported here, because it imports every check

    return health_gate.quick(fleet, overrides, nodes, options, on_event)
