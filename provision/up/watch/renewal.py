"""Revalidation of spares, one at a time, before their validation expires."""

from __future__ import annotations

import concurrent.futures
import shlex
import time
from collections.abc import Callable
from dataclasses import replace

from provision.up.watch.decide import HOUR, View, ready
from provision.up.watch.incidents import Store
from provision.up.watch.policy import Policy
from provision.up.watch.roles import Role
from provision.up.watch.steps import Checked, Message, World

RENEW = 0.9  # fraction of a validation's lifetime after which a spare is validated again
_AGAIN = 60.0  # seconds until an inconclusive check is retried


class Renewal:
    """The checks of waiting spares. `checked`: receives the outcome of each."""

    def __init__(
        self,
        world: World,
        store: Store,
        policy: Policy,
        say: Callable[[str], None],
        checked: Callable[[str, Checked], None],
    ) -> None:
        self._world, self._store, self._policy, self._say, self._checked = world, store, policy, say, checked
        self._running: tuple[str, concurrent.futures.Future[Checked]] | None = None
        self._pool: concurrent.futures.Executor = concurrent.futures.ThreadPoolExecutor(1, "spare")
        self._after: dict[str, float] = {}

    def stop(self) -> None:
        """Wait for the running check."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def go_on(self, view: View) -> None:
        """Record a finished check, or begin the next one that is due."""
        if self._running is None:
            self._begin(view)
        elif self._running[1].done():  # `view` does not include it yet
            (name, future), self._running = self._running, None
            self._ended(name, future.result())

    def _ended(self, name: str, checked: Checked) -> None:
        at = self._world.now()
        self._checked(name, checked)
        if checked.passed:
            self._store.write_validated(name, at, "pass", checked.run)
            self._say(f"the spare {name} was validated")
        elif checked.again:
            self._after[name] = time.monotonic() + _AGAIN
        else:
            self._after[name] = time.monotonic() + HOUR
            self._store.write_validated(name, at, "fail", checked.run)
            text = f"the spare {name} did not pass its validation: {checked.why}"
            advice = f"gpuprov validate --nodes {shlex.quote(name)}"
            stamp = f"{name}.spare-failed.{at:.0f}"
            self._world.tell(Message(stamp, "spare-failed", at, text, name, next=advice))

    def _begin(self, view: View) -> None:
        at, limit = self._world.now(), self._policy.validated_hours * HOUR * RENEW
        waiting = {one.spare for one in view.incidents if one.holds_spare}
        for name, role in view.roles.items():
            old = at - view.validated.get(name, 0.0) > limit
            if role is not Role.SPARE or name in waiting or not old:
                continue
            fresh = replace(view, validated={**view.validated, name: at})
            if self._after.get(name, 0.0) <= time.monotonic() and not ready(name, fresh, self._policy):
                self._running = name, self._pool.submit(self._world.verify, name)
                return
