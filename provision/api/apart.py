"""Jobs in a process of their own, each with a deadline: how a program that runs for months measures a node.

docs/architecture.md says why they are no threads.
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

GRACE = 10.0  # seconds between asking a job to end and killing it


class Job(Protocol):
    """What is to be done; pickle has to know it."""

    def run(self) -> Mapping[str, Any]:
        """Do it, and return what JSON knows. To be terminated is a KeyboardInterrupt."""


@dataclass(frozen=True)
class Done:
    """`found`: what a job returned; None where it returned nothing, and `error` says why. `code`: that of the
    error. `late`: it had to be ended, and what it found is what it found by then."""

    found: Mapping[str, Any] | None = None
    error: str = ""
    code: int = ExitCode.ERROR
    late: bool = False


def command() -> list[str]:
    """Python, with the program below. Nothing is imported from the current folder."""
    return paths.own_command("provision.api.apart")


class Apart:
    """Runs jobs, from several threads at once, until it is stopped. `program`: what runs them."""

    def __init__(self, program: Sequence[str] = ()) -> None:
        self.stopped = False
        self._program = list(program) or command()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.RLock()  # `stop` is called by a signal handler, too

    def run(self, job: Job, seconds: float) -> Done:
        """Do this job, and end it after so many seconds."""
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
            except OSError as error:  # no memory or files are left here
                return Done(error=f"no process could be started: {error.strerror}")
            self._running.add(process)
        try:
            said, late = _communicated(process, pickle.dumps(job), seconds)
        finally:
            with self._guard:
                self._running.discard(process)
        try:
            return Done(**json.loads(said), late=late)
        except (ValueError, TypeError):
            nothing = f"its process ended with status {process.returncode}, and told nothing"
            return Done(error=nothing, late=late)

    def stop(self) -> None:
        """End what runs, in order, and begin nothing more."""
        with self._guard:
            self.stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)


def _communicated(process: subprocess.Popen[bytes], job: bytes, seconds: float) -> tuple[bytes, bool]:
    """What it printed, and whether it had to be ended."""
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
    """Do the job on standard input, and write what it found on standard output, which is its alone."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as answer:
        os.dup2(2, 1)
        with os.fdopen(0, "rb", closefd=False) as asked:
            job: Job = pickle.load(asked)  # noqa: S301 - of the process that started this one
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
