"""Several SSH processes: the same results as of one, and none of them left, whichever dies."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.errors import UsageError
from provision.fleet import Node
from provision.remote.observe import observe, run_programs
from provision.remote.protocol import NodeError
from provision.remote.ssh import fanout, process_pool
from provision.remote.ssh.config import ConfigFiles
from provision.remote.ssh.connection import Route, route_of
from provision.remote.ssh.fanout import VARIABLE, worth
from provision.remote.ssh.pool import Done
from provision.remote.ssh.process_pool import KEPT, Processes
from tests.support.processes import alive, command_of, until

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
    """The SSH processes below this one (the fork server that makes them stays)."""
    return [pid for pid in below(os.getpid()) if "forkserver" in command_of(pid)][1:]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


def fleet(sshd: Any, tmp_path: Path) -> list[Node]:
    good = (sshd.node(f"good-{number}", ansible_become=False) for number in range(5))
    return [*good, *sshd.troubled(tmp_path).values()]


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


def gathered(pool: Processes) -> dict[str, bytes | NodeError]:
    found: dict[str, bytes | NodeError] = {}
    while pool.unfinished:
        for done in pool.gather(0.2):
            assert done.name not in found
            found[done.name] = done.result
    return found


def test_a_process_that_is_killed_takes_nobody_with_it(sshd: Any) -> None:
    """Its nodes have one line each; those of the other process are answered, also those not begun yet."""
    names = [f"n{number}" for number in range(8)]
    programs = {name: SLOW if number % 2 else HELLO for number, name in enumerate(names)}
    pool = Processes(routes(sshd, names), programs, 300, 4, 2)
    first: dict[str, bytes | NodeError] = {}
    try:
        while len(first) < 4:
            first |= {done.name: done.result for done in pool.gather(0.2)}
        assert sorted(first) == names[::2]
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        rest = gathered(pool)
    finally:
        pool.close()
    assert sorted(rest) == names[1::2]
    for error in rest.values():
        assert isinstance(error, NodeError)
        assert (
            "worker process 2 of 2 on this machine, which held its connection, was killed by signal 9 "
            "(not by gpuprov)" in error.what
        )
        assert not error.unreachable
    assert ours() == []


def pid_of(pool: Processes, number: int) -> int:
    pid = pool._processes[number].process.pid
    assert pid is not None
    return pid


def test_a_process_that_stops_is_given_up(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "SILENT", 1.0)
    pool = Processes(routes(sshd, ["a", "b", "c"]), dict.fromkeys("abc", SLOW), 60, 4, 2)
    try:
        for number in range(2):
            os.kill(pid_of(pool, number), signal.SIGSTOP)
        found = gathered(pool)
    finally:
        pool.close()
    assert sorted(found) == ["a", "b", "c"]
    assert all(
        isinstance(error, NodeError) and "sent nothing for 1 s" in error.what for error in found.values()
    )
    assert ours() == []


def test_a_message_that_stops_half_way_is_not_waited_for() -> None:
    ours_, theirs = multiprocessing.Pipe()
    with ours_, theirs:
        process_pool._bound(ours_, 1.0)
        os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")
        with pytest.raises(BlockingIOError):
            ours_.recv()


class Unreadable:
    """What the process at the other end of a pipe cannot unpickle."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


def test_the_fork_server_imports_what_the_processes_need() -> None:
    """It says nothing of a module that is not there."""
    assert importlib.util.find_spec(process_pool.PRELOADED) is not None


def test_processes_may_open_as_many_files_as_their_parent(sshd: Any) -> None:
    """Also when the fork server was started before the limit was raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    Processes({}, {}, 60, 2, 1).close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        pool = Processes(routes(sshd, ["a"]), {"a": SLOW}, 60, 2, 1)
        found = resource.prlimit(pid_of(pool, 0), resource.RLIMIT_NOFILE)
        pool.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == (soft - 1, hard)


def test_a_mistake_of_ours_in_a_process_is_named(sshd: Any) -> None:
    timeout: Any = Unreadable()
    pool = Processes(routes(sshd, ["a"]), {"a": SLOW}, timeout, 4, 1)
    try:
        found = gathered(pool)
    finally:
        pool.close()
    assert isinstance(found["a"], NodeError)
    assert "process 1 of 1 on this machine, which held its connection, broke: ValueError" in found["a"].what
    assert "it is a bug" in found["a"].fix


def test_where_no_process_can_be_started_one_asks(sshd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")

    def refuse(_count: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process_pool, "_started", refuse)
    said: list[str] = []
    nodes = [sshd.node(f"n{number}", ansible_become=False) for number in range(2)]
    assert [seen.error for seen in observe(nodes, {}, say=said.append).values()] == [None, None]
    assert [line for line in said if "handled in one process" in line and "temporarily" in line]


PROGRAM = """\
import sys
from provision.desired.inventory import load
from provision.remote.observe import run_programs
from pathlib import Path
nodes = load(Path(sys.argv[1])).nodes.values()
try:
    run_programs(nodes, {node.name: sys.argv[2] for node in nodes}, timeout=300)
except KeyboardInterrupt:
    sys.exit(130)
"""


def in_three_processes(node: Node, folder: Path) -> subprocess.Popen[bytes]:
    """A controller of six nodes like this one, in a session of its own."""
    inventory = folder / "inventory.json"
    hosts = {f"n{number}": node.variables for number in range(6)}
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(inventory), SLOW],
        env={**os.environ, VARIABLE: "3", "PYTHONPATH": str(paths.PACKAGE.parent)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.3])
def test_ctrl_c_while_processes_start_is_heard_once(
    sshd: Any, tmp_path: Path, silent: int, seconds: float
) -> None:
    """As a terminal does it, it goes to all of them: none but ours may say anything of it."""
    with in_three_processes(sshd.node(ansible_port=silent), tmp_path) as gpuprov:
        try:
            until(lambda: [pid for pid in below(gpuprov.pid) if "forkserver" in command_of(pid)])
            time.sleep(seconds)
            started = below(gpuprov.pid)
            os.killpg(gpuprov.pid, signal.SIGINT)
            _, said = gpuprov.communicate(timeout=20)
        finally:
            gpuprov.kill()
    assert (gpuprov.returncode, said) == (130, b"")
    until(lambda: not any(map(alive, started)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_is_left_when_we_are_gone(
    sshd: Any, tmp_path: Path, silent: int, number: signal.Signals
) -> None:
    secret = "correct-horse-battery"
    # As a terminal does it, Ctrl-C goes to all of them.
    with in_three_processes(sshd.node(ansible_password=secret, ansible_port=silent), tmp_path) as gpuprov:
        try:
            until(lambda: len(below(gpuprov.pid)) == 5)  # 3, the fork server, the resource tracker
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


@pytest.mark.parametrize("number", ["1", "2"])
def test_who_is_still_waited_for_is_said_once_for_all_processes(
    sshd: Any, silent: int, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "QUIET", 0.2)
    monkeypatch.setenv(VARIABLE, number)
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


class Answers:
    """In the place of connections: every node prints a megabyte at once."""

    asked = 0

    def __init__(self, **_: object) -> None: ...

    def ask(self, *_: object) -> bytes:
        Answers.asked += 1
        return bytes(1 << 20)

    def expire(self) -> None: ...

    def close(self) -> None: ...


def test_who_takes_slowly_makes_them_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read of what a process sends: it begins no further nodes than results it may keep."""
    monkeypatch.setattr("provision.remote.ssh.client.Ssh", Answers)
    Answers.asked = 0
    ours_, theirs = multiprocessing.Pipe()
    names = [f"n{number}" for number in range(400)]
    route = route_of(Node("n", (), {}), ConfigFiles())
    thread = threading.Thread(target=process_pool.work, args=(theirs,))
    thread.start()
    ours_.send((dict.fromkeys(names, route), dict.fromkeys(names, ""), 60, 8, KEPT))
    time.sleep(1.0)
    least, at_work = KEPT, 8 + 1  # one answer is on its way
    assert 8 <= Answers.asked <= least + at_work
    taken = 0
    while taken < 100:
        taken += isinstance(ours_.recv(), Done)
    assert 100 <= Answers.asked < 400
    ours_.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    theirs.close()


# --- how many ---


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
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(process_pool, "_started", lambda _: pytest.fail("a process was started"))
    found = run_programs([sshd.node(ansible_become=False)], {"gpu-01": HELLO})
    assert isinstance(found["gpu-01"], bytes)
