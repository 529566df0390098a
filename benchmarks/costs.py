"""The cost of a command: the controller (its whole process tree) and the nodes it contacts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nodes import FailedError as FailedError
from benchmarks.nodes import Nodes

ROOT = Path(__file__).resolve().parent.parent
TREE_COST = Path(__file__).with_name("tree_cost.py")


def gpuprov(*words: str) -> list[str]:
    """Return the command line of this checkout's gpuprov."""
    return [sys.executable, "-m", "provision.cli", *words]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment that this checkout's gpuprov needs in addition to the current one.
    Runs and state lie below `folder`; programs next to this Python are in PATH."""
    return {
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "GPUPROV_RUNS": str(folder / "runs"),
        "XDG_STATE_HOME": str(folder / "state"),
    }


@dataclass(frozen=True)
class Cost:
    """The cost of one command: CPU of controller and nodes and wall time in seconds, and its result.
    `memory`: of its largest process in MB; `trouble`: standard error."""

    controller: float
    node: float
    wall: float
    memory: float
    code: int
    output: str
    trouble: str

    @property
    def last_words(self) -> str:
        """The last line of standard error, or of standard output when no error was written."""
        written = (self.trouble.strip() or self.output.strip()).splitlines()
        return written[-1][:300] if written else "it wrote nothing"


def cost_of(
    command: Sequence[str | Path],
    *,
    nodes: Nodes | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 600,
) -> Cost:
    """Run `command` in `folder` and measure it. The caller interprets the exit status.
    Raises FailedError when the command is still running after `timeout` seconds."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-cost-") as place:
        answer, output_path, error_path = (Path(place, name) for name in ("answer", "output", "trouble"))
        if nodes:  # a session of the previous command may still be open
            _settled(nodes)
        before = nodes.cpu() if nodes else 0.0
        with output_path.open("wb") as output, error_path.open("wb") as trouble:
            subprocess.run(
                [sys.executable, "-I", "-S", TREE_COST, answer, str(timeout), *command],
                stdout=output,
                stderr=trouble,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                timeout=timeout + 30,
                check=True,
            )
        if nodes:
            _settled(nodes)
        spent = (nodes.cpu() if nodes else 0.0) - before
        found = json.loads(answer.read_text())
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (output_path, error_path)]
    if found["code"] == 124:
        raise FailedError(f"{command[0]} was not done after {timeout:.0f} s: {texts[1][-300:]}")
    return Cost(found["cpu"], spent, found["wall"], found["rss"], found["code"], *texts)


def _settled(nodes: Nodes) -> None:
    """Wait until every sshd has reaped its sessions, which only then add to its CPU."""
    deadline = time.monotonic() + 20
    while nodes.busy() and time.monotonic() < deadline:
        time.sleep(0.05)
