"""Fault classes 38 and 39, which only show between nodes; tried on whole fleets (fleets.py)."""

from __future__ import annotations

from benchmarks.detection.cases import Case, Draw, Entry, Expected, FleetCase

SKUS = ("h100-sxm",)  # the nodes themselves are not checked
RACK = 8
CABLE = ("reseat or check cable",)
NODE = ("reseat or check cable", "investigate")


def _nodes(draw: Draw) -> int:
    return RACK * draw.rng.randint(4, 16)


def _between(draw: Draw) -> Case:
    """Draw a bad link, leaf switch or rack uplink."""
    count = _nodes(draw)
    rack = draw.rng.randrange(count // RACK)
    kind = draw.rng.choice(("link", "leaf", "uplink"))
    if kind != "link":
        fault: tuple[str, ...] = (kind, f"r{rack}")
        name = f"{kind} of rack r{rack}"
    else:
        # A link that the first round measures; the others are only met by the exhaustive schedule.
        fault, name = ("link", "first"), "link *"
    return Case(
        fleet=FleetCase(count, {fault: 1 - draw.severity}),
        expected=Expected((name,), CABLE, also=("nodes behind",)),
    )


def _once(draw: Draw) -> Case:
    count = _nodes(draw)
    number = draw.rng.randint(1, 2)
    return Case(fleet=FleetCase(count, {}, disturbed=((number, f"n{draw.rng.randrange(count)}"),)))


def _node(draw: Draw) -> Case:
    """Draw one to three bad nodes, each slow on all rails or one, or hanging."""
    count = _nodes(draw)
    bad = draw.rng.sample(range(count), draw.rng.randint(1, 3))
    faults: dict[tuple[str, ...], float | None] = {}
    for number in bad:
        kind = draw.rng.choice(("node", "port", "hang"))
        place = ("port", f"n{number}", "mlx5_1") if kind == "port" else ("node", f"n{number}")
        faults[place] = None if kind == "hang" else 1 - draw.severity
    return Case(
        fleet=FleetCase(count, faults), expected=Expected(tuple(f"n{number}" for number in bad), NODE)
    )


def _planned(draw: Draw) -> Case:
    """Draw uplinks that carry less than the racks can send, as the inventory declares."""
    times = draw.rng.choice((2.0, 4.0))
    racks = _nodes(draw) // RACK
    faults: dict[tuple[str, ...], float | None] = {("uplink", f"r{rack}"): 1 / times for rack in range(racks)}
    return Case(fleet=FleetCase(RACK * racks, faults, oversubscription=times))


ENTRIES = (
    Entry(38, "bad link, leaf or uplink between nodes", _between, "slowdown", (0.25, 0.9), (0.02, 0.3), SKUS),
    Entry(38, "one noisy pair, once", _once, skus=SKUS, trap=True),
    Entry(39, "bad nodes among many", _node, "slowdown", (0.25, 0.9), (0.02, 0.3), SKUS),
    Entry(39, "oversubscribed by design", _planned, skus=SKUS, trap=True),
)
