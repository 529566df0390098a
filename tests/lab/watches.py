"""`gpuprov watch` on lab nodes, run as an operator runs it, with its output and its state."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from provision.errors import ExitCode
from provision.up.watch.incidents import Incident, Store
from tests.lab.gpuprov_up import Operator


def declare(inventory: Path, target: Path, spares: list[str], controller: str, **variables: Any) -> Path:
    """Write the lab's inventory with spares and Slurm's controller to `target`; nodes check themselves."""
    declared = yaml.safe_load(inventory.read_text())
    declared["gpuprov_spares"] = {"hosts": {name: {} for name in spares}}
    declared["gpuprov_slurm"] = {"hosts": {controller: {}}}
    declared["gpu_nodes"].setdefault("vars", {}).update(
        node_health_enabled=True, gpuprov_scheduler="slurm", **variables
    )
    target.write_text(yaml.safe_dump(declared))
    return target


@contextlib.contextmanager
def state_home(folder: Path) -> Iterator[None]:
    """Keep the watch's folders below `folder`, for this process and its children."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before


@contextlib.contextmanager
def watching(operator: Operator, log: Path) -> Iterator[Path]:
    """Run the watch with its output in `log`, and stop it with SIGTERM even if the test fails."""
    with log.open("w") as out:
        process = operator.began("watch", out=out)
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == ExitCode.OK, log.read_text()


def validated(store: Store) -> set[str]:
    """Return the spares that passed their check."""
    return {name for name, one in store.validated().items() if one["verdict"] == "pass"}


def newest(store: Store) -> Incident | None:
    found = store.incidents()
    return found[-1] if found else None


def until(holds: Any, limit: float, what: str, log: Path) -> float:
    """Return the seconds until `holds()` is true; after `limit`, fail with the end of the watch's log."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit, (
            f"{what}: not within {limit:.0f} s\n{log.read_text()[-4000:]}"
        )
        time.sleep(0.2)
    return time.monotonic() - began
