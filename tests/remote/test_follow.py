"""Following a continuously printing program on many nodes: one reading thread, reconnection after
every loss, and a limit on output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.fleet import Node
from provision.remote.protocol import NodeError, unframed
from provision.remote.reach.observe import routed
from provision.remote.ssh import follow
from provision.remote.ssh.follow import Follow
from tests.support.processes import alive, until
from tests.support.sshd import Sshd

HELLO = """
import os, sys, time
def say(value):
    print('@gpuprov-facts 1 %d\\n%s\\n@gpuprov-end' % (len(str(value)), value), flush=True)
say(os.getpid())
"""
QUIET = HELLO + "time.sleep(600)\n"
BEATS = HELLO + "while True:\n    time.sleep(0.2); print('@gpuprov-alive', flush=True)\n"


class Taken:
    """Collects each node's answers and errors in order of arrival."""

    def __init__(self) -> None:
        self.of: dict[str, list[Any]] = {}
        self.threads: set[int] = set()

    def __call__(self, node: str, output: bytes | NodeError) -> None:
        self.threads.add(threading.get_ident())
        said = output if isinstance(output, NodeError) else json.loads(unframed(output))
        self.of.setdefault(node, []).append(said)

    def last(self, node: str = "gpu-0") -> Any:
        return self.of.get(node, [None])[-1]

    def troubles(self, node: str = "gpu-0") -> list[str]:
        return [each.what for each in self.of.get(node, []) if isinstance(each, NodeError)]


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(follow, "LOOK", 0.1)


def following(nodes: list[Node], program: str, taken: Taken, **more: Any) -> Follow:
    routes, why = routed(nodes)
    assert not why
    return Follow(routes, program, taken, timeout=20, **more)


def several(sshd: Sshd, count: int, **variables: Any) -> list[Node]:
    return [sshd.node(f"gpu-{number}", ansible_become=False, **variables) for number in range(count)]


def sessions(sshd: Sshd) -> list[int]:
    """Return the PIDs of this sshd's open connections."""
    pid = sshd.process.pid
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_all_nodes_are_read_by_one_thread_and_nothing_is_left_on_them(own_sshd: Sshd, taken: Taken) -> None:
    before = threading.active_count()
    with following(several(own_sshd, 6), QUIET, taken, logins=2):
        until(lambda: len(taken.of) == 6, 20)
        # One paramiko thread per connection, one reader, two that log in.
        assert threading.active_count() - before <= 6 + 1 + 2
        began = time.monotonic()
    assert time.monotonic() - began < 1, "closing waits for nobody"
    until(lambda: threading.active_count() == before)
    assert len(taken.threads) == 1
    until(lambda: not sessions(own_sshd))


def test_of_many_answers_the_newest_comes_last_and_none_twice(own_sshd: Sshd, taken: Taken) -> None:
    burst = HELLO + "for number in range(2000): say(number)\ntime.sleep(600)\n"
    with following(several(own_sshd, 1), burst, taken):
        until(lambda: taken.last() == 1999, 20)
    numbers = taken.of["gpu-0"][1:]
    assert numbers == sorted(set(numbers))
    assert len(numbers) < 1000, "what was overtaken is not handed over"


def test_a_node_whose_connection_is_lost_is_told_and_comes_back(own_sshd: Sshd, taken: Taken) -> None:
    with following(several(own_sshd, 2), BEATS, taken):
        until(lambda: len(taken.of) == 2, 20)
        own_sshd.stop()
        for pid in sessions_before(own_sshd, taken):
            os.kill(pid, signal.SIGKILL)
        until(lambda: all(isinstance(taken.last(f"gpu-{n}"), NodeError) for n in (0, 1)))
        assert taken.of["gpu-0"][1].unreachable
        until(lambda: any("refused the connection" in line for line in taken.troubles()))
        own_sshd.start()
        until(lambda: all(isinstance(taken.last(f"gpu-{n}"), int) for n in (0, 1)), 20)


def sessions_before(sshd: Sshd, taken: Taken) -> list[int]:
    """Return the connection PIDs of an sshd that has ended: the parents of the programs they run."""
    parents = []
    for outputs in taken.of.values():
        stat = Path(f"/proc/{outputs[0]}/stat").read_text().rpartition(")")[2].split()
        parents.append(int(stat[1]))
    assert sshd.process.poll() is not None
    return parents


def test_a_program_that_ends_is_started_again(own_sshd: Sshd, taken: Taken) -> None:
    with following(several(own_sshd, 1), QUIET, taken):
        until(lambda: isinstance(taken.last(), int), 20)
        first = taken.last()
        os.kill(first, signal.SIGKILL)
        until(lambda: isinstance(taken.last(), int) and taken.last() != first, 20)
    assert taken.troubles() == ["the program that follows the health result there has ended"]
    assert not taken.of["gpu-0"][1].unreachable, "the node answers"


def test_a_node_that_is_cut_off_without_a_word_is_noticed_and_found_again(
    own_sshd: Sshd, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENT", 1.5)
    with Cable(own_sshd.port) as cable:
        known = own_sshd.know(own_sshd.folder / "known", name=f"[127.0.0.1]:{cable.port}")
        (node,) = several(own_sshd, 1, ansible_port=cable.port, known_hosts=known)
        with following([node], BEATS, taken):
            until(lambda: isinstance(taken.last(), int), 20)
            time.sleep(2)
            assert taken.troubles() == [], "its signs of life came"
            cable.cut()
            until(lambda: taken.troubles())
            assert taken.troubles()[0].endswith("for 2 s")
            assert taken.of["gpu-0"][1].unreachable
            cable.mend()
            until(lambda: isinstance(taken.last(), int), 30)


def test_a_node_is_not_silent_because_nobody_here_had_time_to_read_it(
    own_sshd: Sshd, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SILENT", 1.0)
    with following(several(own_sshd, 2), BEATS, taken) as one:
        until(lambda: len(one._lines) == 2, 20)
        with one._lines["gpu-0"].connection._channel.in_buffer._lock:  # stalls its thread, as without CPU
            time.sleep(3)
            assert not taken.troubles()
            monkeypatch.setattr(follow, "UNANSWERED", 1.0)  # a node may not stay silent forever
            until(taken.troubles)


class Cable:
    """A connection to a local port that can be cut without either end noticing."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = [self._listener]

    def __enter__(self) -> Cable:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self._whole.wait()
                other.sendall(data)
            self._whole.wait()
            other.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("flood", "why"),
    [
        ("while True: print('x' * 1000)", "it printed more than 4 MiB within a minute"),
        ("while True: print('@gpuprov-alive')", "it printed more than 4 MiB within a minute"),
        ("while True: sys.stderr.write('x' * 1000)", "it printed more than 4 MiB within a minute"),
        ("while True: say(1)", "it printed more than 4 MiB within a minute"),
        ("while True: say(1); time.sleep(0.001)", "it printed more than 4 MiB within a minute"),
        ("while True: sys.stdout.write('x'); sys.stdout.flush()", "it printed more than 4 MiB"),
        (
            "while True: print('@gpuprov-facts 1 999999999', flush=True); time.sleep(0.1)",
            "its answer is larger than",
        ),
    ],
)
def test_a_flood_is_cut_and_the_others_are_read_meanwhile(
    own_sshd: Sshd, taken: Taken, flood: str, why: str
) -> None:
    """All nodes run the same program; one node's Python gets an extra argument that makes it flood."""
    (own_sshd.bin / "flooding").write_text('#!/bin/sh\nexec python3 "$@" flood\n')
    (own_sshd.bin / "flooding").chmod(0o755)
    counting = "number = 10 ** 7\nwhile True:\n    number += 1; say(number); time.sleep(0.2)\n"
    program = f"{HELLO}if len(sys.argv) > 1:\n    {flood}\n{counting}"
    nodes = [
        own_sshd.node("good", ansible_become=False),
        own_sshd.node("bad", ansible_become=False, ansible_python_interpreter=str(own_sshd.bin / "flooding")),
    ]
    with following(nodes, program, taken):
        until(lambda: taken.troubles("bad"), 25)
        assert why in taken.troubles("bad")[0]
        assert taken.last("bad").kind == "too large"
        until(lambda: len(sessions(own_sshd)) == 1)
        until(lambda: taken.last("good") is not None, 25)  # it may connect after the bad node is cut
        since = time.monotonic()
        number = taken.last("good")
        until(lambda: taken.last("good") > number)
    assert taken.troubles("good") == []
    assert time.monotonic() - since < 5
    assert len(taken.of["bad"]) < 1100, "small pieces are counted, too"


def test_who_refused_us_is_not_asked_again_at_once(own_sshd: Sshd, taken: Taken, tmp_path: Path) -> None:
    """Repeated attempts would get accounts locked."""
    nodes = [node for node in own_sshd.troubled(tmp_path).values() if node.name in ("locked-out", "refused")]
    with following(nodes, QUIET, taken):
        until(lambda: len(taken.troubles("refused")) > 3, 20)
    assert len(taken.troubles("locked-out")) == 1


def test_the_pauses_grow_and_are_not_the_same_for_all(
    own_sshd: Sshd, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(several(own_sshd, 1), QUIET, taken) as running:
        until(lambda: taken.of, 20)
        monkeypatch.setattr(follow, "FIRST_PAUSE", 1.0)
        gone = NodeError("unreachable", "gone", "")
        pauses = []
        for _ in range(12):
            running._due.clear()
            now = time.monotonic()
            running._fail("gpu-0", gone)
            pauses.append(running._due[0][0] - now)
            running._due.clear()
    assert all(0.5 * 2**n <= pause < 2**n + 1 for n, pause in enumerate(pauses[:6])), pauses
    assert all(30 <= pause <= 61 for pause in pauses[6:])
    assert len({round(pause, 3) for pause in pauses[6:]}) > 1


def test_no_more_than_so_many_log_in_at_once(own_sshd: Sshd, taken: Taken) -> None:
    running = [0, 0]
    lock = threading.Lock()
    with following(several(own_sshd, 1), QUIET, taken) as first:
        ask: Callable[..., Any] = first._ssh.follow
        until(lambda: taken.of, 20)

    def counted(*arguments: Any) -> Any:
        with lock:
            running[0] += 1
            running[1] = max(running)
        try:
            time.sleep(0.05)
            return ask(*arguments)
        finally:
            with lock:
                running[0] -= 1

    routes, _ = routed(several(own_sshd, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("provision.remote.ssh.client.Ssh.follow", lambda _self, *rest: counted(*rest))
        with Follow(routes, QUIET, taken, timeout=20, logins=3):
            until(lambda: len(taken.of) == 12, 30)
    assert running[1] == 3


def test_a_program_does_not_outlive_a_controller_that_was_killed(own_sshd: Sshd, tmp_path: Path) -> None:
    """tests/node/test_health_result.py covers how the program notices by itself."""
    child = os.fork()
    if not child:
        quiet = Taken()
        with contextlib.suppress(BaseException):
            following(several(own_sshd, 1), BEATS, quiet)
            until(lambda: quiet.of, 20)
            (tmp_path / "pid").write_text(str(quiet.last()))
            time.sleep(60)
        os._exit(0)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: not alive(pid))


def test_an_error_of_the_reader_is_not_silence(own_sshd: Sshd) -> None:
    def broken(_node: str, _output: Any) -> None:
        raise ValueError("a bug")

    routes, _ = routed(several(own_sshd, 1))
    with Follow(routes, QUIET, broken, timeout=20) as running:
        until(lambda: running._broken, 20)
        with pytest.raises(RuntimeError, match="has ended"):
            running.check()
