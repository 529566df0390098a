"""Repeated queries for the state of a fleet, with one round trip to each node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from provision.fleet import Fleet
from provision.remote import node_program
from provision.remote.protocol import NodeError
from provision.remote.reach.observe import Reach
from provision.text import now
from provision.validate.status.slurm import SlurmState
from provision.validate.status.status import FleetStatus, NodeStatus, judged

SLURM_SECONDS = 60.0  # between two queries to Slurm, each of which costs its controller one request per node


class Rounds(contextlib.AbstractContextManager["Rounds"]):
    """Connections to a fleet, queried by each call of `ask`. `persistent`: connections stay open."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        timeout: float,
        connections: int,
        say: Callable[[str], None] | None = None,
        persistent: bool = False,
    ) -> None:
        self._fleet = fleet
        self._reach = Reach(
            list(fleet.nodes.values()),
            timeout,
            connections,
            fleet.vault_password_files,
            say,
            persistent=persistent,
        )
        self._slurm: dict[str, SlurmState] = {}
        self._slurm_asked = 0.0

    def __exit__(self, *_: object) -> None:
        self._reach.__exit__()

    def ask(self, on_done: Callable[[NodeStatus], None] | None = None) -> FleetStatus:
        """Query the fleet once. Never raises for a node."""
        scheduler = not self._slurm_asked or time.monotonic() - self._slurm_asked >= SLURM_SECONDS
        if scheduler:
            self._slurm_asked = time.monotonic()
        query = _Asked({"scheduler": scheduler}, {} if scheduler else self._slurm, on_done)
        self._reach.put(query)
        self._slurm = {name: one.slurm for name, one in query.found.items() if one.slurm is not None}
        return FleetStatus(
            self._fleet, now("seconds"), {name: query.found[name] for name in self._fleet.nodes}
        )


class _Asked:
    """The request to the nodes, and their results."""

    def __init__(
        self,
        request: dict[str, Any],
        slurm: dict[str, SlurmState],
        on_done: Callable[[NodeStatus], None] | None,
    ) -> None:
        self.found: dict[str, NodeStatus] = {}
        self._request = request
        self._slurm = slurm
        self._on_done = on_done
        self._programs: dict[int | None, str] = {}

    def program(self, node: str, limit: int | None = None) -> str:  # noqa: ARG002 - the same for all
        if limit not in self._programs:
            request = self._request if limit is None else {**self._request, "bytes": limit}
            self._programs[limit] = node_program.health_result_program(request)
        return self._programs[limit]

    def take(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> None:  # noqa: ARG002
        if node in self.found:  # after its run Ansible offers each node again; only the first answer counts
            return
        answer = output if isinstance(output, NodeError) else bytes(output)
        status = self.found[node] = judged(node, answer, self._slurm.get(node))
        if self._on_done is not None:
            self._on_done(status)
