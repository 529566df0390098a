"""A simulated worker: what its units print, and when.

It stands for the machine and for worker_entry.py, whose times and sizes it has: what it is given it opens,
and what it answers it numbers and encrypts, as that does. How fast it looks at nodes is a figure of the
model.
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

START = 1.5  # seconds until Python has begun, and gpuprov is there
RATE = 100.0  # nodes a second: a core, and 7 to 10 ms of it for each (docs/performance.md)
SLOW = 0.1  # of that, for a slow one
ANSWER = 1.0  # seconds until a node answers, in the median
ROUND_TRIPS = 6  # of an SSH login and a command
ENDS = 1.0  # seconds to end in order

Output = Callable[[str], bytes | None]  # node → what it prints; None for one that is dead


@dataclass
class Worker:
    """`rate`: nodes a second. `distance`: seconds from it to a node, in one direction. `begun`: is told of
    each unit with nodes that begins."""

    name: str
    line: Line
    rate: float
    distance: Callable[[str], float]
    output: Output
    drawn: random.Random
    begun: Callable[[Process], None]
    units: list[Process] = field(default_factory=list)

    def begin(self, given: bytes, now: float) -> Process:
        """What Receptor does with a unit that has arrived."""
        self.units.append(made := Process(self, given, now))
        if made.nodes:
            self.begun(made)
        return made

    def free(self, now: float) -> float:
        """When its core has done what it has to do already."""
        return max([now, *(one.busy for one in self.units if one.over > now)])


class Process:
    """One unit at its worker. `over`: when it ends; `nodes`: (seconds since 1970 at which it has looked at
    it, node), in this order."""

    def __init__(self, worker: Worker, given: bytes, now: float) -> None:
        self.worker = worker
        self.begun = now + START
        self.busy = self.over = self.begun
        self.nodes: list[tuple[float, str]] = []
        self.lease: float | None = None
        self.stopped = self.dead = False
        self._written: float | None = None  # when it wrote last
        self._beat = self.begun
        self._count = 0  # nodes of which it has said something
        self._answers = worker_stream.Answers()
        self._more = self._all = False
        self._hello = b""
        header = sealed.header_of(given.partition(b"\n")[0])
        if "hello" in header:
            said = {**worker_stream.versions(), "key": sealed.worker_public_key()}
            self._hello = f"{worker_stream.HELLO}{json.dumps(said)}\n".encode()
            return
        about, share = (json.loads(one) for one in sealed.opened(given)[1].split(b"\n")[:2])
        self.lease = about["lease"]
        self._sealer = sealed.Sealer(base64.b64decode(about["answer_key"]))
        self._plan(share["kwargs"]["inventory"])

    def _plan(self, nodes: Mapping[str, Any]) -> None:
        """When it will have looked at which node."""
        worker = self.worker
        at = worker.free(self.begun)
        for node in nodes:
            at += 1 / worker.rate
            seconds = ANSWER * worker.drawn.lognormvariate(0, 0.4)
            self.nodes.append((at + seconds + 2 * ROUND_TRIPS * worker.distance(node), node))
        self.nodes.sort()
        self.busy, self.over = at, self.nodes[-1][0]

    def stop(self, now: float) -> None:
        """It is told to end, or has found that it should."""
        if now < self.over:
            self.over, self.stopped = now + ENDS, True

    def die(self, now: float) -> None:
        """Its machine is gone."""
        if now < self.over:
            self.over, self.dead = now, True

    def looked(self) -> list[str]:
        """The nodes at which it has looked."""
        return [node for at, node in self.nodes if at <= self.over]

    def printed(self, until: float, at_most: int) -> tuple[bytes, bool]:
        """What it has written till then and was not taken yet, and whether there is more of that. Nothing is
        made before it is asked for: it may end before its time."""
        taken = bytearray()
        while not self._all and (now := self._next()) <= until:
            if len(taken) >= at_most:
                return bytes(taken), True
            self._written = now
            taken += self._hello or self._frame(self._said(now))
            self._all = self._all or bool(self._hello)
        return bytes(taken), False

    def _next(self) -> float:
        """When it writes next: what it has gathered, a sign of life, its end."""
        if self._written is None or self._hello:
            return self.begun
        if self._more:
            return self._written
        due = self.nodes[self._count][0] if self._count < len(self.nodes) else self.over
        soon = max(self._written + worker_entry._FLUSH, min(due, self._beat + worker_stream.BEAT))
        return math.inf if self.dead and soon > self.over else max(self._written, min(soon, self.over))

    def _said(self, now: float) -> list[Mapping[str, Any]]:
        """The lines of one frame."""
        said: list[Mapping[str, Any]] = []
        if now >= self._beat + worker_stream.BEAT or now == self.begun:
            said.append(_ALIVE)
            self._beat = now
        size, self._more = 0, False
        while self._count < len(self.nodes) and self.nodes[self._count][0] <= min(now, self.over):
            if size > worker_entry._GATHERED:
                self._more = True
                return said
            self._count += 1
            said.append(one := self._event(self.nodes[self._count - 1][1], self._count))
            size += len(json.dumps(one))
        if now >= self.over and not self.dead:
            trouble = {"status": "error", "job_explanation": worker_stream.STOPPED}
            status = trouble if self.stopped else {"status": "successful"}
            said += [{**status, "gpuprov_events": self._count}, {"eof": True}]
            self._all = True
        return said

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
