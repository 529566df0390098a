"""Runs `gpuprov burnin` as operators do, on a machine that may die at any moment: for tests on lab nodes."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from provision.errors import ExitCode
from tests.lab.gpuprov_up import ROOT

LOOK_AND_BURN = """\
summary: a look and a burn, for tools that are simulated
minutes: 30
sample_seconds: 60
space_mib: 64
ramp_steps: 1
abort: {gpu_celsius: 120, xids: fatal}
segments:
  - {name: look, kind: load, checks: [gpu_inventory], repeat: 1}
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 2, step_minutes: 2}
"""


class Burnins:
    """One inventory, one profile, and the folders of the machines that know of its burn-ins."""

    def __init__(self, inventory: Path, folder: Path, profile: Path) -> None:
        self.inventory, self.folder, self.profile = inventory, folder, profile
        self.program = [sys.executable, "-m", "provision.cli"]

    def _environment(self, runs: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GPUPROV_RUNS": str(self.folder / runs),
            "COLUMNS": "300",
        }

    def call(self, *words: str, runs: str = "runs", timeout: int = 900) -> subprocess.CompletedProcess[str]:
        """One command to its end, on this machine, or with `runs` on another that knows nothing."""
        done = subprocess.run(
            [*self.program, *words],
            env=self._environment(runs), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        print(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}")  # noqa: T201 - pytest shows it on failure
        return done

    def begin(self, *more: str, verb: str = "start") -> subprocess.CompletedProcess[str]:
        """`gpuprov burnin start` (or plan) with the profile, and `more`."""
        return self.call("burnin", verb, str(self.inventory), "--profile", str(self.profile), *more)

    def watching(self, *words: str) -> subprocess.Popen[str]:
        """A command of `gpuprov burnin` that stays: stdout and stderr are one, in a session of its own."""
        return subprocess.Popen(
            [*self.program, "burnin", *words],
            env=self._environment("runs"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def began(self, *more: str) -> subprocess.Popen[str]:
        """A burn-in whose controller stays to watch; it has told all nodes to begin."""
        return self.watching("start", str(self.inventory), "--profile", str(self.profile), *more)

    @property
    def first(self) -> str:
        """The name of the first burn-in of this machine."""
        return min(path.name for path in (self.folder / "runs").glob("*Z-burnin"))

    @property
    def newest(self) -> str:
        """The name of the newest burn-in of this machine."""
        return max(path.name for path in (self.folder / "runs").glob("*Z-burnin"))

    def run(self, name: str) -> Path:
        """The run folder of a burn-in of this machine."""
        return self.folder / "runs" / name


def hear(process: subprocess.Popen[str], words: str) -> None:
    """Read what it prints up to a line with these words."""
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if words in line:
            return
    raise AssertionError(f"it never said {words!r}: {''.join(heard)}")


def kill(process: subprocess.Popen[str]) -> None:
    """End a controller as a power cut would: it, and all it runs."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    assert process.stdout is not None
    process.stdout.close()


def wait_until_over(
    burnins: Burnins, name: str, *more: str, runs: str = "runs", patience: float = 900
) -> None:
    """Ask every now and then until no node burns any more, for `patience` seconds at most."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if burnins.call("burnin", "status", name, *more, runs=runs).returncode == ExitCode.OK:
            return
        time.sleep(4)
    raise AssertionError(f"after {patience:.0f} s {name} is not over")


def seconds_of(text: str) -> float:
    """A moment of a record as seconds since the epoch."""
    when = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC")
    return when.replace(tzinfo=datetime.UTC).timestamp()
