"""Runs that came to their end, for tests of the history."""

from __future__ import annotations

from pathlib import Path

from provision import verdict_history
from provision.health import CheckResult, FleetHealth, GpuIdentity, NodeHealth
from provision.judge import Finding, Verdict
from provision.store import RunFolder


def node(name: str, verdict: Verdict, gpu: int = 3) -> NodeHealth:
    """A node whose GPU `gpu` is what is wrong with it."""
    action = {Verdict.FAIL: "replace part", Verdict.WARN: "watch"}.get(verdict, "none")
    finding = Finding("gpu_burn", verdict, f"gpu{gpu}", "says so", action=action)
    gpus = tuple(GpuIdentity(i, "H100", f"serial {i}", f"GPU-{name}-{i}", f"0:{i}") for i in range(8))
    return NodeHealth(name, verdict, (CheckResult("gpu_burn", verdict, (finding,), (), 1.0),), gpus)


def run(home: Path, number: int, *nodes: NodeHealth, inventory: str = "one.yml") -> Path:
    """A run that came to its end."""
    name, started = f"20260501T{number:06d}.000Z-validate", f"2026-05-01T00:00:{number:02d}Z"
    folder = RunFolder(home / name)
    folder.path.mkdir(parents=True, exist_ok=True)
    health = FleetHealth(name, "0.1.0", inventory, started, started, ("gpu_burn",), nodes)
    folder.write_json("run.json", {"format": 1, "inventory": inventory, "asked": ["gpu_burn"]})
    verdict_history.keep(folder, health)
    return folder.path
