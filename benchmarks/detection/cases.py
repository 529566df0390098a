"""Building blocks of a trial: a drawn fault and the verdict that a validator should reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

SKUS = ("h100-sxm", "h200-sxm", "b200", "a100-sxm-80", "l40s")
GPUS = 8  # of each of these machines
IMEX = ("gb200",)  # compute trays of an NVL72 rack
AMD = ("mi300x", "mi250x", "mi210", "mi250", "mi300a", "mi325x", "mi355x")  # with AMD GPUs
FOUR = (*IMEX, "a100-pcie-80", "mi300a")  # with four GPUs
FABRIC = ("h100-sxm", "h200-sxm", "b200", "a100-sxm-80")
LINKS = {"h100-sxm": 18, "h200-sxm": 18, "b200": 18, "a100-sxm-80": 12}

FLAGGED = ("fail", "error", "warn")


@dataclass(frozen=True)
class Expected:
    """A correct answer.
    `devices`: the parts that may be named; `slot 3` is a GPU by its PCI address, `nic slot 3` a network card.
    `verdicts`: the allowed verdicts of the node. `also`: parts that inevitably suffer with the culprit and
    may be accused, too.
    """

    devices: tuple[str, ...]
    actions: tuple[str, ...]
    verdicts: tuple[str, ...] = ("fail",)
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetCase:
    """A fleet in racks.
    `faults` of its fabric (tests/support/fabric.py: place → factor, None hangs), `disturbed`: one-time
    disturbances (round, node), `oversubscription`: its declared value."""

    nodes: int
    faults: Mapping[tuple[str, ...], float | None]
    disturbed: tuple[tuple[int, str], ...] = ()
    oversubscription: float = 1.0


@dataclass(frozen=True)
class Case:
    """One drawn case; `expected` is None for a healthy look-alike.
    `faults`: the lab's fault commands in full, or `reboot`, or `run TOOL …`; `machine`: arguments of the
    node's constructor; `variables`: inventory variables; `event`: what happens during a check; `everywhere`:
    peers have the same fault; `fleet`: many nodes, of which only the connecting network is tried.
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
    """The inputs of a drawn case: the node's SKU, a severity in the entry's range, and random numbers."""

    rng: Random
    sku: str
    severity: float

    def gpu(self) -> int:
        """Draw a GPU of the node."""
        return self.rng.randrange(self.gpus)

    @property
    def gpus(self) -> int:
        """The number of GPUs of the node."""
        return 4 if self.sku in FOUR else GPUS

    def pair(self) -> tuple[int, int]:
        """Draw two GPUs, the lower first."""
        a, b = sorted(self.rng.sample(range(self.gpus), 2))
        return a, b

    @property
    def rest(self) -> str:
        """The fraction of the healthy rate that a slowdown leaves."""
        return f"{1 - self.severity:.4f}"


NODE, GPU, NIC, PAIR = ("node",), ("gpu{gpu}",), ("mlx5_{nic}",), ("gpu{a}-gpu{b}",)
FAIL_OR_WARN = ("fail", "warn")
# Accepted actions where a reset may help, and where a person must investigate first.
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
    """Return a function that draws cases of one fault; without `devices`, of a healthy look-alike.
    In `fault`, `devices` and `also`, placeholders get drawn values: `{gpu}`, `{nic}` or a pair `{a}` `{b}`
    first, `{severity}` or its complement `{rest}`, then one value for each name in `drawn`, in order."""

    def draw(one: Draw) -> Case:
        words: dict[str, object] = {"severity": round(one.severity), "rest": one.rest}
        if "{gpu}" in fault or "{nic}" in fault:
            words["gpu"] = words["nic"] = one.gpu()  # each GPU has its own network card
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
    either present or not. `missing`: why nothing can be drawn yet.
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
        """The class's key, such as `7`, its look-alike `7t` or the variant `18n`."""
        return f"{self.number}{self.variant}{'t' if self.trap else ''}"


def generator(*words: object) -> Random:
    """Return a random generator seeded by these words, identical on every machine."""
    return Random("/".join(str(word) for word in words))  # noqa: S311 - nothing here is a secret


def draw_case(entry: Entry, rng: Random, *, graded: bool) -> tuple[Draw, Case]:
    """Draw a SKU, a severity and a case of this class; deterministic for a given generator state."""
    assert entry.draw is not None
    span = entry.graded if graded else entry.clear
    drawn = Draw(rng, rng.choice(entry.skus), rng.uniform(*span) if span else 0.0)
    return drawn, entry.draw(drawn)
