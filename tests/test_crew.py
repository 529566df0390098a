"""The crew: every node gets a result, whatever its work does."""

from __future__ import annotations

import threading

import pytest

from provision import crew as module
from provision.crew import Crew
from provision.node_error import NodeError


def gathered(crew: Crew[str]) -> dict[str, str | NodeError]:
    found: dict[str, str | NodeError] = {}
    while crew.unfinished:
        for done in crew.gather(wait=0.2):
            assert done.name not in found
            found[done.name] = done.result
    return found


def test_every_node_gets_its_result_a_few_at_a_time() -> None:
    at_work, most = 0, 0
    lock = threading.Lock()

    def work(name: str) -> str:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        with lock:
            at_work -= 1
        return name.upper()

    names = [f"n{number}" for number in range(50)]
    assert gathered(Crew(names, work, seconds=10, threads=4)) == {name: name.upper() for name in names}
    assert most <= 4


def test_trouble_of_one_is_not_trouble_of_another() -> None:
    def work(name: str) -> str:
        if name == "known":
            raise NodeError("auth", "no", "do")
        if name == "bug":
            raise KeyError("oops")
        return "fine"

    found = gathered(Crew(["known", "bug", "good"], work, seconds=10, threads=1))
    assert found["good"] == "fine"
    assert isinstance(found["known"], NodeError)
    assert found["known"].kind == "auth"
    assert isinstance(found["bug"], NodeError)
    assert "KeyError" in found["bug"].what


def test_a_thread_that_never_returns_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and the first node takes it away: the others are done all the same."""
    monkeypatch.setattr(module, "LATE", 0.1)
    stuck = threading.Event()

    def work(name: str) -> str:
        if name == "stuck":
            stuck.wait(60)
        return "fine"

    crew = Crew(["stuck", "a", "b"], work, seconds=0.1, threads=1)
    found = gathered(crew)
    stuck.set()
    assert isinstance(found["stuck"], NodeError)
    assert found["stuck"].kind == "hung"
    assert (found["a"], found["b"]) == ("fine", "fine")


def test_nothing_more_is_started_once_it_is_stopped() -> None:
    started: list[str] = []
    go = threading.Event()

    def work(name: str) -> str:
        started.append(name)
        go.wait(60)
        return name

    crew = Crew(["a", "b", "c"], work, seconds=60, threads=1)
    crew.stop()
    go.set()
    first = [done.name for done in crew.gather(wait=10)]
    assert set(first) <= {"a"}
    assert set(started) <= {"a"}
