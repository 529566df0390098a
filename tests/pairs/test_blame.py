"""What a measurement passes through, what a good one clears, and what a second bad one proves."""

from __future__ import annotations

from provision.checks.pairs.blame import Kind, Part, blame, parts
from provision.checks.pairs.judge import Grade, Judged
from provision.checks.pairs.pairing import Result, Topology

FLEET = Topology(("a", "b", "c", "d", "e", "x"), {"a": "r1", "b": "r1", "c": "r2", "d": "r2", "e": "own"})


def kinds(nodes: tuple[str, ...]) -> tuple[set[tuple[str, ...]], set[tuple[str, ...]]]:
    """Sure and possible parts beside the nodes, as (kind, name, …)."""
    through = parts(FLEET, nodes)
    left = (Kind.NODE, Kind.CHANCE)
    return (
        {(part.kind, *part.names) for part in through.sure if part.kind not in left},
        {(part.kind, *part.names) for part in through.possible},
    )


def row(grade: Grade, *nodes: str, round_: int = 1, rail: str = "", end: str = "") -> Judged:
    return Judged(Result(nodes, round_, value=1.0, rail=rail, end=end), grade)


def test_within_a_rack_there_is_a_leaf_and_no_uplink() -> None:
    assert kinds(("b", "a")) == ({("leaf", "r1"), ("link", "a", "b")}, set())


def test_across_racks_there_are_both_uplinks_and_the_path_between() -> None:
    sure, possible = kinds(("a", "c"))
    leaves = {("leaf", "r1"), ("leaf", "r2"), ("uplink", "r1"), ("uplink", "r2")}
    assert sure == leaves | {("path", "r1", "r2"), ("link", "a", "c")}
    assert possible == {("bundle", "r1"), ("bundle", "r2")}, "a pair that passes does not clear all uplinks"


def test_with_a_node_of_unknown_rack_an_uplink_is_possible_and_not_cleared() -> None:
    assert kinds(("a", "x")) == (
        {("leaf", "r1"), ("link", "a", "x")},
        {("uplink", "r1"), ("bundle", "r1")},
    )


def test_the_leaf_of_a_node_alone_in_its_rack_is_the_nodes() -> None:
    sure, _ = kinds(("a", "e"))
    assert ("leaf", "own") not in sure
    assert ("uplink", "own") not in sure
    assert ("uplink", "r1") in sure


def test_it_takes_a_second_measurement_with_another_partner() -> None:
    good = [row(Grade.OK, "b", "c", round_=2), row(Grade.OK, "d", "x", round_=2)]
    once = [*good, row(Grade.BAD, "a", "b")]
    again = [*once, row(Grade.BAD, "a", "b", round_=3)]
    other = [*once, row(Grade.BAD, "a", "d", round_=3)]
    for judged in (once, again):
        found = blame(FLEET, judged)
        assert found.culprits == ()
        assert Part(Kind.NODE, ("a",)) in found.open[0].suspects
        assert Part(Kind.LINK, ("a", "b")) in found.open[0].suspects
    assert blame(FLEET, other).culprits == (Part(Kind.NODE, ("a",)),)


def test_a_failed_end_is_bad_and_says_nothing_of_the_other() -> None:
    judged = [row(Grade.OK, "c", "d"), row(Grade.BAD, "a", "b", end="a")]
    found = blame(FLEET, [*judged, row(Grade.BAD, "a", "c", round_=2, end="a")])
    assert found.culprits == (Part(Kind.NODE, ("a",)),)
    assert not found.settled("b")
    assert found.settled("c")


def test_a_good_rail_clears_the_node_and_not_its_other_rails() -> None:
    judged = [row(Grade.OK, "a", "b", rail="0"), row(Grade.BAD, "a", "b", rail="1")]
    judged += [row(Grade.OK, "b", "c", rail=rail, round_=2) for rail in "01"]
    found = blame(FLEET, judged)
    assert Part(Kind.NODE, ("a",)) in found.cleared
    assert not found.settled("a")
    assert found.settled("b")
    assert Part(Kind.NODE, ("a",), "1") in found.open[0].suspects
