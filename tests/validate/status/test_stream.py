"""Following a fleet's health results over real SSH: new results, and nodes lost and back again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.fleet import Fleet, Node
from provision.remote import node_program
from provision.remote.ssh import follow
from provision.validate.status import stream
from provision.validate.status.status import ABSENT, NodeStatus, judged
from provision.validate.status.stream import HealthStream
from tests.support.health_results import failed, result
from tests.support.processes import until
from tests.support.sshd import Sshd


class Machine:
    """A node's health result, in a folder that replaces /run/gpuprov."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)

    def write(self, document: dict[str, Any], *, age: float = 1.0) -> None:
        now = {
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "uptime": time.clock_gettime(time.CLOCK_BOOTTIME) - age,
        }
        new = self.folder / "new"
        new.write_text(json.dumps({**document, **now}))
        new.chmod(0o644)
        new.rename(self.folder / "health.json")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make the node's program report an unchanged result after 2 s instead of a minute."""
    made = Machine(tmp_path / "run")
    source = node_program.about_scheduler("health_result")
    assert "AGAIN = 60.0" in source
    quick = source.replace("AGAIN = 60.0", "AGAIN = 2.0")

    def program(request: Mapping[str, Any]) -> str:
        return f"{quick}\nmain({ ({**request, 'folder': str(made.folder), 'owner': os.geteuid()})!a})\n"

    monkeypatch.setattr(node_program, "health_result_program", program)
    monkeypatch.setattr(follow, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(follow, "LOOK", 0.1)
    return made


def fleet(*nodes: Node) -> Fleet:
    return Fleet(Path("fleet.yml"), {node.name: node for node in nodes}, {})


def watching(*nodes: Node) -> HealthStream:
    return HealthStream(fleet(*nodes), timeout=20, connections=8)


def next_of(running: HealthStream, seconds: float = 20) -> NodeStatus:
    """Return the only node that changes within `seconds`."""
    (status,) = running.changes(seconds)
    return status


def test_each_new_result_is_a_change_and_what_stays_is_none(own_sshd: Sshd, machine: Machine) -> None:
    machine.write(result())
    with watching(own_sshd.node(ansible_become=False)) as running:
        first = next_of(running)
        assert (first.node, first.verdict, first.trouble) == ("gpu-01", Verdict.PASS, "")
        began = time.monotonic()
        assert running.changes(2.7) == []
        assert 2.6 < time.monotonic() - began < 5
        machine.write(failed())
        began = time.monotonic()
        second = next_of(running)
        assert time.monotonic() - began < 1.5
        assert second.verdict is Verdict.FAIL
        assert [held.finding.metric for held in second.held] == ["xid"]
        assert running.latest == {"gpu-01": second}
        (machine.folder / "health.json").unlink()
        assert next_of(running).trouble == ABSENT


def test_between_two_calls_only_the_newest_counts(own_sshd: Sshd, machine: Machine) -> None:
    machine.write(result())
    with watching(own_sshd.node(ansible_become=False)) as running:
        next_of(running)
        for document in (failed(), result(), failed()):
            machine.write(document)
            before = running.latest["gpu-01"]
            until(lambda before=before: running.latest["gpu-01"] is not before)  # type: ignore[misc]
        assert [status.verdict for status in running.changes(0)] == [Verdict.FAIL]
        assert running.changes(0) == []


def test_a_result_that_becomes_stale_is_a_change(own_sshd: Sshd, machine: Machine) -> None:
    """The timer has stopped: no new result is written, and the last one is healthy."""
    machine.write(result(interval=60), age=177)
    with watching(own_sshd.node(ansible_become=False)) as running:
        assert next_of(running).verdict is Verdict.PASS
        stale = next_of(running)
        assert stale.verdict is Verdict.ERROR
        assert stale.trouble.startswith("the health result is 3 min old")


def test_a_node_that_goes_and_comes_back_is_two_changes(own_sshd: Sshd, machine: Machine) -> None:
    machine.write(result())
    with watching(own_sshd.node(ansible_become=False)) as running:
        next_of(running)
        pid = own_sshd.process.pid
        sessions = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        own_sshd.stop()
        for session in sessions:
            os.kill(int(session), signal.SIGKILL)
        gone = next_of(running)
        assert (gone.state, gone.verdict, gone.counts) == ("unreachable", Verdict.ERROR, False)
        own_sshd.start()
        until(lambda: running.latest["gpu-01"].counts, 20)
        assert running.changes(1)[-1].verdict is Verdict.PASS


def test_a_node_that_never_came_has_its_trouble(own_sshd: Sshd, machine: Machine) -> None:
    machine.write(result())
    refusing = own_sshd.node("gpu-02", ansible_port=1, ansible_become=False)
    with watching(own_sshd.node(ansible_become=False), refusing) as running:
        until(lambda: len(running.latest) == 2, 20)
        assert running.latest["gpu-01"].counts
        lost = running.latest["gpu-02"]
        assert (lost.state, lost.verdict) == ("unreachable", Verdict.ERROR)
        assert "refused the connection → start sshd there" in lost.trouble


def test_who_has_no_connection_of_ours_is_told_at_once() -> None:
    beyond = Node("gpu-09", (), {"ansible_connection": "docker"})
    with watching(beyond) as running:
        assert next_of(running, 1).trouble == (
            "cannot be watched: only Ansible reaches it (ansible_connection is docker) → "
            "let this machine log in to it over SSH, or watch it from its worker"
        )
        assert running.latest["gpu-09"].verdict is Verdict.ERROR


def test_it_ends_within_a_second_whatever_it_waits_for(own_sshd: Sshd, machine: Machine) -> None:
    machine.write(result())
    silent = own_sshd.node("gpu-02", ansible_host="192.0.2.1", ansible_become=False)  # unused (RFC 5737)
    with watching(own_sshd.node(ansible_become=False), silent) as running:
        next_of(running)
        began = time.monotonic()
    assert time.monotonic() - began < 1
    pid = own_sshd.process.pid
    until(lambda: not Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_a_status_that_cannot_be_judged_is_no_healthy_one(
    own_sshd: Sshd, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write(result())

    def broken(node: str, output: Any) -> NodeStatus:
        if isinstance(output, bytes):
            raise KeyError("a bug")
        return judged(node, output)

    with watching(own_sshd.node(ansible_become=False)) as running:
        next_of(running)
        monkeypatch.setattr(stream, "judged", broken)
        machine.write(result())
        assert next_of(running).trouble.startswith("KeyError: 'a bug' → please report it with ")
