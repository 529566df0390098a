"""What a trial is made of: a drawn fault, and what a validator ought to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

SKUS = ("h100-sxm", "h200-sxm", "b200", "a100-sxm-80", "l40s")
GPUS = 8  # of each of these machines
IMEX = ("gb200",)  # compute trays of an NVL72 rack
AMD = ("mi300x", "mi250x", "mi210", "mi250", "mi300a", "mi325x", "mi355x")  # with AMD's GPUs
FOUR = (*IMEX, "a100-pcie-80", "mi300a")  # with four GPUs
FABRIC = ("h100-sxm", "h200-sxm", "b200", "a100-sxm-80")
LINKS = {"h100-sxm": 18, "h200-sxm": 18, "b200": 18, "a100-sxm-80": 12}

FLAGGED = ("fail", "error", "warn")


@dataclass(frozen=True)
class Expected:
    """A right answer. `devices`: the parts that may be named; `slot 3` is a
    GPU by its PCI address, `nic slot 3` a network card.

    `verdicts`: what the node's verdict must be. `also`: parts that may be accused beside the culprit, because
    they cannot but suffer with it.
    """

    devices: tuple[str, ...]
    actions: tuple[str, ...]
    verdicts: tuple[str, ...] = ("fail",)
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetCase:
    """A fleet in racks: `faults` of its fabric (tests/support/fabric.py: place → factor, None hangs), what is
    `disturbed` once (round, node), and how `oversubscription` is declared."""

    nodes: int
    faults: Mapping[tuple[str, ...], float | None]
    disturbed: tuple[tuple[int, str], ...] = ()
    oversubscription: float = 1.0


@dataclass(frozen=True)
class Case:
    """One drawn case. `faults`: the lab's fault commands, word by word, or `reboot`, or `run TOOL …`;
    `machine`: how the node is made; `variables`: what the inventory declares; `event`: what happens during a
    check; `everywhere`: the nodes it is compared with are the same; `fleet`: many nodes, of which only the
    network between them is tried; `expected` None for a healthy look-alike.
    """

    faults: tuple[str, ...] = ()
    expected: Expected | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    event: str = ""
    everywhere: bool = False
    fleet: FleetCase | None = None


@dataclass(frozen=True)
class Draw:
    """What a case is drawn from: the node's SKU, a severity in the entry's range, and random numbers."""

    rng: Random
    sku: str
    severity: float

    def gpu(self) -> int:
        """A GPU of the node."""
        return self.rng.randrange(self.gpus)

    @property
    def gpus(self) -> int:
        """How many the node has."""
        return 4 if self.sku in FOUR else GPUS

    def pair(self) -> tuple[int, int]:
        """Two GPUs, the lower first."""
        a, b = sorted(self.rng.sample(range(self.gpus), 2))
        return a, b

    @property
    def rest(self) -> str:
        """What a slowdown leaves of the healthy rate."""
        return f"{1 - self.severity:.4f}"


NODE, GPU, NIC, PAIR = ("node",), ("gpu{gpu}",), ("mlx5_{nic}",), ("gpu{a}-gpu{b}",)
FAIL_OR_WARN = ("fail", "warn")
# What helps where a reset may, and where somebody has to look first.
RESET = ("reset GPU", "reboot", "power-cycle", "reseat or check cable", "replace part")
LOOK = ("investigate", "replace part", "reseat or check cable")


def planted(
    fault: str,
    devices: tuple[str, ...] = (),
    actions: tuple[str, ...] = (),
    verdicts: tuple[str, ...] = ("fail",),
    *,
    also: tuple[str, ...] = (),
    variables: Mapping[str, Any] | None = None,
    everywhere: bool = False,
    **drawn: Sequence[object],
) -> Callable[[Draw], Case]:
    """What draws cases of one fault; without `devices` it is a healthy look-alike. In `fault`, `devices` and
    `also` stand places for a `{gpu}`, a `{nic}` or a pair `{a}` `{b}`, which are drawn first, `{severity}` or
    the `{rest}` of it, and one of the values of each name in `drawn`, in their order."""

    def draw(one: Draw) -> Case:
        words: dict[str, object] = {"severity": round(one.severity), "rest": one.rest}
        if "{gpu}" in fault or "{nic}" in fault:
            words["gpu"] = words["nic"] = one.gpu()  # there is a card between nodes for each GPU
        if "{a}" in fault:
            words["a"], words["b"] = one.pair()
        words.update((name, one.rng.choice(values)) for name, values in drawn.items())
        named = tuple(device.format(**words) for device in devices)
        spared = tuple(device.format(**words) for device in also)
        expected = Expected(named, actions, verdicts, spared) if devices else None
        return Case((fault.format(**words),), expected, variables=variables or {}, everywhere=everywhere)

    return draw


@dataclass(frozen=True)
class Entry:
    """One class of faults, or one healthy look-alike (`trap`).

    `clear` and `graded` are the ranges from which a severity is drawn (in `unit`); without them the fault is
    there or not. `missing` says why nothing can be drawn yet.
    """

    number: int
    name: str
    draw: Callable[[Draw], Case] | None = None
    unit: str = ""
    clear: tuple[float, float] | None = None
    graded: tuple[float, float] | None = None
    skus: tuple[str, ...] = SKUS
    missing: str = ""
    trap: bool = False
    variant: str = ""

    @property
    def key(self) -> str:
        """`7`, `7t` its look-alike, `18n` another form of a class."""
        return f"{self.number}{self.variant}{'t' if self.trap else ''}"


def generator(*words: object) -> Random:
    """Random numbers that these words decide, the same on every machine."""
    return Random("/".join(str(word) for word in words))  # noqa: S311 - nothing here is a secret


def draw_case(entry: Entry, rng: Random, *, graded: bool) -> tuple[Draw, Case]:
    """A SKU, a severity and a case of this class. The same generator state gives the same case."""
    assert entry.draw is not None
    span = entry.graded if graded else entry.clear
    drawn = Draw(rng, rng.choice(entry.skus), rng.uniform(*span) if span else 0.0)
    return drawn, entry.draw(drawn)
