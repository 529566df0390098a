"""Fixtures of the burn-in: a run folder with a node's spool, and the facts of the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.burnin.campaign import Campaign
from provision.remote.ansible import runner
from provision.remote.ansible.runner import Event, Outcome
from provision.runs.store import RunFolder
from tests.support.burnin import Made
from tests.support.burnin_nodes import NAME, FakeNode


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create("burnin", {}, tmp_path)


@pytest.fixture
def made(folder: RunFolder) -> Made:
    return Made(folder)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeNode]:
    """Return the reachable nodes; all others are unreachable."""
    reachable: dict[str, FakeNode] = {}

    def run(
        _playbook: Path,
        hosts: Mapping[str, Mapping[str, Any]],
        *,
        on_event: Callable[[Event], None],
        extra_vars: Mapping[str, Any],
        **_more: Any,
    ) -> dict[str, Outcome]:
        outcomes = {}
        for name, variables in hosts.items():
            if name in reachable:
                answered = reachable[name].answer({**extra_vars, **variables})
                on_event(Event("ok", name, "", "", {"gpuprov": answered}))
                outcomes[name] = Outcome(name, "ok")
            else:
                outcomes[name] = Outcome(name, "unreachable", message="timed out")
        return outcomes

    monkeypatch.setattr(runner, "run_playbook", run)
    return reachable


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    folder = RunFolder.adopt(NAME, "burnin", {}, tmp_path)
    folder.note(nodes=["gpu-01", "gpu-02"], asked=["burnin"], started="2026-11-18T12:00:00.000Z")
    return Campaign(folder, {"gpu-01": {}, "gpu-02": {}})
