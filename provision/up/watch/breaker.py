"""The watch's view of the breaker of all drains: when it opens, and messages about it.

The breaker is the scheduler's (provision.remote.schedulers.Breaks), since nodes drain themselves too."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping

from provision.remote.schedulers import BreakerError, Breaks, Holder, Scheduled, Scheduler
from provision.up.watch.incidents import by_the_node_itself
from provision.up.watch.policy import Policy
from provision.up.watch.seen import Seen

KIND = "breaker-open"
AGAIN = 5.0  # seconds until opening the breaker is retried
_HOUR = 3600.0


def stopped(why: str) -> str:
    """Return the message about an open breaker."""
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
    """Return why a pool has more failures within an hour than may be drained, or "".

    `recent`: nodes taken out of service within the hour; `after`: its beginning."""
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
    """Return whether a node failed since `after` that takes jobs, or that its own program drained."""
    if seen is None or not seen.fatal or seen.since <= after:
        return False
    return word.holder is Holder.NOBODY or by_the_node_itself(word.reason)


class Breaker:
    """The breaker as last read; drains need the scheduler's own permit, so an outdated state is harmless.

    `why`: why it is open; None while it is closed, as far as known."""

    def __init__(self, scheduler: Scheduler, say: Callable[[str], None]) -> None:
        self._scheduler, self._say = scheduler, say
        self.why: str | None = None
        self._not_before, self._closed = 0.0, -_HOUR + time.monotonic()

    @property
    def counts(self) -> float:
        """Seconds for which a failure counts towards opening it: at most since a person closed it."""
        return min(_HOUR, time.monotonic() - self._closed)

    def read(self) -> None:
        """Read its state; without an answer the last one is kept."""
        if isinstance(self._scheduler, Breaks):
            with contextlib.suppress(BreakerError):
                before, self.why = self.why, self._scheduler.breaker()
                if before is not None and self.why is None:
                    self._closed = time.monotonic()

    def open(self, why: str) -> None:
        """Open the breaker for all of gpuprov."""
        if not isinstance(self._scheduler, Breaks) or time.monotonic() < self._not_before:
            return
        try:
            self._scheduler.open_breaker(why)
            self.why = why
        except BreakerError as error:
            self._not_before = time.monotonic() + AGAIN
            self._say(f"the breaker of all drains cannot be opened, and nothing is drained: {error}")
