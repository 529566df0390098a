"""Jobs in separate processes with deadlines, with which a program that runs for months measures nodes.

docs/architecture.md explains why they are not threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from provision import bug_file, paths
from provision.errors import ExitCode, GpuprovError
from provision.remote.ansible.runner import ended_as_interrupted

GRACE = 10.0  # seconds between a job's termination request and its kill


class Job(Protocol):
    """Work for a separate process; must be picklable."""

    def run(self) -> Mapping[str, Any]:
        """Do the work and return JSON data. Termination raises KeyboardInterrupt."""


@dataclass(frozen=True)
class Done:
    """The outcome of a job: its result in `found`, or None with an `error` and its exit `code`.
    `late`: the job was ended at its deadline, and its result may be partial."""

    found: Mapping[str, Any] | None = None
    error: str = ""
    code: int = ExitCode.ERROR
    late: bool = False


def command() -> list[str]:
    """Return the command of this module's program; nothing is imported from the current folder."""
    return paths.own_command("provision.api.apart")


class Apart:
    """Runner of jobs from several threads, until it is stopped; `program`: command that runs one job."""

    def __init__(self, program: Sequence[str] = ()) -> None:
        self.stopped = False
        self._program = list(program) or command()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.RLock()  # re-entrant, because a signal handler may call `stop`

    def run(self, job: Job, seconds: float) -> Done:
        """Run a job, and end it after `seconds`."""
        with self._guard:
            if self.stopped:
                return Done(late=True)
            try:
                process = subprocess.Popen(
                    self._program,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=paths.own_environment(),
                    start_new_session=True,
                )
            except OSError as error:  # this machine has no memory or files left
                return Done(error=f"no process could be started: {error.strerror}")
            self._running.add(process)
        try:
            output, late = _communicated(process, pickle.dumps(job), seconds)
        finally:
            with self._guard:
                self._running.discard(process)
        try:
            return Done(**json.loads(output), late=late)
        except (ValueError, TypeError):
            nothing = f"its process ended with status {process.returncode}, and told nothing"
            return Done(error=nothing, late=late)

    def stop(self) -> None:
        """End running jobs cleanly, and start no more."""
        with self._guard:
            self.stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)


def _communicated(process: subprocess.Popen[bytes], job: bytes, seconds: float) -> tuple[bytes, bool]:
    """Return the process's output, and whether it had to be ended."""
    try:
        return process.communicate(job, seconds)[0], False
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=GRACE)[0], True
        _signal(process, signal.SIGKILL)
        return process.communicate()[0], True


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def main() -> None:
    """Run the job on standard input and write its result to standard output, reserved for it."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answer:
        os.dup2(2, 1)
        with os.fdopen(0, "rb", closefd=False) as stdin:
            job: Job = pickle.load(stdin)  # noqa: S301 - from the parent process
        json.dump(_done(job), answer)


def _done(job: Job) -> dict[str, Any]:
    try:
        with ended_as_interrupted():
            return {"found": job.run()}
    except KeyboardInterrupt:
        return {"error": "it was interrupted", "code": ExitCode.INTERRUPTED}
    except Exception as error:
        named = error if isinstance(error, GpuprovError) else bug_file.named(error)
        return {"error": named.what, "code": named.exit_code}


if __name__ == "__main__":
    main()
