"""Connections kept open between programs: one login per node, and a new one after a loss."""

from __future__ import annotations

import os
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.fleet import Node
from provision.remote.protocol import NodeError
from provision.remote.reach.observe import Reach
from provision.remote.ssh import execute, fanout
from provision.remote.ssh.client import Ssh
from provision.remote.ssh.config import ConfigFiles
from provision.remote.ssh.connection import route_of
from provision.remote.ssh.pool import SshThreads
from tests.support.processes import until
from tests.support.sshd import Sshd

COUNT = "import os; print('@gpuprov-facts 1 %d\\n%s\\n@gpuprov-end' % (len(str(os.getppid())), os.getppid()))"


class Asked:
    """One program for all nodes; collects each node's output by round."""

    def __init__(self, program: str = COUNT) -> None:
        self.program_text = program
        self.found: dict[str, Any] = {}

    def program(self, node: str, limit: int | None = None) -> str:  # noqa: ARG002
        return self.program_text

    def take(self, node: str, output: Any, seconds: float) -> None:  # noqa: ARG002
        self.found[node] = output


def nodes(sshd: Sshd, count: int) -> list[Node]:
    return [sshd.node(f"gpu-{number}", ansible_become=False) for number in range(count)]


def rounds(reach: Reach, count: int) -> list[dict[str, Any]]:
    found: list[Any] = []
    for _ in range(count):
        asked = Asked()
        reach.put(asked)
        found.append(asked.found)
    return found


def test_each_node_is_logged_in_to_once_however_often_it_is_asked(own_sshd: Sshd) -> None:
    with Reach(nodes(own_sshd, 4), 30, 512, (), persistent=True) as reach:
        found = rounds(reach, 3)
    assert [sorted(each) for each in found] == [["gpu-0", "gpu-1", "gpu-2", "gpu-3"]] * 3
    assert all(isinstance(output, bytes) for each in found for output in each.values())
    assert own_sshd.logins() == 4


def test_some_of_the_nodes_are_asked_over_the_same_connections(own_sshd: Sshd) -> None:
    asked, one, again = Asked(), Asked(), Asked()
    with Reach(nodes(own_sshd, 4), 30, 512, (), persistent=True) as reach:
        reach.put(asked, ["gpu-1", "gpu-2"])  # a node left out of the first round may come in a later one
        reach.put(one, ["gpu-2"])
        reach.put(again)
    assert sorted(asked.found) == ["gpu-1", "gpu-2"]
    assert list(one.found) == ["gpu-2"]
    assert sorted(again.found) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert own_sshd.logins() == 4


def test_after_an_interrupt_nodes_are_asked_anew(own_sshd: Sshd) -> None:
    class Interrupted(Asked):
        def take(self, node: str, output: Any, seconds: float) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    with Reach(nodes(own_sshd, 4), 30, 512, (), persistent=True) as reach:
        with pytest.raises(KeyboardInterrupt):
            reach.put(Interrupted())
        (found,) = rounds(reach, 1)
    assert all(isinstance(output, bytes) for output in found.values()), found
    assert len(found) == 4


def test_two_threads_ask_one_after_the_other(own_sshd: Sshd) -> None:
    both = [Asked("import time; time.sleep(0.2)\n" + COUNT) for _ in range(2)]
    with Reach(nodes(own_sshd, 2), 30, 512, (), persistent=True) as reach, ThreadPoolExecutor(2) as threads:
        list(threads.map(reach.put, both))
    assert [sorted(each.found) for each in both] == [["gpu-0", "gpu-1"]] * 2
    assert own_sshd.logins() == 2


def test_closed_connections_are_made_again(own_sshd: Sshd) -> None:
    with Reach(nodes(own_sshd, 2), 30, 512, (), persistent=True) as reach:
        rounds(reach, 1)
        reach.close()
        until(lambda: not sessions(own_sshd))
        rounds(reach, 1)
    assert own_sshd.logins() == 4


def test_without_being_asked_to_a_connection_is_not_kept(own_sshd: Sshd) -> None:
    with Reach(nodes(own_sshd, 2), 30, 512, ()) as reach:
        rounds(reach, 2)
    assert own_sshd.logins() == 4


def test_no_more_connections_are_kept_than_there_are_files_for(
    own_sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "keepable", lambda *_: 1)
    with Reach(nodes(own_sshd, 3), 30, 512, (), persistent=True) as reach:
        rounds(reach, 2)
    assert own_sshd.logins() == 5


def test_a_connection_that_was_lost_meanwhile_is_made_anew_in_the_same_round(own_sshd: Sshd) -> None:
    with Reach(nodes(own_sshd, 2), 30, 512, (), persistent=True) as reach:
        rounds(reach, 1)
        for pid in sessions(own_sshd):
            os.kill(pid, signal.SIGKILL)
        (found,) = rounds(reach, 1)
    assert all(isinstance(output, bytes) for output in found.values()), found
    assert own_sshd.logins() == 4


def test_a_connection_that_is_lost_under_a_program_is_made_anew_too(own_sshd: Sshd, tmp_path: Path) -> None:
    """Simulates a node that reboots at that moment."""
    mark = tmp_path / "was here"
    killer = (
        "import os, signal\n"
        f"if not os.path.exists({str(mark)!r}):\n"
        f"    open({str(mark)!r}, 'w').close()\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        f"{COUNT}\n"
    )
    with Reach(nodes(own_sshd, 1), 30, 512, (), persistent=True) as reach:
        rounds(reach, 1)
        asked = Asked(killer)
        reach.put(asked)
    assert mark.exists()
    assert isinstance(asked.found["gpu-0"], bytes), asked.found
    assert own_sshd.logins() == 2


def test_a_node_whose_sshd_has_gone_is_unreachable_and_comes_back(sshd: Sshd, tmp_path: Path) -> None:
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = Sshd(folder, sshd.program)
    with Reach(nodes(server, 1), 10, 512, (), persistent=True) as reach:
        rounds(reach, 1)
        connected = sessions(server)
        server.stop()
        for pid in connected:
            os.kill(pid, signal.SIGKILL)
        (gone,) = rounds(reach, 1)
        assert isinstance(gone["gpu-0"], NodeError)
        assert gone["gpu-0"].unreachable
        server.start()
        (back,) = rounds(reach, 1)
        assert isinstance(back["gpu-0"], bytes)
    server.stop()


def test_a_connection_is_renewed_before_it_weighs_too_much(
    own_sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko remembers every channel that it ever opened."""
    monkeypatch.setattr(execute, "MOST_PROGRAMS", 2)
    with Reach(nodes(own_sshd, 1), 30, 512, (), persistent=True) as reach:
        rounds(reach, 4)
    assert own_sshd.logins() == 2


def test_through_a_jump_host_and_a_proxy_command_connections_stay_open_too(own_sshd: Sshd) -> None:
    way = route_of(nodes(own_sshd, 1)[0], ConfigFiles())
    beyond = replace(way, jumps=(way.target,))
    options = ("-F", "none", "-o", f"UserKnownHostsFile={own_sshd.known_hosts}", "-i", str(own_sshd.key_file))
    place = f"{own_sshd.user}@127.0.0.1"
    proxy = ("ssh", *options, "-p", str(own_sshd.port), "-W", f"127.0.0.1:{own_sshd.port}", place)
    by_program = replace(way, target=replace(way.target, proxy_command=proxy))
    for kind, most in ((beyond, 2), (by_program, 2)):
        before = own_sshd.logins()
        ssh = Ssh(persistent=4)
        for _ in range(3):
            assert b"@gpuprov-end" in ssh.ask(kind, COUNT.encode(), 20)
        assert own_sshd.logins() - before == most
        ssh.close()
        until(lambda: not sessions(own_sshd))


def test_a_dead_jump_host_is_tried_again_in_the_next_round(own_sshd: Sshd, tmp_path: Path) -> None:
    folder = tmp_path / "jump"
    folder.mkdir()
    jump = Sshd(folder, own_sshd.program)
    jump.stop()
    way = route_of(nodes(own_sshd, 1)[0], ConfigFiles())
    beyond = replace(way, jumps=(route_of(jump.node(), ConfigFiles()).target,))
    threads = SshThreads({"gpu-01": beyond}, {"gpu-01": COUNT}, 20, 4, persistent=4)
    assert isinstance(result_of(threads), NodeError)
    jump.start()
    threads.ask_again({"gpu-01": COUNT})
    assert isinstance(result_of(threads), bytes)
    threads.close()
    jump.stop()


def result_of(threads: SshThreads) -> Any:
    found: list[Any] = []
    while threads.unfinished:
        found += threads.gather(1.0)
    (done,) = found
    return done.result


def test_an_idle_connection_costs_nothing_and_ends_at_once(own_sshd: Sshd) -> None:
    with Reach(nodes(own_sshd, 8), 30, 512, (), persistent=True) as reach:
        rounds(reach, 1)
        # First, pool threads end and the last messages arrive, which takes longer under load.
        woken = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
            time.sleep(1)
            woken.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
    assert min(woken) < 20, "their threads look at them much too often"
    until(lambda: not sessions(own_sshd))


def sessions(sshd: Sshd) -> list[int]:
    """Return the PIDs of this sshd's open connections."""
    pid = sshd.process.pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children]
