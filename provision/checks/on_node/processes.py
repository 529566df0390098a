"""Programs that hang on the node and cannot be killed: known from run to run, and never started once more.

A program that waits in the kernel for a GPU outlives SIGKILL (state D). Each one more would wait beside it,
hold memory and count into the load. So what outlives a run is noted, and while it is there its program is
not started again; once it has ended, the next run starts it as ever. Their command lines are not read: that
waits for the memory lock of the process, which a hung one may hold for ever.
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


def left(uptime: float) -> list[Hung]:
    """Kill what this process's children have left behind, and give what does not end."""
    end = time.monotonic() + _GRACE
    while True:
        reap()
        children = {pid: found for pid in all_pids() if (found := stat_fields(pid)) and _is_left(found)}
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
    """What was left, each as the program that was started: `silent` are those that did not end in time. A
    script runs under the name of its interpreter, and what it started under another."""
    return [one if one.program in silent or not silent else replace(one, program=silent[0]) for one in found]


def still(known: Iterable[Hung]) -> list[Hung]:
    """Those that have not ended since they were noted."""
    return [one for one in known if _is(one, stat_fields(one.pid))]


def _is(one: Hung, found: tuple[str, Sequence[str]] | None) -> bool:
    return found is not None and int(found[1][19]) == one.started and found[1][0] not in ("Z", "X")
