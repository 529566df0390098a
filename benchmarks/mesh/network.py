"""The network of a simulated mesh: regions that are far away, packets that are lost, ways that are cut.

Each worker has one TCP connection to the controller's Receptor (a star, without hops). What goes over it
stays in order, and costs its latency, its bytes at the rate that such a connection has, and, for a packet
that is lost, the time until it is sent again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

PACKET = 1400  # bytes
FASTEST = 12.5e6  # bytes a second of one connection: 100 Mbit/s
RESEND = (
    0.2  # seconds until a lost packet is sent again, at the least (Linux's TCP_RTO_MIN); then twice as long
)
NOTICED = 21.0  # seconds in which Receptor notices a cut (assignment.py says where that is from)
RENEWED = 10.0  # seconds in which it has the way again: neighbours are called, and routes told, that often
FOR_GOOD = math.inf


@dataclass(frozen=True)
class Region:
    """`latency`: seconds in one direction between the controller and its workers; `loss`: share of packets
    that are lost."""

    name: str
    latency: float
    loss: float

    @property
    def rate(self) -> float:
        """Bytes a second of one connection: what TCP reaches with this loss (Mathis et al. 1997), no more
        than the line has."""
        return min(FASTEST, 1.22 * PACKET / (2 * self.latency * math.sqrt(self.loss)))


def drawn_regions(count: int, drawn: random.Random) -> list[Region]:
    """From the same site to the other side of the world, one packet in a million to one in a hundred lost."""
    latencies = [0.0005 * 300 ** (number / max(1, count - 1)) for number in range(count)]
    return [
        Region(f"region-{number}", latency * drawn.uniform(0.8, 1.2), 10 ** drawn.uniform(-6, -2))
        for number, latency in enumerate(latencies, 1)
    ]


@dataclass(frozen=True)
class Cut:
    """A time in which nothing passes. `here`, `there`: when the controller's Receptor and the worker's have
    noticed it; `renewed`: when they are connected again."""

    begin: float
    here: float
    there: float
    renewed: float


@dataclass
class Line:
    """The connection of one worker. Times in seconds since 1970."""

    region: Region
    drawn: random.Random
    cuts: list[Cut] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    lost: int = 0  # packets
    _free: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})

    def cut(self, seconds: float, now: float) -> Cut:
        """Nothing passes from now on, for so long."""
        here, there = (now + self.drawn.uniform(0.1, 1.0) * NOTICED for _ in range(2))
        made = Cut(now, here, there, now + seconds + self.drawn.uniform(0.1, 1.0) * RENEWED)
        self.cuts.append(made)
        return made

    def broken(self, now: float) -> Cut | None:
        """The cut that lets nothing pass now."""
        return next((cut for cut in self.cuts if cut.begin <= now < cut.renewed), None)

    def known(self, now: float) -> bool:
        """Whether the controller's Receptor believes that there is a way."""
        return not any(cut.here <= now < cut.renewed for cut in self.cuts)

    def arrives(self, size: int, now: float, *, there: bool) -> float:
        """When a message of so many bytes that is sent now has arrived, `there` or here."""
        self.messages += 1
        self.bytes += size
        region = self.region
        sent = max(now, self._free[there]) + size / region.rate
        # In a stream of packets a loss costs rate, and the last one's an interval: nobody asks for it.
        wait = max(RESEND, 4 * region.latency)
        while self.drawn.random() < region.loss:
            self.lost += 1
            sent += wait
            wait *= 2
        self._free[there] = sent
        return sent + region.latency
