"""Comparison of the fleet with its declared state and with itself; changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.api.fleets import LoadedFleet, look
from provision.api.source import Limits
from provision.drift import drift_report, drift_text
from provision.drift.drift_report import DriftReport, Finding
from provision.drift.drifts import Drift
from provision.drift.formats import json
from provision.errors import ExitCode
from provision.events import OnEvent, RunBegan, ignore
from provision.remote.reach.observe import Observation
from provision.runs import store
from provision.runs.store import RunFolder


@dataclass(frozen=True)
class DriftResult:
    """How nodes differ from their declared state and each other, and whether their validation holds."""

    report: DriftReport = field(repr=False)

    @property
    def findings(self) -> list[Finding]:
        """Return all findings with secrets masked, the most severe kind first."""
        return self.report.findings

    def document(self) -> dict[str, Any]:
        """Return the document of `gpuprov drift --json` (data/schemas/drift.schema.json), secrets masked."""
        return json.document(self.report)


def drift(
    loaded: LoadedFleet,
    *,
    limits: Limits | None = None,
    compare: bool = True,
    require_validated: bool = False,
    arguments: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore,
) -> DriftResult:
    """Compare the nodes with their declared state and, with `compare`, with each other.

    Answers are written to a run folder as they arrive; `arguments` are recorded there. `require_validated`: a
    node without a current pass is an error or a warning instead of a note. Raises GpuprovError; errors of a
    single node are in the result."""
    folder = RunFolder.create("drift", dict(arguments or {}))
    on_event(RunBegan(folder.path))
    try:
        with _Seen(folder) as kept:
            also, also_of = drift_report.FACTS, drift_report.FACTS_OF
            seen = look(loaded, limits, on_event, also=also, also_of=also_of, on_judged=kept.keep)
        report = drift_report.make(
            seen, compare=compare, required=require_validated, run_folder=str(folder.path)
        )
    except BaseException as error:
        folder.finish(int(getattr(error, "exit_code", ExitCode.INTERRUPTED)))
        raise
    _keep(folder, report)
    folder.finish(report.code)
    return DriftResult(report)


class _Seen(contextlib.ExitStack):
    """Writer of observations and findings as they arrive, so that an interrupted run keeps them."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self._facts, self._drifts = map(self.push, (folder.lines("facts"), folder.lines("drifts")))

    def keep(self, said: Observation, found: Sequence[Drift], secrets: Collection[str]) -> None:
        facts = {"facts": said.facts, "problems": said.problems, "error": said.error}
        record = drift_text.without({"node": said.node, **facts}, secrets)
        self._facts.append([store.without_secrets(record)])
        self._drifts.append([store.without_secrets(drift_text.record(drift, secrets)) for drift in found])


def _keep(folder: RunFolder, report: DriftReport) -> None:
    """Record outliers and ties of the fleet, one per line, for later readers of the run."""
    secrets = report.seen.secrets
    odd = report.odd
    for one in [*map(dataclasses.asdict, odd.outliers), *map(dataclasses.asdict, odd.ties)] if odd else ():
        folder.append("majority", drift_text.without(one, secrets))
