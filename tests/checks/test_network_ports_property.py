"""Tests of network_ports: port order changes no verdict, and an added bad port never improves it.

Ports that are bad only by comparison (rate, P_Key, MTU) are not drawn: they need a healthy majority.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.judge import Verdict
from tests.support.rdma_cards import DAY, Cards
from tests.support.seed import SEED, times

OFF: dict[str, Any] = {"state": "DOWN", "phys_state": "Disabled", "rate": 10, "link": None, "sm_lid": 0}
BADNESS = {Verdict.SKIP: 0, Verdict.PASS: 0, Verdict.WARN: 1, Verdict.ERROR: 2, Verdict.FAIL: 3}
# (changes of the port, changes of its counters): bad regardless of peers and uptime
ALONE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({**OFF, "netdev_up": False}, {}),
    ({**OFF, "phys_state": "Polling"}, {}),
    ({"state": "INIT"}, {}),
    ({"sm_lid": 0, "state": "ARMED"}, {}),
    ({"state": None}, {}),
    ({}, {"symbol_error": 65535}),
    ({}, {"port_rcv_errors": 65535}),
)
FLAPPING: tuple[dict[str, Any], dict[str, Any]] = (
    {},
    {"link_downed": 90},
)  # within 52 days, next to ports that never lost their link
BAD = (
    *ALONE,
    FLAPPING,
    ({}, {"link_downed": 255}),
    ({}, {"port_rcv_errors": 60000}),
    ({"carrier_downs": 900}, {"link_downed": 90}),
    ({}, {"symbol_error": None}),
)


def drawn(rng: random.Random) -> tuple[Cards, dict[str, Any]]:
    """Draw a node in any state, and its declared variables."""
    cards = Cards()
    if rng.random() < 0.4:
        cards.roce()
        cards.counters, cards.cards = cards.counters[:8], cards.cards[:8]
    cards.uptime = rng.choice((600, 5 * 3600, 20 * DAY, 52 * DAY, 900 * DAY))
    keep = rng.randint(1, 8)
    for rows in (cards.ports, cards.counters, cards.cards):
        del rows[keep:8]
    del cards.functions[keep:8]
    if rng.random() < 0.3:  # two kinds of cards in equal number, so that the ones with traffic are unknown
        for port in cards.ports[(keep + 1) // 2 : keep]:
            port["board_id"] = "MT_0000000223"
    bad = range(keep) if rng.random() < 0.2 else rng.sample(range(keep), rng.randint(0, keep // 2))
    same = rng.choice(BAD) if rng.random() < 0.5 else None
    if rng.random() < 0.25:
        cards.uptime, same = 52 * DAY, FLAPPING
    for number in bad:
        change, counts = same or rng.choice(BAD)
        cards.ports[number].update(change)
        cards.counters[number].update(counts)
    if rng.random() < 0.3:
        hours = rng.choice((0.2, 5, 24, 26))
        rows = [{**row, "carrier_downs": rng.choice((None, 0, 900))} for row in cards.counters]
        for row in rows:
            row["link_downed"] = rng.choice((0, 90, 255))
        then = max(0, cards.uptime - round(hours * 3600))
        cards.earlier = [{**row, "uptime": then} for row in rows]
    declared = [
        {"device": port["device"], "link_layer": port["link_layer"]}
        for port in cards.ports[:keep]
        if rng.random() < 0.5
    ]
    return cards, {"rdma_expected_ports": declared} if declared and rng.random() < 0.4 else {}


def add(cards: Cards, variables: dict[str, Any], rng: random.Random) -> None:
    """Append a bad port like those between nodes, declared if they are."""
    device = "mlx5_20"
    change, counts = rng.choice((*ALONE, *[FLAPPING] * 3) if _one_is_well(cards) else ALONE)
    cards.ports.append({**cards.ports[0], **Cards.port(device), **_kind(cards.ports[0], device), **change})
    cards.counters.append({**dict.fromkeys(cards.counters[0], 0), "device": device, "port": "1", **counts})
    cards.cards.append({**cards.cards[0], "device": device})
    cards.functions.append({**cards.functions[0], "device": device, "address": "0000:f0:00.0"})
    cards.mtus[f"{device}/1"] = 4096
    if variables:
        declared = [*variables["rdma_expected_ports"], {"device": device, "link_layer": "InfiniBand"}]
        variables["rdma_expected_ports"] = declared


def _one_is_well(cards: Cards) -> bool:
    """Whether a port of the first port's kind is up and never was down, so that a flapping one is bad."""
    first = cards.ports[0]
    up = {
        port["device"]
        for port in cards.ports
        if port["state"] == "ACTIVE" and port["carrier_downs"] in (None, 1)
        if (port["link_layer"], port["board_id"]) == (first["link_layer"], first["board_id"])
    }
    well = any(row["device"] in up and row["link_downed"] == 0 for row in cards.counters)
    return well and (cards.uptime or 0) <= 52 * DAY


def _kind(port: dict[str, Any], device: str) -> dict[str, Any]:
    if port["link_layer"] == "InfiniBand":
        return {}
    names = ("link_layer", "pkeys", "netdev_up", "carrier_downs", "roce_v2_ipv4", "gids")
    return {**{name: port[name] for name in names}, "sm_lid": 0, "netdev": f"{device}e", "netdev_up": True}


def severity(cards: Cards, variables: dict[str, Any]) -> int:
    return max(BADNESS[finding.verdict] for finding in cards.judge(**variables))


def each(check: Callable[[Cards, dict[str, Any], random.Random], None]) -> None:
    for number in range(times(300, 20_000)):
        rng = random.Random(f"{SEED} {number}")  # noqa: S311 - a test's draws
        cards, variables = drawn(rng)
        try:
            check(cards, variables, rng)
        except AssertionError as error:
            raise AssertionError(f"case {number} of seed {SEED}: {error}\n{cards.ports}") from error


@pytest.mark.timeout(3600)  # 20,000 cases in the long run
def test_the_order_of_ports_changes_nothing() -> None:
    def check(cards: Cards, variables: dict[str, Any], rng: random.Random) -> None:
        before = sorted(cards.flagged(**variables), key=repr)
        for rows in (cards.ports, cards.counters, cards.cards, cards.functions):
            rng.shuffle(rows)
        assert sorted(cards.flagged(**variables), key=repr) == before

    each(check)


@pytest.mark.timeout(3600)
def test_one_more_bad_port_never_improves_the_verdict() -> None:
    def check(cards: Cards, variables: dict[str, Any], rng: random.Random) -> None:
        before = severity(cards, variables)
        add(cards, variables, rng)
        assert severity(cards, variables) >= before

    each(check)
