"""Repeated status rounds of a fleet: Slurm is queried once a minute and cached in between."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.fleet import Fleet, Node
from provision.remote.protocol import NodeError
from provision.validate.status import rounds
from provision.validate.status.rounds import SLURM_SECONDS, Rounds
from provision.validate.status.status import FleetStatus
from tests.support.health_results import printed
from tests.support.slurm import sample

FLEET = Fleet(Path("fleet.yml"), {name: Node(name, (), {}) for name in ("gpu-02", "gpu-01")}, {})


class Nodes:
    """Stand-in for connections: every node answers twice per program, as Ansible's do."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.state = "IDLE"
        self.silent = False

    def __call__(self, *_: Any, **__: Any) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None: ...

    def put(self, asked: Any) -> None:
        self.asked.append("'scheduler': True" in asked.program("gpu-01"))
        for name in ("gpu-01", "gpu-02"):
            text = sample(name, self.state)
            slurm = {"name": name, "text": text, "problem": ""} if self.asked[-1] else None
            lost = NodeError("unreachable", "no route to host", "")
            asked.take(name, lost if self.silent else printed(slurm=slurm), 0.1)
            asked.take(name, b"", 0.0)


def states(status: FleetStatus) -> list[str]:
    """Return Slurm's state of each node."""
    return [one.slurm.state for one in status.nodes.values() if one.slurm is not None and one.slurm.state]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes()
    monkeypatch.setattr(rounds, "Reach", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_slurm_is_asked_once_a_minute(nodes: Nodes, clock: list[float]) -> None:
    done: list[str] = []
    with Rounds(FLEET, timeout=5, connections=5) as rounds:
        for passed in (0.0, 10.0, SLURM_SECONDS - 10, 10.0):
            clock[0] += passed
            status = rounds.ask(lambda one: done.append(one.node))
            assert states(status) == ["IDLE" if len(nodes.asked) < 3 else "DOWN"] * 2
            nodes.state = "DOWN"
    assert nodes.asked == [True, False, True, False]
    assert done == ["gpu-01", "gpu-02"] * 4
    assert list(status.nodes) == ["gpu-02", "gpu-01"], "in the inventory's order"


def test_of_a_node_that_is_gone_slurms_word_is_forgotten(nodes: Nodes, clock: list[float]) -> None:
    with Rounds(FLEET, timeout=5, connections=5) as rounds:
        rounds.ask()
        nodes.silent = True
        clock[0] += 1
        assert states(rounds.ask()) == []


def test_the_program_through_ansible_is_told_its_limit() -> None:
    asked = rounds._Asked({"scheduler": True}, {}, None)
    assert "'bytes': 5000" in asked.program("gpu-01", 5000)
    assert "'bytes'" not in asked.program("gpu-01")
    assert asked.program("gpu-01") is asked.program("gpu-02"), "one text for all"
