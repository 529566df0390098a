"""Schedules of disjoint pairs: partners, number of rounds, and limits of the diagnosis."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.pairs.pairing import (
    RACK,
    Pair,
    Topology,
    across,
    exhaustive,
    exhaustive_rounds,
    limits,
    minutes,
    topology,
    within,
)
from provision.errors import InventoryError
from tests.support.fabric import racked


@st.composite
def fleets(draw: st.DrawFn, most: int = 60) -> Topology:
    """Draw racks of any size, known for all, some or none of the nodes."""
    names = tuple(f"n{i}" for i in range(draw(st.integers(0, most))))
    racks = draw(st.lists(st.integers(0, 9), min_size=len(names), max_size=len(names)))
    known = draw(st.sampled_from(["all", "some", "none"]))
    every = {"all": 1, "some": 2, "none": 99}[known]
    pairs = enumerate(zip(names, racks, strict=True))
    return Topology(names, {name: f"r{rack}" for i, (name, rack) in pairs if i % every == 0 and every < 99})


def nodes_of(pairs: tuple[Pair, ...]) -> list[str]:
    return [node for pair in pairs for node in pair]


@given(fleets())
def test_two_rounds_measure_every_node_each_with_two_partners(fleet: Topology) -> None:
    first = across(fleet)
    second = within(fleet, first)
    for pairs in (first, second):
        assert len(set(nodes_of(pairs))) == 2 * len(pairs), "a node in two pairs at once"
    assert not {frozenset(pair) for pair in first} & {frozenset(pair) for pair in second}
    if len(fleet.nodes) > 2:
        assert len(first) == len(second) == len(fleet.nodes) // 2
        assert {*nodes_of(first), *nodes_of(second)} == set(fleet.nodes)


def test_the_first_round_crosses_racks_and_the_second_does_not() -> None:
    fleet = racked(64, 8)
    first = across(fleet)
    assert all(fleet.spans(pair) for pair in first)
    assert not any(fleet.spans(pair) for pair in within(fleet, first))


def test_each_rack_meets_as_many_others_as_it_can() -> None:
    """A bad uplink must not look like that of the rack it was measured with."""
    fleet = racked(64, 8)
    met = Counter(frozenset(fleet.racks[node] for node in pair) for pair in across(fleet))
    assert len(met) == 8 * 7 // 2
    assert max(met.values()) == 2


def test_a_rack_that_holds_most_nodes_fills_up_with_pairs_of_its_own() -> None:
    fleet = Topology(("a", "b", "c", "d", "e", "x"), dict.fromkeys("abcde", "r1") | {"x": "r2"})
    first = across(fleet)
    assert len(first) == 3
    assert [fleet.spans(pair) for pair in first] == [True, False, False]


def test_one_node_has_no_pair_and_two_have_one() -> None:
    assert across(racked(1, 8)) == within(racked(1, 8), ()) == across(racked(0, 8)) == ()
    two = racked(2, 8)
    assert across(two) == (("n0", "n1"),)
    assert within(two, across(two)) == ()


@given(st.integers(0, 33))
def test_the_exhaustive_schedule_meets_every_pair_once(count: int) -> None:
    rounds = list(exhaustive([f"n{i}" for i in range(count)]))
    pairs = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(rounds) == exhaustive_rounds(count)
    assert len(set(pairs)) == len(pairs) == count * (count - 1) // 2
    assert all(len(set(nodes_of(pairs))) == 2 * len(pairs) for pairs in rounds)


def test_the_exhaustive_schedule_is_priced_in_minutes() -> None:
    assert minutes(exhaustive_rounds(64), 20) == 21
    assert minutes(exhaustive_rounds(65), 60) == 65


def test_racks_are_read_from_inventory_variables() -> None:
    fleet = topology({"a": {RACK: "r1"}, "b": {RACK: 7}, "c": {}, "d": {RACK: " r1 "}})
    assert fleet.nodes == ("a", "b", "c", "d")
    assert fleet.members == {"r1": ("a", "d"), "7": ("b",)}


@pytest.mark.parametrize("value", [True, "", "  ", ["r1"], {"name": "r1"}, 1.5])
def test_a_rack_that_is_no_name_is_refused(value: object) -> None:
    with pytest.raises(InventoryError, match=f"n1: {RACK} must be a name or a whole number"):
        topology({"n1": {RACK: value}})


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        (racked(1, 1), "there is no pair"),
        (racked(2, 2), "two nodes have one pair"),
        (Topology(("a", "b", "c", "d")), f"no node has {RACK}"),
        (Topology(("a", "b", "c", "d"), {"a": "r1", "b": "r1", "c": "r1"}), f"{RACK} is missing on d"),
        (racked(8, 8), "no pair crosses an uplink"),
        (racked(16, 8), "two racks"),
        (
            Topology(("a", "b", "c", "d"), {"a": "r1", "b": "r1", "c": "r1", "d": "r2"}),
            "d: the only node of its rack",
        ),
        (racked(9, 3), "rack r[0-2]: fewer than 4 nodes"),
    ],
)
def test_what_cannot_be_told_apart_is_said(fleet: Topology, said: str) -> None:
    assert any(said in line for line in limits(fleet)), limits(fleet)


def test_a_fleet_that_can_tell_everything_apart_has_nothing_to_say() -> None:
    assert limits(racked(64, 8)) == ()
