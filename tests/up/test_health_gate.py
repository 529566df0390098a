"""The quick checks as a gate: who passes, and what is said of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.errors import ExitCode
from provision.fleet import Fleet, Node
from provision.runs.store import RunFolder
from provision.up import health_gate
from provision.up.execute import UpOptions


def node(name: str, verdict: Verdict, *messages: str, error: str = "") -> NodeHealth:
    findings = tuple(Finding("gpu_inventory", verdict, f"gpu{n}", text) for n, text in enumerate(messages))
    return NodeHealth(name, verdict, (CheckResult("gpu_inventory", verdict, findings, (), 1.0),), error=error)


def passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: list[NodeHealth], *, interrupted: bool = False
) -> tuple[dict[str, str], RunFolder]:
    fleet = Fleet(tmp_path / "fleet.yml", {name: Node(name, (), {}) for name in "abcdef"}, {})
    opened: list[RunFolder] = []
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))

    def validate(_folder: Any, part: Fleet, _overrides: Any, asked: Any, _settings: Any) -> Any:
        assert list(part.nodes) == list("abcde")
        assert "gpu_burn" not in asked
        assert "gpu_inventory" in asked
        health = FleetHealth("r", "1", "f", "s", "e", tuple(asked), tuple(nodes), interrupted)
        return health, ExitCode.UNHEALTHY

    return health_gate.quick(fleet, {}, list("abcde"), UpOptions(), opened.append, validate), opened[0]


def test_only_what_passed_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, folder = passed(
        monkeypatch,
        tmp_path,
        [
            node("a", Verdict.PASS),
            node("b", Verdict.WARN, "nobody published a limit"),
            node("c", Verdict.FAIL, "is missing", "is slow", "is hot", "is old"),
            node("d", Verdict.ERROR, error="no answer"),
        ],
    )
    assert found == {
        "c": "the quick checks found: gpu0: is missing; gpu1: is slow; gpu2: is hot, and 1 more",
        "d": "the quick checks could not be run: no answer",
        "e": "the quick checks have no result for it",
    }
    assert folder.meta()["verb"] == "validate"
    assert folder.meta()["exit_code"] == ExitCode.UNHEALTHY
    assert (folder.path / "report.json").exists()


def test_an_interrupted_gate_is_an_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        passed(monkeypatch, tmp_path, [node("a", Verdict.ERROR)], interrupted=True)
