"""Runner for `gpuprov burnin` on lab nodes, like an operator on a machine that may die at any time."""

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
    """One inventory, one profile, and the run folders of the machines that control its burn-ins."""

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
        """Run a command to its end, on this machine or, with `runs`, on another without its history."""
        done = subprocess.run(
            [*self.program, *words],
            env=self._environment(runs), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        print(f"$ {' '.join(words)}\n{done.stdout}{done.stderr}")  # noqa: T201 - pytest shows it on failure
        return done

    def begin(self, *more: str, verb: str = "start") -> subprocess.CompletedProcess[str]:
        """Run `gpuprov burnin start` (or plan) with the profile and the arguments `more`."""
        return self.call("burnin", verb, str(self.inventory), "--profile", str(self.profile), *more)

    def watching(self, *words: str) -> subprocess.Popen[str]:
        """Start a `gpuprov burnin` command that stays, in its own session, stdout and stderr merged."""
        return subprocess.Popen(
            [*self.program, "burnin", *words],
            env=self._environment("runs"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def began(self, *more: str) -> subprocess.Popen[str]:
        """Start a burn-in; its controller starts all nodes and stays attached."""
        return self.watching("start", str(self.inventory), "--profile", str(self.profile), *more)

    @property
    def first(self) -> str:
        """Name of this machine's first burn-in."""
        return min(path.name for path in (self.folder / "runs").glob("*Z-burnin"))

    @property
    def newest(self) -> str:
        """Name of this machine's newest burn-in."""
        return max(path.name for path in (self.folder / "runs").glob("*Z-burnin"))

    def run(self, name: str) -> Path:
        """Return the run folder of a burn-in on this machine."""
        return self.folder / "runs" / name


def hear(process: subprocess.Popen[str], words: str) -> None:
    """Read output up to a line that contains these words."""
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if words in line:
            return
    raise AssertionError(f"it never said {words!r}: {''.join(heard)}")


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a controller and all its children, as a power cut would."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    assert process.stdout is not None
    process.stdout.close()


def wait_until_over(
    burnins: Burnins, name: str, *more: str, runs: str = "runs", patience: float = 900
) -> None:
    """Poll until no node runs a burn-in, for at most `patience` seconds."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if burnins.call("burnin", "status", name, *more, runs=runs).returncode == ExitCode.OK:
            return
        time.sleep(4)
    raise AssertionError(f"after {patience:.0f} s {name} is not over")


def seconds_of(text: str) -> float:
    """Convert a timestamp of a record to seconds since the epoch."""
    when = datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC")
    return when.replace(tzinfo=datetime.UTC).timestamp()
