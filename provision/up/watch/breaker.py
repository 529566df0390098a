"""The breaker of all drains as the watch sees it: when it opens for a common cause, and what people read.

The breaker itself is the scheduler's (provision.remote.schedulers.Breaks), since nodes drain themselves, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping

from provision.remote.schedulers import BreakerError, Breaks, Holder, Scheduled, Scheduler
from provision.up.watch.incidents import by_the_node_itself
from provision.up.watch.policy import Policy
from provision.up.watch.seen import Seen

KIND = "breaker-open"
AGAIN = 5.0  # seconds until a breaker that could not be opened is tried again
_HOUR = 3600.0


def stopped(why: str) -> str:
    """What people read of an open breaker."""
    return (
        f"the breaker of all drains is open, so nothing is drained for a fault: {why}. Find the common "
        "cause, then close it with gpuprov watch breaker --close"
    )


def common_cause(
    seen: Mapping[str, Seen],
    scheduled: Mapping[str, Scheduled],
    recent: Collection[str],
    after: float,
    policy: Policy,
) -> str:
    """That more nodes of a pool have failed within an hour than may be drained in it, whoever would drain
    them, or "". `recent`: nodes that were taken out of service within the hour; `after`: when it began."""
    pools: dict[str, list[str]] = {}
    for name, word in scheduled.items():
        for pool in () if word.error else word.pools:
            pools.setdefault(pool, []).append(name)
    for pool, names in pools.items():
        failed = [name for name in names if name in recent or _fails(seen.get(name), scheduled[name], after)]
        if policy.common_cause(len(failed), len(names)):
            return f"{len(failed)} of the {len(names)} nodes of {pool} have failed within an hour"
    return ""


def _fails(seen: Seen | None, word: Scheduled, after: float) -> bool:
    """Whether a node failed since then that takes jobs, or that its own program drained."""
    if seen is None or not seen.fatal or seen.since <= after:
        return False
    return word.holder is Holder.NOBODY or by_the_node_itself(word.reason)


class Breaker:
    """What a watch knows of it. `why`: why it is open; None while it is closed, as far as is known. Each
    drain needs the scheduler's own permit, so what is not known here drains nothing too much."""

    def __init__(self, scheduler: Scheduler, say: Callable[[str], None]) -> None:
        self._scheduler, self._say = scheduler, say
        self.why: str | None = None
        self._not_before, self._closed = 0.0, -_HOUR + time.monotonic()

    @property
    def counts(self) -> float:
        """Seconds for which a failure counts towards opening it. What failed before a person closed it does
        not: it would be open again at once, and permits hold those nodes."""
        return min(_HOUR, time.monotonic() - self._closed)

    def read(self) -> None:
        """Read it again; without an answer the last one stands."""
        if isinstance(self._scheduler, Breaks):
            with contextlib.suppress(BreakerError):
                before, self.why = self.why, self._scheduler.breaker()
                if before is not None and self.why is None:
                    self._closed = time.monotonic()

    def open(self, why: str) -> None:
        """Open it for everybody."""
        if not isinstance(self._scheduler, Breaks) or time.monotonic() < self._not_before:
            return
        try:
            self._scheduler.open_breaker(why)
            self.why = why
        except BreakerError as error:
            self._not_before = time.monotonic() + AGAIN
            self._say(f"the breaker of all drains cannot be opened, and nothing is drained: {error}")
