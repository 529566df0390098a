"""The network of a simulated mesh: distant regions, packet loss, broken connections.

Each worker has one TCP connection to the controller's Receptor (a star, without hops). Its traffic stays in
order and takes the latency, the bytes at the rate of such a connection, and for a lost packet the time until
it is resent.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

PACKET = 1400  # bytes
FASTEST = 12.5e6  # bytes per second of one connection: 100 Mbit/s
RESEND = 0.2  # least seconds until a lost packet is resent (Linux's TCP_RTO_MIN), doubled on each retry
NOTICED = 21.0  # seconds within which Receptor notices a cut (source: assignment.py)
RENEWED = 10.0  # seconds until Receptor reconnects: its interval for calling neighbours and sending routes
FOR_GOOD = math.inf


@dataclass(frozen=True)
class Region:
    """A region. `latency`: one-way seconds between controller and workers; `loss`: share of lost packets."""

    name: str
    latency: float
    loss: float

    @property
    def rate(self) -> float:
        """Bytes per second of one connection, limited by loss (Mathis et al. 1997) and by the line."""
        return min(FASTEST, 1.22 * PACKET / (2 * self.latency * math.sqrt(self.loss)))


def drawn_regions(count: int, drawn: random.Random) -> list[Region]:
    """Draw regions from the same site to the far side of the world, with a packet loss of 1e-6 to 1e-2."""
    latencies = [0.0005 * 300 ** (number / max(1, count - 1)) for number in range(count)]
    return [
        Region(f"region-{number}", latency * drawn.uniform(0.8, 1.2), 10 ** drawn.uniform(-6, -2))
        for number, latency in enumerate(latencies, 1)
    ]


@dataclass(frozen=True)
class Cut:
    """A time in which no traffic passes.

    `here`, `there`: when the controller's and the worker's Receptor have noticed; `renewed`: reconnection
    time."""

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
        """Cut the connection for this many seconds from now on."""
        here, there = (now + self.drawn.uniform(0.1, 1.0) * NOTICED for _ in range(2))
        made = Cut(now, here, there, now + seconds + self.drawn.uniform(0.1, 1.0) * RENEWED)
        self.cuts.append(made)
        return made

    def broken(self, now: float) -> Cut | None:
        """Return the cut that blocks traffic now, if any."""
        return next((cut for cut in self.cuts if cut.begin <= now < cut.renewed), None)

    def known(self, now: float) -> bool:
        """Whether the controller's Receptor believes that the worker is reachable."""
        return not any(cut.here <= now < cut.renewed for cut in self.cuts)

    def arrives(self, size: int, now: float, *, there: bool) -> float:
        """Return the arrival time, `there` or here, of a message of `size` bytes sent now."""
        self.messages += 1
        self.bytes += size
        region = self.region
        sent = max(now, self._free[there]) + size / region.rate
        # A loss inside a stream only costs rate, but the loss of the last packet costs a resend timeout.
        wait = max(RESEND, 4 * region.latency)
        while self.drawn.random() < region.loss:
            self.lost += 1
            sent += wait
            wait *= 2
        self._free[there] = sent
        return sent + region.latency
