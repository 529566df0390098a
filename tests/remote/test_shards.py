"""A playbook divided over several ansible-playbook processes gives the same results as a single one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import pytest

from provision import paths
from provision.errors import GpuprovError, UsageError
from provision.remote.ansible import runner
from provision.remote.ansible.events import Event, Outcome
from provision.remote.ansible.runner import Interrupts, PlayOptions
from provision.remote.reach import partitions
from provision.remote.reach.partitions import run_sharded
from provision.remote.workers import LINK, Link, Worker
from provision.remote.workers.control import Control
from provision.remote.workers.mesh import Share
from provision.remote.workers.units import Way
from tests.support.plays import SHARDED, local, playbook, playing
from tests.support.processes import alive, line_of

ROOT = paths.PACKAGE.parent
PLAY = Path("play.yml")
HOSTS: dict[str, dict[str, Any]] = {f"n{number}": {} for number in range(10)}


def ok(hosts: Mapping[str, Any]) -> dict[str, Outcome]:
    return {name: Outcome(name, "ok") for name in hosts}


class Scripted:
    """A runner that records its arguments, sends three events per host and succeeds."""

    def __init__(self) -> None:
        self.called: dict[str, Any] = {}

    def __call__(
        self,
        _playbook: Path,
        hosts: Mapping[str, Any],
        /,
        *,
        on_event: Callable[[Event], None] | None = None,
        **options: Unpack[PlayOptions],
    ) -> dict[str, Outcome]:
        assert on_event is not None
        self.called = {"hosts": list(hosts), **options}
        for kind in ("started", "ok", "changed"):
            for name in hosts:
                on_event(Event(kind, name, "", "Task"))
        return ok(hosts)


def raising(error: BaseException) -> partitions.Run:
    def run(*_: Any, **__: Any) -> dict[str, Outcome]:
        raise error

    return run


def until_stopped(
    _playbook: Path, _hosts: Mapping[str, Any], *, interrupts: Interrupts | None = None, **_: Any
) -> dict[str, Outcome]:
    """Run until interrupted, as runner.run_playbook does."""
    assert interrupts is not None
    for _turn in range(600):
        if interrupts.count:
            raise KeyboardInterrupt
        time.sleep(0.05)
    raise AssertionError("nobody told this place to stop")


def test_every_host_is_played_at_one_place_and_its_events_come_in_order_in_this_thread() -> None:
    one, two, three = Scripted(), Scripted(), Scripted()
    heard: list[tuple[str, str]] = []
    threads: set[int] = set()

    def hear(event: Event) -> None:
        heard.append((event.node, event.kind))
        threads.add(threading.get_ident())

    outcomes = run_sharded(PLAY, HOSTS, on_event=hear, forks=8, places=[one, two, three], tags=["x"])
    assert list(outcomes) == list(HOSTS)
    assert sorted(one.called["hosts"] + two.called["hosts"] + three.called["hosts"]) == sorted(HOSTS)
    for name in HOSTS:
        assert [kind for node, kind in heard if node == name] == ["started", "ok", "changed"]
    assert threads == {threading.get_ident()}
    assert one.called["forks"] + two.called["forks"] + three.called["forks"] == 8
    assert three.called["tags"] == ["x"]


def test_what_stands_together_is_dealt_apart() -> None:
    dealt = partitions.partition(HOSTS, 2)
    assert [list(some) for some in dealt] == [
        [f"n{n}" for n in range(0, 10, 2)],
        [f"n{n}" for n in range(1, 10, 2)],
    ]


def test_a_place_with_more_rounds_to_go_gets_longer() -> None:
    one, two, three = Scripted(), Scripted(), Scripted()
    run_sharded(PLAY, HOSTS, forks=5, timeout=100, on_event=print, places=[one, two, three])
    for place in (one, two, three):
        rounds = -(-len(place.called["hosts"]) // place.called["forks"])
        assert place.called["timeout"] == 100 * max(1, rounds / 2)
    assert max(place.called["timeout"] for place in (one, two, three)) > 100


def test_there_are_never_more_places_than_forks() -> None:
    one, two, three = Scripted(), Scripted(), Scripted()
    run_sharded(PLAY, HOSTS, forks=2, on_event=print, places=[one, two, three])
    assert three.called == {}
    assert one.called["forks"] == two.called["forks"] == 1


def test_two_that_wait_for_one_another_have_a_turn_together_wherever_they_are_played() -> None:
    # Worker a has four hosts to do before a5; a5's partner b1 comes first on worker b.
    hosts = {"a1": "a", "a2": "a", "a3": "a", "a4": "a", "a5": "a", "b1": "b", "b2": "b", "x1": ""}
    hosts |= {"b3": "b", "x2": ""}
    batches = partitions.in_batches(hosts, 2, 2)
    assert batches == [{"a1", "a2"}, {"a3", "a4"}, {"a5", "b1", "b2", "x1"}, {"b3", "x2"}]
    assert partitions.in_batches(hosts, 50, 2) == [set(hosts)]
    assert partitions.in_batches({"a1": "a", "a2": "a", "b1": "b"}, 1, 1) == [{"a1"}, {"a2", "b1"}]


def test_batches_of_hosts_that_wait_are_played_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[str, list[str], int]] = []

    def by_worker(share: Share, _playbook: Path, hosts: Mapping[str, Any], **options: Any) -> Any:
        assert hosts == share.hosts
        played.append((share.worker, list(hosts), options["forks"]))
        return ok(hosts)

    def assigned(hosts: Mapping[str, Any], links: Mapping[str, Link]) -> tuple[list[Share], dict[str, Any]]:
        shares = []
        for worker in ("a", "b"):
            names = [name for name in hosts if links[name].workers == (Worker(worker),)]
            way = Way(Control("/nowhere"), "", "", worker, "")
            shares.append(Share(way, {name: hosts[name] for name in names}, {n: links[n] for n in names}))
        return shares, {}

    monkeypatch.setattr("provision.remote.workers.worker_runs.run_playbook", by_worker)
    monkeypatch.setattr("provision.remote.workers.mesh.assigned", assigned)
    hosts = {
        name: {LINK: Link((Worker(worker),)).plain()}
        for name, worker in {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "b3": "b"}.items()
    }
    outcomes = run_sharded(PLAY, hosts, forks=2, waiting=2)
    assert outcomes == ok(hosts)
    assert played[0] == ("a", ["a1", "a2"], 2)
    assert sorted(played[1:]) == [("a", ["a3"], 2), ("b", ["b1"], 2), ("b", ["b2", "b3"], 2)]
    assert played[-1] == ("b", ["b2", "b3"], 2)


def test_what_fails_at_one_place_is_told_for_its_hosts_and_costs_the_others_nothing() -> None:
    broken = raising(GpuprovError("worker-a: it has no Ansible", "install it"))
    outcomes = run_sharded(PLAY, HOSTS, on_event=print, places=[broken, Scripted()])
    failed = [name for name, outcome in outcomes.items() if outcome.status == "failed"]
    assert failed == ["n0", "n2", "n4", "n6", "n8"]
    assert outcomes["n0"].message == "worker-a: it has no Ansible"
    assert outcomes["n1"] == Outcome("n1", "ok")


def test_what_fails_everywhere_is_raised() -> None:
    broken = raising(GpuprovError("no such role", "mend it"))
    with pytest.raises(GpuprovError, match="no such role"):
        run_sharded(PLAY, HOSTS, places=[broken, broken])


def test_a_mistake_at_one_place_stops_the_others_and_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        run_sharded(PLAY, HOSTS, places=[raising(ZeroDivisionError()), until_stopped])


def test_a_mistake_of_who_listens_stops_every_place_and_is_raised() -> None:
    def hear(_event: Event) -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError, match="ours"):
        run_sharded(PLAY, HOSTS, on_event=hear, places=[Scripted(), until_stopped])


def test_a_place_that_was_interrupted_does_not_hurry_the_others() -> None:
    counts: list[int] = []

    def slow(*_: Any, interrupts: Interrupts | None = None, **__: Any) -> dict[str, Outcome]:
        assert interrupts is not None
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.5)  # the other one has stopped by now, and its signal was handled
        counts.append(interrupts.count)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_sharded(PLAY, HOSTS, places=[slow, until_stopped])
    assert counts == [1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_few_hosts_are_one_run_here_and_many_are_one_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(partitions.VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    counts = [len(partitions.local_places(number)) for number in (0, 1, 99, 100, 399, 10_000)]
    assert counts == [1, 1, 1, 2, 7, 8]


def test_how_many_processes_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(partitions.VARIABLE, "3")
    assert [len(partitions.local_places(number)) for number in (1, 2, 500)] == [1, 2, 3]
    for nonsense in ("0", "-1", "many", ""):
        monkeypatch.setenv(partitions.VARIABLE, nonsense)
        with pytest.raises(UsageError, match=partitions.VARIABLE):
            partitions.local_places(500)


def test_hosts_of_what_is_divided_do_not_wait_for_one_another() -> None:
    """These keywords depend on the hosts of the same ansible-playbook. (The controller does not count.)"""
    words = re.compile(
        r"\b(run_once|throttle|hostvars|ansible_play_hosts\w*)\b|\bserial:|\bgroups\["
        r"|\bdelegate_to: (?!localhost\n)"
    )
    files = [*paths.ROLES.rglob("*.yml"), *paths.ROLES.rglob("*.j2")]
    files += [paths.PLAYBOOKS / f"{name}.yml" for name in ("up", "reboot", "validate")]
    files = [path for path in files if "files" not in path.parts]  # Ansible does not read these files
    assert len(files) > 50
    assert [str(path) for path in files if words.search(path.read_text(encoding="utf-8"))] == []


# --- with Ansible ---


def test_two_processes_tell_what_one_does(tmp_path: Path, memory: Path) -> None:
    play = playbook(
        tmp_path,
        """
    - name: Break
      ansible.builtin.fail: {msg: "no {{ inventory_hostname }}"}
      when: inventory_hostname in ["n1", "n2"]
    - name: Change
      ansible.builtin.command: "true"
      changed_when: inventory_hostname == "n3"
""",
    )
    hosts = {name: local() for name in ("n1", "n2", "n3", "n4")}
    alone: list[Event] = []
    one = runner.run_playbook(play, hosts, on_event=alone.append)
    heard: list[Event] = []
    two = run_sharded(play, hosts, on_event=heard.append, places=[None, None])
    assert two == one
    assert {outcome.status for outcome in two.values()} == {"ok", "failed"}
    for name in hosts:
        assert [event for event in heard if event.node == name] == [e for e in alone if e.node == name]
    assert list(memory.iterdir()) == []


def test_a_host_that_takes_too_long_costs_the_other_process_nothing(tmp_path: Path) -> None:
    play = playbook(
        tmp_path,
        """
    - name: Hang
      ansible.builtin.command: sleep 300
      when: inventory_hostname == "slow"
""",
    )

    def hurried(*arguments: Any, **options: Any) -> dict[str, Outcome]:
        return runner.run_playbook(*arguments, **{**options, "timeout": 8})

    hosts = {"slow": local(), "n": local()}
    outcomes = run_sharded(play, hosts, on_event=print, places=[hurried, None])
    assert outcomes["n"] == Outcome("n", "ok", 0)
    assert outcomes["slow"].message == "did not finish in 8 s"


ONE_IMPORTS_WHILE_THE_OTHER_PLAYS = """
import importlib.metadata, sys, threading, time
from pathlib import Path
import provision.remote.ansible.handover as handover
from provision.remote.ansible import runner
from provision.remote.reach.partitions import run_sharded
handover.memory_folder = lambda: Path(sys.argv[2])
found, nearly_done = importlib.metadata.entry_points, threading.Event()
def slowly(**wanted):
    if wanted.get("group") == "ansible_runner.plugins":
        nearly_done.set()
        time.sleep(2)
    return found(**wanted)
importlib.metadata.entry_points = slowly
def later(*arguments, **options):
    assert nearly_done.wait(60)
    return runner.run_playbook(*arguments, **options)
host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
outcomes = run_sharded(Path(sys.argv[1]), {"a": host, "b": host}, places=[None, later])
print(*(outcome.status for outcome in outcomes.values()))
"""


def test_no_process_is_started_with_half_of_ansible_runner(tmp_path: Path, memory: Path) -> None:
    """ansible-runner scans plugins last, slowly on a slow disk; all its modules exist by then."""
    play = playbook(tmp_path, "- ansible.builtin.command: 'true'\n")
    done = subprocess.run(
        [sys.executable, "-c", ONE_IMPORTS_WHILE_THE_OTHER_PLAYS, str(play), str(memory)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("ok ok\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_every_process(tmp_path: Path, memory: Path, number: signal.Signals) -> None:
    files = [tmp_path / f"pid-{name}" for name in "ab"]
    nap = f"echo $$ > {tmp_path}/pid-{{{{ inventory_hostname }}}}; exec sleep 300"
    play = playbook(tmp_path, f"- ansible.builtin.shell: {nap}\n")
    with playing(SHARDED, play, memory) as process:
        pids = [int(line_of(file, process)) for file in files]
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
    assert not any(alive(pid) for pid in pids)
    assert list(memory.iterdir()) == []
