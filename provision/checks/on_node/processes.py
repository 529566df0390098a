"""Programs that hang on the node, remembered between runs so that they are not started again.

A program that waits in the kernel for a GPU survives SIGKILL (state D). A second one would wait next to it,
use memory and raise the load, so what outlives a run is recorded and not started until it has ended. Its
command line is not read: that takes the process's memory lock, which a hung process may hold for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from provision.node.burnin.processes import all_pids, reap, stat_fields

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_GRACE = 2.0  # seconds for killed programs to end
_MOST = 50  # hung programs recorded


@dataclass(frozen=True)
class Hung:
    """A program that outlived its run."""

    pid: int
    started: int  # clock ticks since boot; with the pid it identifies a process
    program: str
    since: float  # seconds since boot when it was first recorded


def adopt_children() -> None:
    """Become the subreaper of orphaned descendants, so that `left` sees them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def left(uptime: float) -> list[Hung]:
    """Kill the processes that children left behind, and return the ones that survive."""
    end = time.monotonic() + _GRACE
    while True:
        reap()
        children = {pid: status for pid in all_pids() if (status := stat_fields(pid)) and _is_left(status)}
        if not children or time.monotonic() >= end:
            break
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return [Hung(pid, int(fields[19]), name, uptime) for pid, (name, fields) in children.items()][:_MOST]


def _is_left(found: tuple[str, Sequence[str]]) -> bool:
    state, parent = found[1][:2]
    return int(parent) == os.getpid() and state != "Z"


def named(found: Iterable[Hung], silent: Sequence[str]) -> list[Hung]:
    """Name leftovers after the program that timed out; a script runs under its interpreter's name."""
    return [one if one.program in silent or not silent else replace(one, program=silent[0]) for one in found]


def still(known: Iterable[Hung]) -> list[Hung]:
    """Return the programs that still hang."""
    return [one for one in known if _is(one, stat_fields(one.pid))]


def _is(one: Hung, found: tuple[str, Sequence[str]] | None) -> bool:
    return found is not None and int(found[1][19]) == one.started and found[1][0] not in ("Z", "X")
