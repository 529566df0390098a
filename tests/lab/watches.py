"""`gpuprov watch` on lab nodes, as an operator runs it: what it prints, and what it keeps."""

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
    """The lab's inventory with spares and Slurm's controller, whose nodes check themselves; written there."""
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
    """The watch's own folders below this one, for this process and those that it starts."""
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
    """The watch at work; `log` gets what it prints. It ends in order, whatever became of the test."""
    with log.open("w") as out:
        process = operator.began("watch", out=out)
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == ExitCode.OK, log.read_text()


def validated(store: Store) -> set[str]:
    """The spares that have passed."""
    return {name for name, one in store.validated().items() if one["verdict"] == "pass"}


def newest(store: Store) -> Incident | None:
    found = store.incidents()
    return found[-1] if found else None


def until(holds: Any, limit: float, what: str, log: Path) -> float:
    """Seconds until it holds; with what the watch printed where that is not within the limit."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit, (
            f"{what}: not within {limit:.0f} s\n{log.read_text()[-4000:]}"
        )
        time.sleep(0.2)
    return time.monotonic() - began
