"""Expectations against facts: what differs, and what is not known."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired.expectations import Expectation
from provision.drift.drifts import drifts
from provision.remote.observe import Observation

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
    """Even where absence is what is wanted: not knowing is not absence."""
    wanted = Expectation("r", "file./x.content", "equals", value, "why")
    (drift,) = drifts(
        [wanted], Observation("n", {"file./x.content": value}, {"file./x.content": "permission denied"})
    )
    assert drift.unknown
