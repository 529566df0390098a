"""The number of processes that gpuprov starts on this machine."""

from __future__ import annotations

import os

from provision.errors import UsageError

VARIABLE = "GPUPROV_PROCESSES"


def worth(hosts: int, fewest: int) -> int:
    """As many processes as this many hosts are worth, 1 at least: GPUPROV_PROCESSES says how many, else as
    many as there are cores for us and each has `fewest` hosts.

    Raises UsageError when that variable is no number."""
    chosen = os.environ.get(VARIABLE)
    if chosen is None:
        return max(1, min(len(os.sched_getaffinity(0)), hosts // fewest))
    if not chosen.isdecimal() or not int(chosen):
        raise UsageError(f"{VARIABLE}={chosen}: not a number of processes", "give 1 or more, or unset it")
    return max(1, min(int(chosen), hosts))
