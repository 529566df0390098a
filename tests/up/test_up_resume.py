"""The locks of `up`: it waits for work that a killed run left behind, and does nothing without a lock."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from provision.remote.reach.fleet_lock import Answer, LockedError
from provision.up import resume
from provision.up.result import Status
from provision.up.resume import locked


class Lock:
    """A lock that replays scripted answers: node → its answers; the last one repeats."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.answers = answers
        self.did: list[str] = []
        self.running: dict[str, tuple[str, ...]] = {}
        self.left: tuple[str, ...] = ()

    refusals = 0
    nodes = ()

    def take(self, nodes: Collection[str]) -> dict[str, Answer]:
        self.did.append(f"take {' '.join(nodes)}")
        if self.refusals:
            self.refusals -= 1
            raise LockedError("somebody is at work there")
        return {node: said.pop(0) if len(said := self.answers[node]) > 1 else said[0] for node in nodes}

    def keep(self) -> None:
        self.did.append("keep")

    def lend(self, _nodes: Collection[str]) -> dict[str, Any]:
        return {"nodes": []}

    def release(self) -> tuple[str, ...]:
        self.did.append("release")
        self.left = ("b",)
        return self.left


def hold(lock: Any, nodes: list[str], heard: list[str]) -> Any:
    return locked(lock, nodes, say=heard.append, pause=lambda _seconds: None)


def test_what_an_earlier_run_left_running_is_waited_for() -> None:
    busy = Answer("a", "taken", busy=("4711 apt-get", "4712 dpkg"))
    lock, heard = Lock(a=[busy, busy, Answer("a", "mine")], b=[Answer("b", "taken")]), list[str]()
    with hold(lock, ["a", "b"], heard) as held:
        assert held.lost == {}
        assert lock.did == ["take a b", "keep", "take a", "take a"]
    assert heard[0] == "a: an earlier run is still at work there (4711 apt-get, 4712 dpkg); waiting for it"
    assert lock.did[-1] == "release"
    assert (
        heard[-1]
        == "b: the lock could not be released; it ends by itself within 30 min of the last work there"
    )


def test_a_refusal_may_be_a_passing_one_and_is_final_the_second_time() -> None:
    lock = Lock(a=[Answer("a", "taken")])
    lock.refusals = 1
    with hold(lock, ["a"], []):
        assert lock.did == ["take a", "take a", "keep"]
    lock.refusals = 2
    with pytest.raises(LockedError), hold(lock, ["a"], []):
        pytest.fail("nothing may be done without the lock")
    assert lock.did[-1] == "release"


def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "BUSY_SECONDS", 60)
    lock = Lock(a=[Answer("a", "taken", busy=("4711 apt-get",))], b=[Answer("b", "taken")])
    with hold(lock, ["a", "b"], []) as held:
        assert held.lost["a"].status is Status.NOT_ATTEMPTED
        assert held.lost["a"].message == "after 1 min an earlier run still has running there: 4711 apt-get"


def test_a_node_without_a_lock_is_left_out() -> None:
    lock = Lock(a=[Answer("a", error="no route", unreachable=True)], b=[Answer("b", error="a full disk")])
    with hold(lock, ["a", "b"], []) as held:
        assert {node: result.status for node, result in held.lost.items()} == {
            "a": Status.UNREACHABLE,
            "b": Status.UNREADABLE,
        }


def test_locks_are_given_back_after_a_bug() -> None:
    lock = Lock(a=[Answer("a", "taken")])
    with pytest.raises(ZeroDivisionError), hold(lock, ["a"], []):
        raise ZeroDivisionError
    assert lock.did[-1] == "release"
