"""The thread pool: every node gets a result, and concurrency rises while that helps."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from provision.remote.protocol import NodeError
from provision.remote.ssh import pool as module
from provision.remote.ssh.pool import Concurrency, HostPool


def gathered(pool: HostPool[str]) -> dict[str, str | NodeError]:
    found: dict[str, str | NodeError] = {}
    while pool.unfinished:
        for done in pool.gather(wait=0.2):
            assert done.name not in found
            found[done.name] = done.result
    return found


class AtWork:
    """Counts the active workers, now and at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_every_node_gets_its_result_a_few_at_a_time() -> None:
    at_work = AtWork()

    def work(name: str) -> str:
        with at_work:
            return name.upper()

    names = [f"n{number}" for number in range(50)]
    assert gathered(HostPool(names, work, seconds=10, threads=4)) == {name: name.upper() for name in names}
    assert at_work.most <= 4


def test_trouble_of_one_is_not_trouble_of_another() -> None:
    def work(name: str) -> str:
        if name == "known":
            raise NodeError("auth", "no", "do")
        if name == "bug":
            raise KeyError("oops")
        return "fine"

    found = gathered(HostPool(["known", "bug", "good"], work, seconds=10, threads=1))
    assert found["good"] == "fine"
    assert isinstance(found["known"], NodeError)
    assert found["known"].kind == "auth"
    assert isinstance(found["bug"], NodeError)
    assert "KeyError" in found["bug"].what


def test_a_thread_that_never_returns_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread, blocked by the first node, all other nodes still finish."""
    monkeypatch.setattr(module, "LATE", 0.1)
    stuck = threading.Event()

    def work(name: str) -> str:
        if name == "stuck":
            stuck.wait(60)
        return "fine"

    pool = HostPool(["stuck", "a", "b"], work, seconds=0.1, threads=1)
    results = gathered(pool)
    stuck.set()
    assert isinstance(results["stuck"], NodeError)
    assert results["stuck"].kind == "hung"
    assert (results["a"], results["b"]) == ("fine", "fine")


def test_other_threads_may_run_whenever_garbage_is_collected() -> None:
    """Other threads run if a finalizer is written in Python, as paramiko's are."""
    caller = threading.get_ident()

    def collected(phase: str, _info: object) -> None:
        if phase == "start" and threading.get_ident() == caller:
            time.sleep(0.0001)

    def work(name: str) -> str:
        time.sleep(0.001)
        return name

    names = [f"n{number}" for number in range(8000)]
    pool, results, kept = HostPool(names, work, seconds=60, threads=64), dict[str, object](), list[object]()
    usual = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(20)
    try:
        while pool.unfinished:
            # Python reuses freed pairs; only without any does it allocate one, and collect.
            gc.disable()
            kept.append([(number, number) for number in range(2500)])
            gc.enable()
            results.update((done.name, done.result) for done in pool.gather(0.01))
    finally:
        gc.enable()
        gc.set_threshold(*usual)
        gc.callbacks.remove(collected)
    assert results == {name: name for name in names}


def test_nothing_more_is_started_once_it_is_stopped() -> None:
    started: list[str] = []
    go = threading.Event()

    def work(name: str) -> str:
        started.append(name)
        go.wait(60)
        return name

    pool = HostPool(["a", "b", "c"], work, seconds=60, threads=1)
    pool.stop()
    go.set()
    first = [done.name for done in pool.gather(wait=10)]
    assert set(first) <= {"a"}
    assert set(started) <= {"a"}


def test_more_are_asked_at_once_when_all_that_takes_time_is_the_way() -> None:
    """Every node takes 0.2 s of pure waiting, as over a slow network."""
    at_work = AtWork()

    def work(name: str) -> str:
        with at_work:
            time.sleep(0.2)
        return name

    names = [f"n{number}" for number in range(1200)]
    assert len(gathered(HostPool(names, work, seconds=60, threads=300))) == 1200
    assert 64 < at_work.most <= 300


def test_nodes_that_are_slow_beside_the_others_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many nodes hang as run concurrently; they end only after all others."""
    monkeypatch.setattr(module, "AT_LEAST", 0.1)
    monkeypatch.setattr(module, "AT_FIRST", 0.02)
    others = threading.Semaphore(0)

    def work(name: str) -> str:
        if name.startswith("slow"):
            assert others.acquire(timeout=50)
        return name

    names = [*(f"slow{number}" for number in range(64)), *(f"n{number}" for number in range(300))]
    pool = HostPool(names, work, seconds=60, threads=200)
    done: list[str] = []
    while pool.unfinished:
        done += [each.name for each in pool.gather(wait=0.2)]
        if len(done) == 300 and pool.unfinished == 64:
            assert sorted(pool.awaited) == sorted(names[:64])
            others.release(64)
    assert not any(name.startswith("slow") for name in done[:300])


def test_nobody_is_awaited_while_others_wait_for_their_turn() -> None:
    go = threading.Event()

    def work(name: str) -> str:
        go.wait(60)
        return name

    pool = HostPool(["a", "b"], work, seconds=60, threads=1)
    assert pool.awaited == []
    go.set()
    assert gathered(pool) == {"a": "a", "b": "b"}
    assert pool.awaited == []


def climb(concurrency: Concurrency, rate: Callable[[int], float], cpu_of_one: float = 0.0) -> list[int]:
    """Return the concurrency levels visited; `rate`: nodes per second at each level."""
    numbers = [concurrency.now]
    for _ in range(10):
        seconds = concurrency.now / rate(concurrency.now)
        concurrency.observe(seconds, concurrency.now, concurrency.now * cpu_of_one)
        if concurrency.now != numbers[-1]:
            numbers.append(concurrency.now)
    return numbers


def test_it_grows_to_the_limit_while_only_time_on_the_way_is_waited_for() -> None:
    assert climb(Concurrency(500), lambda now: now / 1.5) == [64, 128, 256, 500]


def test_it_goes_back_where_more_are_not_faster() -> None:
    assert climb(Concurrency(500), lambda now: min(now / 1.5, 70)) == [64, 128, 256, 128]


def test_it_stops_where_our_own_processor_is_the_limit() -> None:
    """At 5 ms each, 200 nodes per second fill a core."""
    assert climb(Concurrency(500), lambda now: min(now / 0.5, 200), cpu_of_one=0.005) == [
        64,
        128,
    ]


@pytest.mark.parametrize("limit", [1, 7, 64])
def test_the_limit_is_never_passed(limit: int) -> None:
    assert climb(Concurrency(limit), lambda now: now) == [limit]
