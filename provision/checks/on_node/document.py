"""The JSON document that the program prints and writes to /run/gpuprov/health.json (docs/health.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from provision import __version__
from provision.checks.health import GpuIdentity, NodeHealth
from provision.checks.judge import Verdict
from provision.checks.on_node import debounce
from provision.checks.on_node.debounce import Rule, Tracked
from provision.text import clean

FORMAT = 1
LARGEST = 256 * 1024  # bytes; readers refuse larger files
_LATE, _LEAST_LATE = 3, 180.0  # intervals, seconds
_TOLD = Rule("skip", 1, 1, 1)  # for skipped checks, which are listed with their reason and never count
_FINDINGS = 200  # the worst ones; a node with hundreds of bad ports has more


def document(
    health: NodeHealth,
    tracked: Sequence[Tracked],
    run: Mapping[str, Any],
    interval: int,
    known: Sequence[GpuIdentity] = (),
) -> dict[str, Any]:
    """Build the document. `run`: boot_id, uptime, started, finished and seconds of this run.

    `known`: the GPUs seen since boot; GPUs that did not answer in this run are marked `lost`."""
    gpus, lost = identified(health, known), _lost(health, known)
    findings = [finding for check in health.checks for finding in check.findings]
    skipped = [
        Tracked(finding, _TOLD, run["started"], (True,), active=True)
        for finding in findings
        if finding.verdict is Verdict.SKIP
    ]
    rows = [_followed(one) for one in (*tracked, *skipped)]
    made = {
        "format": FORMAT,
        "gpuprov": __version__,
        "node": health.node,
        **run,
        "interval": interval,
        "verdict": debounce.verdict(tracked, _otherwise(health)).value,
        "measured": health.verdict.value,
        # Once a check ran, its findings carry the error.
        "error": "" if health.checks else health.error,
        "gpus": [{**asdict(gpu), "lost": gpu.index in lost} for gpu in gpus],
        "facts": {key: value for key, value in health.facts.items() if key not in ("pcie_width", "boot")},
        "checks": [
            {"check": one.check, "verdict": one.verdict.value, "seconds": round(one.seconds, 3)}
            for one in health.checks
        ],
        "findings": rows[:_FINDINGS],
    }
    shown: dict[str, Any] = _shown(made)
    return shown


def identified(health: NodeHealth, known: Sequence[GpuIdentity]) -> list[GpuIdentity]:
    """Return all GPUs seen since boot.

    A GPU that does not answer may be listed in part; it keeps its `known` name and serial number."""
    every = {gpu.index: gpu for gpu in (*health.gpus, *known, *_answering(health))}
    return [every[index] for index in sorted(every)]


def _silent(health: NodeHealth) -> set[str]:
    """Return the devices that a finding reports as not answering."""
    findings = (one for check in health.checks for one in check.findings)
    return {one.device for one in findings if one.metric == "unanswered" and one.verdict is Verdict.FAIL}


def _answering(health: NodeHealth) -> list[GpuIdentity]:
    silent = _silent(health)
    return [gpu for gpu in health.gpus if (gpu.name or gpu.uuid) and f"gpu{gpu.index}" not in silent]


def _lost(health: NodeHealth, known: Sequence[GpuIdentity]) -> set[int]:
    """Return lost GPUs by index; for one without a handle, a tool may name it and describe no GPU at all."""
    every = {gpu.index for gpu in identified(health, known)}
    named = {index for index in every if f"gpu{index}" in _silent(health)}
    here = {gpu.index for gpu in _answering(health)}
    return every - here if here or not named else named


def stale(age: float, interval: float) -> bool:
    """Return whether a result of this age (seconds) is too old to describe the node."""
    return age > max(_LATE * interval, _LEAST_LATE)


def _shown(value: Any) -> Any:
    """Remove control characters from all texts, since some quote foreign tools."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, (list, tuple)) else value


def _otherwise(health: NodeHealth) -> Verdict:
    """Return the verdict of a node without active findings; a node no check could observe is not healthy."""
    if not health.checks or health.error:
        return health.verdict
    return Verdict.SKIP if all(check.verdict is Verdict.SKIP for check in health.checks) else Verdict.PASS


def _followed(one: Tracked) -> dict[str, Any]:
    return {
        **asdict(one.finding),
        "verdict": one.finding.verdict.value,
        "state": one.state,
        "since": one.since,
        "seen": sum(one.seen),
        "of": one.rule.of,
        "needs": one.rule.needs,
        "clean": one.clean,
        "clear_after": one.rule.clear_after,
        "rule": one.rule.name,
    }


def text(told: Mapping[str, Any]) -> str:
    """Serialise to JSON of at most LARGEST bytes, dropping first evidence, then the mildest findings."""
    made = json.dumps(told, default=str)
    if len(made) > LARGEST:
        told = {**told, "findings": [{**row, "evidence": []} for row in told["findings"]]}
    while len(made := json.dumps(told, default=str)) > LARGEST and told["findings"]:
        told = {**told, "findings": told["findings"][: len(told["findings"]) // 2]}
    return made + "\n"
