"""What the watch runs: `gpuprov validate` on a spare, and on a failed node for the evidence.

Each is a process of its own, as a person would start it: with its own run folder, its own locks on the node,
and a deadline after which it is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from provision import paths
from provision.errors import ExitCode
from provision.fleet import Fleet
from provision.text import one_line
from provision.up.watch.incidents import Incident
from provision.up.watch.steps import Checked

EVIDENCE_SECONDS = 300.0
GRACE = 10.0  # seconds between asking a run to end and killing it


class Checking:
    """Runs gpuprov for one fleet. `options`: what this gpuprov itself was given that others need as well
    (vault password files, --set)."""

    def __init__(self, fleet: Fleet, options: Sequence[str], verify_seconds: float, folder: Path) -> None:
        self._place, self._options = fleet.place, tuple(options)
        self._seconds, self._folder = verify_seconds, folder
        self._running: set[subprocess.Popen[str]] = set()
        self._guard = threading.RLock()  # `stop` is called by a signal handler, too
        self._stopped = False

    def verify(self, spare: str) -> Checked:
        """The quick stage of `validate` on a spare."""
        code, said, wrong = self._gpuprov(["validate", "--nodes", spare, "--stage", "quick"], self._seconds)
        run, why = _told(said, spare)
        if code == ExitCode.OK:
            return Checked(True, run=run)
        if self._stopped:
            return Checked(False, "this watch was stopped", again=True)
        if code is None:
            late = f"the check did not end within {self._seconds:g} s"
            return Checked(False, late, run, again=True, elsewhere=True)
        if run and code == ExitCode.UNHEALTHY:
            return Checked(False, why, run)
        # A lock, a full disk, a network that is down: not the spare's fault.
        why = why if run else _error(wrong)
        return Checked(False, why, run, again=True, elsewhere=code == ExitCode.INCOMPLETE)

    def evidence(self, incident: Incident) -> str:
        """Measure the failed node as it is now, and pack what a vendor asks for."""
        words = ["validate", "--nodes", incident.node, "--stage", "quick", "--with-jobs"]
        code, said, wrong = self._gpuprov(words, EVIDENCE_SECONDS)
        run, _ = _told(said, incident.node)
        if not run:
            return "the measurement did not end in time" if code is None else _error(wrong)
        target = self._folder / "bundles"
        with contextlib.suppress(OSError):
            target.mkdir(mode=0o700, exist_ok=True)
        words = ["report", run, "--bundle", incident.node, "--output", str(target)]
        code, _, wrong = self._gpuprov(words, EVIDENCE_SECONDS, of_fleet=False)
        return "" if code == ExitCode.OK else _error(wrong)

    def stop(self) -> None:
        """End what runs."""
        with self._guard:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)

    def _gpuprov(
        self, words: Sequence[str], seconds: float, of_fleet: bool = True
    ) -> tuple[int | None, str, str]:
        """(exit code, or None when it had to be ended; what it printed on each stream)."""
        verb, *rest = words
        more = [self._place, *self._options] if of_fleet else []
        with self._guard:
            if self._stopped:
                return None, "", ""
            try:
                process = subprocess.Popen(
                    [*paths.own_command(), verb, *more, *rest, "--json"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env={**paths.own_environment(), "NO_COLOR": "1"},
                    start_new_session=True,
                )
            except OSError as error:  # no memory or files are left here: not the node's fault
                return ExitCode.ERROR, "", f"gpuprov: no process could be started: {error.strerror}"
            self._running.add(process)
        try:
            said, wrong = process.communicate(timeout=seconds)
            return process.returncode, said, wrong
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return None, *process.communicate(timeout=GRACE)
            _signal(process, signal.SIGKILL)
            return None, *process.communicate()
        finally:
            with self._guard:
                self._running.discard(process)


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _told(said: str, node: str) -> tuple[str, str]:
    """(the run's name, the worst that its report says of the node), or ("", "") where there is no report."""
    try:
        report = json.loads(said)
        (row,) = [one for one in report["nodes"] if one["node"] == node]
        found = [finding for check in row["checks"] for finding in check["findings"]]
        bad = [one for one in found if one["verdict"] in ("fail", "error")]
        first = next((one for one in bad if one["verdict"] == "fail"), bad[0] if bad else None)
        why = f"{first['check']}: {first['message']}" if first else row["error"] or f"it is {row['verdict']}"
        return str(report["run_id"]), one_line(why, 300)
    except (ValueError, KeyError, TypeError):
        return "", ""


def _error(wrong: str) -> str:
    """What a command that was stopped by an error says."""
    lines = [line for line in wrong.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("gpuprov: ")]
    return one_line((named or lines[-1:] or ["it printed nothing"])[0].removeprefix("gpuprov: "), 300)
