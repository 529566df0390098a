"""Timestamps on the controller's clock, however wrong a node's clock is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provision.burnin.own_findings import _clocks
from provision.burnin.spool import Event
from provision.burnin.timeline import Clock, Contact
from provision.checks.judge import Verdict

OURS = 1_795_000_000.0  # boot time of the node on our clock


def said(up: float, wrong: float, boot: str = "b1", booted: float = OURS) -> Event:
    return Event(booted + up + wrong, up, boot, "step")


@given(st.floats(-1e7, 1e7), st.lists(st.floats(0, 1e5), min_size=1, max_size=20), st.floats(-3600, 3600))
def test_a_clock_that_is_wrong_and_jumps_moves_nothing(wrong: float, ups: list[float], jump: float) -> None:
    """One contact during that boot is enough."""
    events = [said(up, wrong + (jump if up > 5e4 else 0.0)) for up in sorted(ups)]
    clock = Clock([Contact(OURS + 1e5, OURS + 1e5 + wrong, 1e5, "b1")], events)
    for event in events:
        assert abs(clock.at(event.boot, event.t, event.up) - (OURS + event.up)) < 1e-3


def test_a_boot_nobody_spoke_with_is_dated_by_what_the_node_was_off_by_later() -> None:
    before = said(100.0, 3600.0)
    after = said(50.0, 3600.0, "b2", OURS + 500)
    clock = Clock([Contact(OURS + 560, OURS + 560 + 3600, 60.0, "b2")], [before, after])
    assert clock.at("b1", before.t, before.up) == OURS + 100
    assert clock.at("b2", after.t, after.up) == OURS + 550


def test_without_any_contact_the_node_is_believed() -> None:
    event = said(100.0, 0.0)
    assert Clock([], [event]).at("b1", event.t, event.up) == OURS + 100


def test_clocks_that_are_far_apart_are_a_warning() -> None:
    assert _clocks(Clock([Contact(OURS, OURS + 29, 1.0, "b1")], [])) == []
    (reported,) = _clocks(Clock([Contact(OURS, OURS - 7200, 1.0, "b1")], []))
    assert reported.finding.verdict is Verdict.WARN
    assert "2 h 0 min behind the controller's" in reported.finding.message
