"""The health results of a fleet as they change: one connection a node stays open, over which a program there
tells each new result (node/health_result.py, `follow`).

Nodes that only Ansible or a worker reaches have no such connection: they cannot be watched, which is said as
their trouble. `gpuprov status --watch` asks them, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from provision import bug_file
from provision.checks.judge import Verdict
from provision.fleet import Fleet
from provision.remote import node_program
from provision.remote.protocol import NodeError, state_word
from provision.remote.reach.observe import routed
from provision.remote.ssh import fanout
from provision.remote.ssh.follow import LOGINS, Follow
from provision.validate.status.status import NodeStatus, judged

_MEND = "let this machine log in to it over SSH, or watch it from its worker"


class HealthStream(contextlib.AbstractContextManager["HealthStream"]):
    """The nodes of a fleet, followed from now until the end of the block.

    `timeout`: seconds of a login and its first answer; `connections`: logins at the same time, of which there
    are never more than LOGINS; `say` gets lines for people: what this machine does not allow.

    A node that is lost is `unreachable` at once, and is tried again by itself: after a second, then at
    growing intervals of up to a minute, and where it refused us after a quarter of an hour. One that is cut
    off is noticed within 45 s. Slurm is not asked. Safe to use from several threads."""

    def __init__(
        self, fleet: Fleet, *, timeout: float, connections: int, say: Callable[[str], None] | None = None
    ) -> None:
        self._latest: dict[str, NodeStatus] = {}
        self._changed: dict[str, NodeStatus] = {}
        self._news = threading.Condition()
        routes, beyond = routed(list(fleet.nodes.values()))
        for name, why in beyond.items():
            trouble = f"cannot be watched: {why} → {_MEND}"
            self._note(NodeStatus(name, Verdict.ERROR, state_word(unreachable=False), trouble))
        logins = max(1, min(connections, LOGINS, len(routes)))
        fanout.follow_room(routes.values(), logins, say or (lambda _line: None))
        program = node_program.health_result_program({"follow": True})
        self._follow = Follow(routes, program, self._take, timeout=timeout, logins=logins)

    def __exit__(self, *_: object) -> None:
        self._follow.close()

    @property
    def latest(self) -> Mapping[str, NodeStatus]:
        """Each node as it was last told, by name. A node of which nothing is known yet is not among them; the
        `age` of a result is that at the moment when it came."""
        with self._news:
            return dict(self._latest)

    def changes(self, seconds: float) -> list[NodeStatus]:
        """The nodes that have changed since the last call, each once, as it is now; waits at most so long for
        the first. A new result is a change though it says the same, and so is a result that has become stale.
        """
        with self._news:
            self._news.wait_for(lambda: self._changed, seconds)
            self._follow.check()
            found, self._changed = list(self._changed.values()), {}
        return found

    def _take(self, node: str, output: bytes | NodeError) -> None:
        try:
            status = judged(node, output)
        except Exception as error:  # a status that nobody updates any more would look healthy
            status = judged(
                node, NodeError("garbage", f"{type(error).__name__}: {error}", bug_file.report(error))
            )
        self._note(status)

    def _note(self, status: NodeStatus) -> None:
        with self._news:
            before = self._latest.get(status.node)
            self._latest[status.node] = status
            if before is None or replace(before, age=status.age) != status:
                self._changed[status.node] = status
                self._news.notify_all()
