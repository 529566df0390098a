"""Runner of the host's own programs; a failure becomes a LabError that quotes the program's output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from provision.errors import LabError

# An administrator's PATH: on Debian an ordinary shell lacks the sbin folders.
PATH = os.pathsep.join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for the host's programs: English output, sbin on PATH."""
    return {**os.environ, "PATH": PATH, "LC_ALL": "C.UTF-8", **(extra or {})}


def attempt(
    *argv: str | Path,
    timeout: float = 60,
    stdin: str | None = None,
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` and return the completed process whatever its exit status; `timeout` in seconds."""
    words = [str(word) for word in argv]
    try:
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment(extra),
            start_new_session=True,  # so that `_end` reaches its children as well
        ) as child:
            try:
                output, complaint = child.communicate(stdin, timeout=timeout)
            except BaseException:
                _end(child)
                raise
        return subprocess.CompletedProcess(words, child.returncode, output, complaint)
    except subprocess.TimeoutExpired as late:
        raise LabError(
            f"`{' '.join(words)}` did not end within {timeout:.0f} s", "is the host overloaded?"
        ) from late
    except FileNotFoundError as missing:
        raise LabError(
            f"this host has no {words[0]}", "run `gpuprov lab up` as root: it installs it"
        ) from missing


def _end(child: subprocess.Popen[str]) -> None:
    """Send TERM, then KILL, to a program and its children, so that mmdebstrap and apt-get can clean up."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=15)
            return


def call(
    *argv: str | Path,
    timeout: float = 60,
    stdin: str | None = None,
    extra: Mapping[str, str] | None = None,
    fix: str = "",
) -> str:
    """Run `argv` and return its standard output. Raises LabError with the end of its errors on failure."""
    done = attempt(*argv, timeout=timeout, stdin=stdin, extra=extra)
    if done.returncode != 0:
        message = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise LabError(f"`{' '.join(done.args)}` failed with status {done.returncode}: {message}", fix)
    return done.stdout


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Lock `path` against other gpuprov processes; the kernel releases it even after a kill.

    Raises LabError at once when another process holds it: two builders would corrupt the lab.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as busy:
            raise LabError(f"another gpuprov is working on {what}", "wait for it, or stop it") from busy
        yield


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Lock `path`, waiting for its holder (if the holder's result serves this process, too)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
