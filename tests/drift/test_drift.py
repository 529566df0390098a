"""Comparison of facts with expectations: differences and unknown values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.desired.expectations import Expectation
from provision.drift.drifts import FleetDrifts, drifts
from provision.remote.reach.observe import Observation
from provision.shared_facts import Pool

WANTED = Expectation("nccl", "package.libnccl2.version", "equals", "2", "pinned")


def test_what_holds_is_no_drift() -> None:
    assert drifts([WANTED], Observation("n", {"package.libnccl2.version": "2"})) == []


def test_what_differs_is_one() -> None:
    (drift,) = drifts([WANTED], Observation("n", {"package.libnccl2.version": "1"}))
    assert (drift.node, drift.expectation, drift.found, drift.unknown) == ("n", WANTED, "1", False)


@pytest.mark.parametrize(
    ("problems", "problem"),
    [
        ({"package.libnccl2.version": "timed out"}, "timed out"),
        ({"package.libnccl2": "timed out"}, "timed out"),
        ({"package": "dpkg is locked"}, "dpkg is locked"),
        ({}, "did not answer"),
        ({"service": "x"}, "did not answer"),
    ],
)
def test_what_could_not_be_read_is_unknown(problems: dict[str, str], problem: str) -> None:
    (drift,) = drifts([WANTED], Observation("n", {}, problems))
    assert drift.unknown
    assert problem in drift.problem


@pytest.mark.parametrize("value", [None, "2"])
def test_an_unread_fact_never_holds(value: Any) -> None:
    """Even if the fact should be absent, unknown is not absent."""
    wanted = Expectation("r", "file./x.content", "equals", value, "why")
    (drift,) = drifts(
        [wanted], Observation("n", {"file./x.content": value}, {"file./x.content": "permission denied"})
    )
    assert drift.unknown


names = st.sampled_from(["a", "b", "c.x", "c.y"])
values = st.none() | st.booleans() | st.sampled_from([0, 1, "1", "2", [1], [True]])
wanted = st.lists(
    st.builds(Expectation, st.just("r"), names, st.sampled_from(["equals", "one_of"]), values, st.just("w"))
)
answers = st.lists(
    st.tuples(
        st.dictionaries(names, values),
        st.just({}) | st.dictionaries(st.sampled_from(["a", "c", "c.x"]), st.just("cut off"), max_size=1),
    ),
    max_size=8,
)


@given(st.lists(wanted, min_size=1, max_size=2), answers, st.lists(st.integers(0, 1), min_size=8, max_size=8))
def test_a_fleet_compared_at_once_is_each_node_compared(
    lists: list[list[Expectation]], answers: list[tuple[dict[str, Any], dict[str, str]]], which: list[int]
) -> None:
    lists = [
        [replace(one, value=[one.value]) if one.operator == "one_of" else one for one in expected]
        for expected in lists
    ]
    pool, fleet = Pool(), FleetDrifts()
    for place, (facts, problems) in enumerate(answers):
        expected = lists[which[place] % len(lists)]
        alone = drifts(expected, Observation(f"n{place}", facts, problems))
        assert fleet.of(expected, Observation(f"n{place}", pool.of(facts), problems)) == alone


def test_what_nodes_have_in_common_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [Expectation("r", f"fact.{number}", "equals", number, "why") for number in range(100)]
    pool, fleet = Pool(), FleetDrifts()
    facts = [
        pool.of({f"fact.{number}": number for number in range(100)} | {"fact.7": own}) for own in (7, 1, 2)
    ]
    compared: list[str] = []
    holds = Expectation.holds

    def counted(self: Expectation, found: Any) -> bool:
        compared.append(self.fact)
        return holds(self, found)

    monkeypatch.setattr(Expectation, "holds", counted)
    assert [[drift.found for drift in fleet.of(expected, Observation("n", each))] for each in facts[1:]] == [
        [1],
        [2],
    ]
    assert len(compared) == 100 + 2
