"""A simulated worker: the output of its units, with their timing.

It stands for the machine and for worker_entry.py, with that program's times and sizes: it opens its sealed
input, and numbers and encrypts its answers likewise. Its rate of observing nodes is a parameter of the model.
"""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.mesh.network import Line
from provision.remote.worker_program import worker_entry
from provision.remote.workers import sealed, worker_stream

START = 1.5  # seconds until Python and gpuprov have started
RATE = 100.0  # nodes per second: one core, 7 to 10 ms for each (docs/performance.md)
SLOW = 0.1  # factor of a slow worker
ANSWER = 1.0  # median seconds until a node answers
ROUND_TRIPS = 6  # of an SSH login and a command
ENDS = 1.0  # seconds for an orderly end

Output = Callable[[str], bytes | None]  # node → its output; None for a dead node


@dataclass
class Worker:
    """A worker. `rate`: nodes per second. `distance`: one-way seconds from it to a node.

    `begun` is called for each unit with nodes that begins."""

    name: str
    line: Line
    rate: float
    distance: Callable[[str], float]
    output: Output
    drawn: random.Random
    begun: Callable[[Process], None]
    units: list[Process] = field(default_factory=list)

    def begin(self, given: bytes, now: float) -> Process:
        """Start a unit that has arrived, as Receptor would."""
        self.units.append(made := Process(self, given, now))
        if made.nodes:
            self.begun(made)
        return made

    def free(self, now: float) -> float:
        """Return the time at which its core has finished its present work."""
        return max([now, *(one.busy for one in self.units if one.over > now)])


class Process:
    """One unit at its worker.
    `over`: its end; `nodes`: (seconds since 1970 at which it has observed the node, node), in this order."""

    def __init__(self, worker: Worker, given: bytes, now: float) -> None:
        self.worker = worker
        self.begun = now + START
        self.busy = self.over = self.begun
        self.nodes: list[tuple[float, str]] = []
        self.lease: float | None = None
        self.stopped = self.dead = False
        self._written: float | None = None  # time of the last write
        self._beat = self.begun
        self._count = 0  # number of reported nodes
        self._answers = worker_stream.Answers()
        self._more = self._all = False
        self._hello = b""
        header = sealed.header_of(given.partition(b"\n")[0])
        if "hello" in header:
            greeting = {**worker_stream.versions(), "key": sealed.worker_public_key()}
            self._hello = f"{worker_stream.HELLO}{json.dumps(greeting)}\n".encode()
            return
        about, share = (json.loads(one) for one in sealed.opened(given)[1].split(b"\n")[:2])
        self.lease = about["lease"]
        self._sealer = sealed.Sealer(base64.b64decode(about["answer_key"]))
        self._plan(share["kwargs"]["inventory"])

    def _plan(self, nodes: Mapping[str, Any]) -> None:
        """Compute when each node will have been observed."""
        worker = self.worker
        at = worker.free(self.begun)
        for node in nodes:
            at += 1 / worker.rate
            seconds = ANSWER * worker.drawn.lognormvariate(0, 0.4)
            self.nodes.append((at + seconds + 2 * ROUND_TRIPS * worker.distance(node), node))
        self.nodes.sort()
        self.busy, self.over = at, self.nodes[-1][0]

    def stop(self, now: float) -> None:
        """End the unit, on request or because its lease has expired."""
        if now < self.over:
            self.over, self.stopped = now + ENDS, True

    def die(self, now: float) -> None:
        """Kill the unit together with its machine."""
        if now < self.over:
            self.over, self.dead = now, True

    def looked(self) -> list[str]:
        """Return the observed nodes."""
        return [node for at, node in self.nodes if at <= self.over]

    def printed(self, until: float, at_most: int) -> tuple[bytes, bool]:
        """Return the unread output until then, and whether more is left.
        Output is generated lazily, since the unit may end early."""
        taken = bytearray()
        while not self._all and (now := self._next()) <= until:
            if len(taken) >= at_most:
                return bytes(taken), True
            self._written = now
            taken += self._hello or self._frame(self._said(now))
            self._all = self._all or bool(self._hello)
        return bytes(taken), False

    def _next(self) -> float:
        """Return the time of the next write: gathered results, a sign of life, or the end."""
        if self._written is None or self._hello:
            return self.begun
        if self._more:
            return self._written
        due = self.nodes[self._count][0] if self._count < len(self.nodes) else self.over
        soon = max(self._written + worker_entry._FLUSH, min(due, self._beat + worker_stream.BEAT))
        return math.inf if self.dead and soon > self.over else max(self._written, min(soon, self.over))

    def _said(self, now: float) -> list[Mapping[str, Any]]:
        """Build the lines of one frame."""
        messages: list[Mapping[str, Any]] = []
        if now >= self._beat + worker_stream.BEAT or now == self.begun:
            messages.append(_ALIVE)
            self._beat = now
        size, self._more = 0, False
        while self._count < len(self.nodes) and self.nodes[self._count][0] <= min(now, self.over):
            if size > worker_entry._GATHERED:
                self._more = True
                return messages
            self._count += 1
            messages.append(one := self._event(self.nodes[self._count - 1][1], self._count))
            size += len(json.dumps(one))
        if now >= self.over and not self.dead:
            trouble = {"status": "error", "job_explanation": worker_stream.STOPPED}
            status = trouble if self.stopped else {"status": "successful"}
            messages += [{**status, "gpuprov_events": self._count}, {"eof": True}]
            self._all = True
        return messages

    def _frame(self, said: list[Mapping[str, Any]]) -> bytes:
        return self._sealer.frame(b"".join(json.dumps(one).encode() + b"\n" for one in said))

    def _event(self, node: str, number: int) -> dict[str, Any]:
        data: dict[str, Any] = {"host": node, "seconds": ANSWER}
        output = self.worker.output(node)
        if output is None:
            data["error"] = ["unreachable", f"{node} did not answer within 10 s", "is it powered on?"]
        else:
            data |= self._answers.packed(output)
        about = {"event": worker_stream.OUTPUT, "counter": number, "uuid": f"output-{number}"}
        return {**about, "event_data": data}


_ALIVE: Mapping[str, Any] = {"event": "keepalive", "counter": 0, "uuid": 0}
