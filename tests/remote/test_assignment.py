"""Assignment of nodes to workers and abandoning of units: pure decisions with an explicit clock."""

from __future__ import annotations

import math
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.remote.workers.assignment import (
    LEASE,
    MARGIN,
    PATIENCE,
    RETURN,
    SILENCE,
    Fate,
    Known,
    fate,
    spread,
)

WORKERS = ("a", "b", "c")


def test_nodes_are_spread_evenly_and_those_without_a_choice_come_first() -> None:
    candidates = {f"n{number}": ["a", "b"] for number in range(6)} | {"own1": ["a"], "own2": ["a"]}
    shares, stranded = spread(candidates, {})
    assert stranded == {}
    assert {worker: len(nodes) for worker, nodes in shares.items()} == {"a": 4, "b": 4}
    assert shares["a"][-2:] == ["own1", "own2"]  # each worker's nodes stay in inventory order


def test_nodes_of_a_worker_that_cannot_be_used_go_to_another_or_are_left_with_its_name() -> None:
    shares, stranded = spread({"n1": ["a", "b"], "n2": ["a"], "n3": ["b"]}, {"a": "it is gone"})
    assert shares == {"b": ["n1", "n3"]}
    assert stranded == {"n2": "a"}


def test_what_workers_do_already_counts() -> None:
    shares, _ = spread({f"n{number}": ["a", "b"] for number in range(4)}, {}, {"a": 3, "c": 9})
    assert shares == {"b": ["n0", "n1", "n2"], "a": ["n3"]}


@given(
    candidates=st.dictionaries(
        st.integers(0, 60).map(str), st.lists(st.sampled_from(WORKERS), min_size=1, unique=True), max_size=60
    ),
    unusable=st.sets(st.sampled_from(WORKERS)),
)
def test_every_node_is_somebodys_or_left_and_no_two_free_workers_differ_by_two(
    candidates: dict[str, list[str]], unusable: set[str]
) -> None:
    shares, stranded = spread(candidates, dict.fromkeys(unusable, "x"))
    done = Counter(node for nodes in shares.values() for node in nodes)
    assert set(done) | set(stranded) == set(candidates)
    assert not set(done) & set(stranded)
    assert set(done.values()) <= {1}
    for worker, nodes in shares.items():
        assert worker not in unusable
        assert all(worker in candidates[node] for node in nodes)
    if all(len(set(names) - unusable) in (0, 3) for names in candidates.values()) and shares:
        counts = [len(shares.get(worker, ())) for worker in WORKERS]
        assert max(counts) - min(counts) <= 1


def test_a_hundred_thousand_nodes_are_assigned_in_a_moment() -> None:
    workers = [f"w{number}" for number in range(40)]
    candidates = {f"n{number}": workers[number % 8 * 5 :][:5] for number in range(100_000)}
    began = time.process_time()
    shares, _ = spread(candidates, {})
    assert time.process_time() - began < 5
    assert {len(nodes) for nodes in shares.values()} == {2500}


def known(
    silent: float,
    *,
    route: bool,
    lease: float | None = LEASE,
    left: float = 3600.0,
    ending: bool = False,
    back: float = math.inf,
) -> Known:
    """`back`: seconds since a route to the worker exists again."""
    return Known(1000.0 - silent, 1000.0 + left, lease, route, ending, 1000.0 - back)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (known(SILENCE, route=True), Fate.WAIT),
        (known(SILENCE + 1, route=True), Fate.STOP),  # it hangs, and its worker can be contacted
        (known(SILENCE + 1, route=True, ending=True), Fate.LOST),
        (known(300, route=True, lease=None, back=1), Fate.WAIT),  # Receptor has not requested more output yet
        (known(300, route=True, lease=None, back=RETURN + 1), Fate.STOP),
        (known(SILENCE + 1, route=False), Fate.WAIT),  # cut off: it may still be working
        (known(LEASE + MARGIN, route=False), Fate.WAIT),
        (known(LEASE + MARGIN + 1, route=False), Fate.LOST),  # it has ended by itself
        (known(LEASE + MARGIN + 1, route=False, lease=None), Fate.WAIT),  # no other worker can do it
        (known(PATIENCE + 1, route=False, lease=None), Fate.LEFT),
        (known(LEASE, route=False, lease=None, left=-MARGIN - 1), Fate.LOST),  # past its deadline
        (known(1, route=True, left=-MARGIN - 1), Fate.LOST),
    ],
)
def test_a_unit_is_given_up_only_when_it_cannot_be_at_work_any_more(unit: Known, expected: Fate) -> None:
    assert fate(unit, 1000.0) is expected
