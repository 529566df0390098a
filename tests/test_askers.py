"""Several processes that ask: the same answers as of one, and none of them left, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_processes, nodes
from benchmarks.results import Options, Result, Table
from provision import asker_frames, askers, direct, processes
from provision.asker_entry import KEPT, Asker, GoneError
from provision.asker_frames import Failed, Frames, Part, Printed
from provision.askers import Askers
from provision.connection import Route, route_of
from provision.errors import UsageError
from provision.inventory import Node
from provision.node_error import NodeError
from provision.observe import observe, run_programs
from provision.processes import VARIABLE, worth
from provision.ssh_config import ConfigFiles
from tests.processes import alive, command_of, until

HELLO = "print('@gpuprov-facts 1 2\\n{}\\n@gpuprov-end')"
SLOW = f"import time; time.sleep(600); {HELLO}"


def below(pid: int) -> list[int]:
    """The descendants of a process, nearest first."""
    found = [pid]
    for parent in found:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found[1:]


def ours() -> list[int]:
    """The processes below this one that ask nodes, and the one that makes them."""
    return [pid for pid in below(os.getpid()) if "asker_entry" in command_of(pid)]


@pytest.fixture(autouse=True)
def _as_the_login_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


def fleet(sshd: Any, tmp_path: Path) -> list[Node]:
    return [
        *(sshd.node(f"good-{number}", ansible_become=False) for number in range(5)),
        sshd.node("refused", ansible_port=1),
        sshd.node("stranger", known_hosts=tmp_path / "none"),
        sshd.node("locked-out", key=tmp_path / "no-key"),
        sshd.node("no-python", ansible_python_interpreter="/no/python3", ansible_become=False),
    ]


def test_three_processes_find_what_one_does(
    sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = fleet(sshd, tmp_path)
    ask = {node.name: {"file./etc/hostname.content"} for node in nodes}
    found, below_us = [], 0
    for number in ("1", "3"):
        monkeypatch.setenv(VARIABLE, number)

        def count(_: object) -> None:
            nonlocal below_us
            below_us = max(below_us, len(ours()))

        below_us = 0
        seen = observe(nodes, ask, on_done=count)
        found.append({name: replace(one, seconds=0) for name, one in seen.items()})
        assert (below_us > 0) == (number == "3")
    assert found[0] == found[1]
    assert list(found[0]) == [node.name for node in nodes]
    assert sum(seen.error is None for seen in found[1].values()) == 5


def test_programs_are_run_by_several_processes_too(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    nodes = [sshd.node(f"n{number}", ansible_become=False) for number in range(3)]
    programs = {node.name: HELLO.replace("{}", f"{number:02}") for number, node in enumerate(nodes)}
    found = run_programs(nodes, programs)
    assert [bytes(found[node.name]).split()[3] for node in nodes] == [b"00", b"01", b"02"]  # type: ignore[arg-type]


def routes(sshd: Any, names: list[str], **variables: Any) -> dict[str, Route]:
    nodes = [sshd.node(name, ansible_become=False, **variables) for name in names]
    return {node.name: route_of(node, ConfigFiles()) for node in nodes}


def gathered(hands: Askers) -> dict[str, bytes | NodeError]:
    found: dict[str, bytes | NodeError] = {}
    while hands.unfinished:
        for done in hands.gather(wait=0.2):
            assert done.name not in found
            found[done.name] = done.result
    return found


def test_a_process_that_is_killed_takes_nobody_with_it(sshd: Any) -> None:
    """Its nodes have one line each; those of the other process are answered, also those not begun yet."""
    names = [f"n{number}" for number in range(8)]
    programs = {name: SLOW if number % 2 else HELLO for number, name in enumerate(names)}
    hands = Askers(routes(sshd, names), programs, 300, 4, 2)
    first: dict[str, bytes | NodeError] = {}
    try:
        maker = hands._process.pid
        until(lambda: len(below(maker)) == 2)
        while len(first) < 4:
            first |= {done.name: done.result for done in hands.gather(wait=0.2)}
        assert sorted(first) == names[::2]
        os.kill(below(maker)[-1], signal.SIGKILL)
        rest = gathered(hands)
    finally:
        hands.close()
    assert sorted(rest) == names[1::2]
    for error in rest.values():
        assert isinstance(error, NodeError)
        assert (
            "worker process 2 of 2 on this machine, which held its connection, was killed by SIGKILL"
            in error.what
        )
        assert not error.unreachable
    assert ours() == []


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("raise SystemExit(3)", "ended before its time"),
        ("import time; time.sleep(60)", "said nothing for 1 s"),
    ],
)
def test_processes_that_do_not_work_are_no_silence(
    sshd: Any, monkeypatch: pytest.MonkeyPatch, program: str, how: str
) -> None:
    monkeypatch.setattr(askers, "_PROGRAM", program)
    monkeypatch.setattr(askers, "SILENT", 1.0)
    monkeypatch.setattr(askers, "_END", 0.2)
    hands = Askers(routes(sshd, ["a", "b", "c"]), dict.fromkeys("abc", HELLO), 60, 4, 2)
    try:
        found = gathered(hands)
    finally:
        hands.close()
    assert sorted(found) == ["a", "b", "c"]
    assert all(isinstance(error, NodeError) and how in error.what for error in found.values())


def test_where_no_process_can_be_started_one_asks(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")

    def refuse(_sockets: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(askers, "_started", refuse)
    said: list[str] = []
    nodes = [sshd.node(f"n{number}", ansible_become=False) for number in range(2)]
    assert [seen.error for seen in observe(nodes, {}, say=said.append).values()] == [None, None]
    assert [line for line in said if "handled in one process" in line and "temporarily" in line]


PROGRAM = """\
import sys
from provision.inventory import load
from provision.observe import run_programs
from pathlib import Path
nodes = load(Path(sys.argv[1])).nodes.values()
try:
    run_programs(nodes, {node.name: sys.argv[2] for node in nodes}, timeout=300)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_processes_that_are_just_being_started_are_not_interrupted() -> None:
    ours_, theirs = socket.socketpair()
    started = askers._started([theirs])
    theirs.close()
    try:
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
        for _ in range(5):
            os.kill(started.pid, signal.SIGINT)
            time.sleep(0.02)
        until(lambda: len(below(started.pid)) == 1)
        os.kill(below(started.pid)[0], signal.SIGINT)
        time.sleep(0.2)
        assert len(below(started.pid)) == 1
    finally:
        ours_.close()
        started.communicate(timeout=20)
    assert started.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_is_left_when_we_are_gone(
    sshd: Any, tmp_path: Path, silent: int, number: signal.Signals
) -> None:
    secret = "correct-horse-battery"
    variables = sshd.node(ansible_password=secret, ansible_port=silent).variables
    inventory = tmp_path / "inventory.json"
    hosts = {f"n{number}": variables for number in range(6)}
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    environment = {**os.environ, VARIABLE: "3", "PYTHONPATH": str(Path(askers.__file__).parents[1])}
    words = [sys.executable, "-c", PROGRAM, str(inventory), SLOW]
    # As a terminal does it, Ctrl-C goes to all of them.
    with subprocess.Popen(words, env=environment, start_new_session=True) as gpuprov:
        try:
            until(lambda: len(below(gpuprov.pid)) == 4)
            started = below(gpuprov.pid)
            time.sleep(3)  # they have said that they are there
            assert started == below(gpuprov.pid)
            for pid in (gpuprov.pid, *started):
                for name in ("cmdline", "environ"):
                    assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
            if number == signal.SIGINT:
                os.killpg(gpuprov.pid, number)
            else:
                os.kill(gpuprov.pid, number)
            assert gpuprov.wait(timeout=20) == (130 if number == signal.SIGINT else -9)
        finally:
            gpuprov.kill()
    until(lambda: not any(map(alive, started)))


def test_who_is_still_waited_for_is_said_once_for_all_processes(
    sshd: Any, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "QUIET", 0.2)
    monkeypatch.setenv(VARIABLE, "2")
    said: list[str] = []
    nodes = [sshd.node("gpu-01"), *(sshd.node(f"gpu-0{n}", ansible_port=silent) for n in (2, 3))]
    seen = observe(nodes, {}, timeout=5, say=said.append)
    assert seen["gpu-01"].error is None
    assert "said nothing" in str(seen["gpu-02"].error) or "no answer within" in str(seen["gpu-02"].error)
    assert "waiting for 2 nodes: gpu-[02-03]" in said
    assert len(said) == len(set(said))


def test_a_host_that_several_processes_learn_is_learned_once(
    sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "4")
    known = tmp_path / "known"
    accept = {"known_hosts": known, "ssh_args": "-o StrictHostKeyChecking=accept-new"}
    nodes = [sshd.node(f"n{number}", ansible_become=False, **accept) for number in range(8)]
    found = run_programs(nodes, {node.name: HELLO for node in nodes})
    assert not [error for error in found.values() if isinstance(error, NodeError)]
    assert len(known.read_text().splitlines()) == 1


# --- what they say to one another ---


def test_frames_come_out_whole_however_they_are_cut() -> None:
    said = [Printed("a", b"\0" * 70_000, 1.5), Failed("b", "auth", "no", "do", 0.0), Printed("c", b"", 0.1)]
    stream = b"".join(map(asker_frames.packed, said))
    for size in (1, 7, 65_536, len(stream)):
        frames = Frames()
        found = [one for at in range(0, len(stream), size) for one in frames.feed(stream[at : at + size])]
        assert found == said


class Answers:
    """In the place of connections: every node prints a megabyte at once."""

    asked = 0

    def __init__(self) -> None: ...

    def ask(self, *_: object) -> bytes:
        Answers.asked += 1
        return bytes(1 << 20)

    def expire(self) -> None: ...

    def close(self) -> None: ...


def test_who_takes_slowly_makes_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of what they say: they ask no further nodes than they may keep."""
    monkeypatch.setattr("provision.ssh.Ssh", Answers)
    Answers.asked = 0
    ours, theirs = socket.socketpair()
    names = [f"n{number}" for number in range(400)]
    route = route_of(Node("n", (), {}), ConfigFiles())
    part = Part(dict.fromkeys(names, route), ("",), dict.fromkeys(names, 0), 60, 8)
    ended: list[str] = []

    def run() -> None:
        try:
            Asker(theirs).run()
        except GoneError:
            ended.append("gone")

    thread = threading.Thread(target=run)
    thread.start()
    ours.sendall(asker_frames.packed(part))
    time.sleep(1.0)
    least, at_work = KEPT, 8 + 1  # one answer is on its way
    assert 8 <= Answers.asked <= least + at_work
    frames, taken = Frames(), 0
    while taken < 100:
        taken += sum(isinstance(said, Printed) for said in frames.feed(ours.recv(1 << 18)))
    assert 100 <= Answers.asked < 400
    ours.close()
    thread.join(timeout=20)
    assert ended == ["gone"]
    theirs.close()


# --- how many ---


def test_what_processes_cost_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_processes, "fleet", nodes.loopback)
    monkeypatch.setattr(bench_processes.os, "geteuid", lambda: 1000)
    found = list(bench_processes.measure(Options(tmp_path, nodes=3, rounds=1, quick=True)))
    assert [type(each) for each in found] == [Result, Result, Table]
    assert [row[0] for row in found[-1].rows] == ["near, 1", "near, 2"]  # type: ignore[union-attr]


def test_how_many_processes_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [worth(hosts, 200) for hosts in (0, 1, 399, 400, 1999, 10_000)] == [1, 1, 1, 2, 8, 8]
    monkeypatch.setenv(VARIABLE, "3")
    assert [worth(hosts, 200) for hosts in (0, 2, 10_000)] == [1, 2, 3]
    monkeypatch.setenv(VARIABLE, "several")
    with pytest.raises(UsageError, match=VARIABLE):
        worth(5, 200)


def test_few_nodes_start_no_process(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(askers, "_started", lambda _: pytest.fail("a process was started"))
    found = run_programs([sshd.node(ansible_become=False)], {"gpu-01": HELLO})
    assert isinstance(found["gpu-01"], bytes)
