"""Stream of health results, over one open connection per node (node/health_result.py, `follow`).

Nodes reached only through Ansible or a worker have no such connection. They cannot be watched, and their
trouble states it; `gpuprov status --watch` queries them too.
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
    """Live health results of a fleet until the end of the block.

    `timeout`: seconds for login and first answer; `connections`: concurrent logins, at most LOGINS; `say`:
    receives messages for people about limits of this machine.

    A lost node is `unreachable` at once and retried after a second, then at growing intervals of up to a
    minute, or after a quarter of an hour if it refused the login. A silent connection is noticed within 45 s.
    Slurm is not queried. Thread-safe."""

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
        """The latest status of each node with a known one, by name; `age` is the age on arrival."""
        with self._news:
            return dict(self._latest)

    def changes(self, seconds: float) -> list[NodeStatus]:
        """Return the nodes changed since the last call, each once in its current state.

        Waits up to `seconds` for the first. A new result counts as a change even if it is equal, and so does
        a result becoming stale.
        """
        with self._news:
            self._news.wait_for(lambda: self._changed, seconds)
            self._follow.check()
            changed, self._changed = list(self._changed.values()), {}
        return changed

    def _take(self, node: str, output: bytes | NodeError) -> None:
        try:
            status = judged(node, output)
        except Exception as error:  # a status that is no longer updated would look healthy
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
