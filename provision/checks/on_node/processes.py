"""Programs that hang on the node and cannot be killed: known from run to run, and never started once more.

A program that waits in the kernel for a GPU outlives SIGKILL (state D). Each one more would wait beside it,
hold memory and count into the load. So what outlives a run is noted, and while it is there its program is
not started again; once it has ended, the next run starts it as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_GRACE = 2.0  # seconds that killed programs have to end
_MOST = 50  # that are noted


@dataclass(frozen=True)
class Hung:
    """A program that outlived its run. `started`: clock ticks since boot, which with the number makes a
    process one of a kind. `since`: seconds since boot when it was first noted."""

    pid: int
    started: int
    program: str
    since: float


def adopt_children() -> None:
    """Become the parent of what children leave behind, so that `left` finds it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def left(uptime: float, proc: Path = Path("/proc")) -> list[Hung]:
    """Kill what this process's children have left behind, and give what does not end."""
    end = time.monotonic() + _GRACE
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = [one for one in _processes(proc) if one["parent"] == os.getpid() and one["state"] != "Z"]
        if not children or time.monotonic() >= end:
            break
        for one in children:
            with contextlib.suppress(OSError):
                os.kill(one["pid"], signal.SIGKILL)
        time.sleep(0.05)
    return [Hung(one["pid"], one["started"], one["program"], uptime) for one in children][:_MOST]


def named(found: Iterable[Hung], silent: Sequence[str]) -> list[Hung]:
    """What was left, each as the program that was started: `silent` are those that did not end in time. A
    script runs under the name of its interpreter, and what it started under another."""
    return [one if one.program in silent or not silent else replace(one, program=silent[0]) for one in found]


def still(known: Iterable[Hung], proc: Path = Path("/proc")) -> list[Hung]:
    """Those that have not ended since they were noted."""
    return [one for one in known if _is(one, _stat(proc, one.pid))]


def _is(one: Hung, found: Mapping[str, Any] | None) -> bool:
    return found is not None and found["started"] == one.started and found["state"] not in ("Z", "X")


def _processes(proc: Path) -> list[Mapping[str, Any]]:
    found = (_stat(proc, int(entry.name)) for entry in proc.iterdir() if entry.name.isdecimal())
    return [one for one in found if one is not None]


def _stat(proc: Path, pid: int) -> Mapping[str, Any] | None:
    """From /proc/PID/stat, `4711 (nvidia-smi) D 1 …`; None when there is no such process. Its command line
    is not read: that waits for the memory lock of the process, which a hung one may hold for ever."""
    try:
        text = (proc / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    program = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return {
        "pid": pid,
        "program": program,
        "state": fields[0],
        "parent": int(fields[1]),
        "started": int(fields[19]),
    }
