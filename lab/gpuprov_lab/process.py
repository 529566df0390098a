"""Detached processes that outlive `lab up`.
They are identified by pid *and* start time, and terminated before they are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuprov_lab.command import environment


def started_at(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot; None if it has exited or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may contain anything
    return None if fields[0] in "ZX" else int(fields[19])


def start(
    argv: Sequence[str | Path], pidfile: Path, log: Path, user: str | None = None, group: str | None = None
) -> int:
    """Start `argv` in a new session, append its output to `log`, save its pid and return it."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            cwd="/",
            env=environment(),
            user=user,
            group=group,
            extra_groups=[] if user else None,
        )
    pidfile.write_text(json.dumps({"pid": child.pid, "started": started_at(child.pid)}) + "\n")
    _children.append(child)
    return child.pid


# Kept so that a terminated child is reaped and does not count as running.
_children: list[subprocess.Popen[bytes]] = []


def running(pidfile: Path) -> int | None:
    """Return the pid in `pidfile` if that process still runs; a process with a reused pid is ignored."""
    for child in _children:
        child.poll()
    try:
        kept = json.loads(pidfile.read_text())
        pid, started = int(kept["pid"]), kept["started"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return pid if started is not None and started_at(pid) == started else None


def stop(pidfile: Path, grace: float = 20) -> bool:
    """Send TERM to the process of `pidfile`, KILL after `grace` seconds; True if TERM was enough."""
    pid = running(pidfile)
    polite = True
    if pid is not None:
        polite = stop_pids([pid], grace)
    pidfile.unlink(missing_ok=True)
    return polite


def stop_pids(pids: Sequence[int], grace: float) -> bool:
    """Send TERM to all of `pids`, KILL to the rest after `grace` seconds; True if TERM was enough."""
    known = {pid: started_at(pid) for pid in pids}

    def alive() -> list[int]:
        for child in _children:
            child.poll()
        return [pid for pid, started in known.items() if started is not None and started_at(pid) == started]

    for pid in alive():
        _signal(pid, signal.SIGTERM)
    gone = wait_until(lambda: not alive(), grace)
    for pid in alive():
        _signal(pid, signal.SIGKILL)
    wait_until(lambda: not alive(), 5)
    return gone


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.05) -> bool:
    """Poll `condition` until it is true; False if it is still false after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """Yield pid and arguments of every process of this host, except the current one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(folder.name), words


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
