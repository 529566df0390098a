"""The SSH fan-out: which nodes it waits for, and what concurrent connections share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.remote.protocol import NodeError
from provision.remote.reach.observe import observe, run_programs
from provision.remote.ssh import fanout

HELLO = "print('@gpuprov-facts 1 2\\n{}\\n@gpuprov-end')"


@pytest.fixture
def silent() -> Iterator[int]:
    """Yield the port of a server that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


def test_each_node_gets_its_own_program(sshd: Any) -> None:
    nodes = [sshd.node(f"n{number}", ansible_become=False) for number in range(3)]
    programs = {node.name: HELLO.replace("{}", f"{number:02}") for number, node in enumerate(nodes)}
    found = run_programs(nodes, programs)
    assert [bytes(found[node.name]).split()[3] for node in nodes] == [b"00", b"01", b"02"]  # type: ignore[arg-type]


def test_who_is_still_waited_for_is_said_once(
    sshd: Any, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "QUIET", 0.2)
    said: list[str] = []
    nodes = [sshd.node("gpu-01"), *(sshd.node(f"gpu-0{n}", ansible_port=silent) for n in (2, 3))]
    seen = observe(nodes, {}, timeout=5, say=said.append)
    assert seen["gpu-01"].error is None
    assert "said nothing" in str(seen["gpu-02"].error) or "no answer within" in str(seen["gpu-02"].error)
    assert "waiting for 2 nodes: gpu-[02-03]" in said
    assert len(said) == len(set(said))


def test_a_host_that_several_threads_learn_is_learned_once(sshd: Any, tmp_path: Path) -> None:
    known = tmp_path / "known"
    accept = {"known_hosts": known, "ssh_args": "-o StrictHostKeyChecking=accept-new"}
    nodes = [sshd.node(f"n{number}", ansible_become=False, **accept) for number in range(8)]
    found = run_programs(nodes, {node.name: HELLO for node in nodes})
    assert not [error for error in found.values() if isinstance(error, NodeError)]
    assert len(known.read_text().splitlines()) == 1
