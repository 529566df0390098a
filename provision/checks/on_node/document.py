"""The document that the program prints and writes, /run/gpuprov/health.json: docs/health.md has its
fields."""

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
LARGEST = 256 * 1024  # bytes; who reads it refuses more
_LATE, _LEAST_LATE = 3, 180.0  # intervals, seconds
_TOLD = Rule("skip", 1, 1, 1)  # of what was not looked at, and why: it is told, and counts for nothing
_FINDINGS = 200  # of a node with hundreds of ports, each with its trouble, the worst


def document(
    health: NodeHealth,
    tracked: Sequence[Tracked],
    run: Mapping[str, Any],
    interval: int,
    known: Sequence[GpuIdentity] = (),
) -> dict[str, Any]:
    """`run`: boot_id, uptime, started, finished, seconds of this run. `known`: the GPUs that there were since
    boot: those that did not answer in this run are `lost`."""
    gpus, lost = identified(health, known), _lost(health, known)
    found = [finding for check in health.checks for finding in check.findings]
    told = [
        Tracked(finding, _TOLD, run["started"], (True,), active=True)
        for finding in found
        if finding.verdict is Verdict.SKIP
    ]
    rows = [_followed(one) for one in (*tracked, *told)]
    made = {
        "format": FORMAT,
        "gpuprov": __version__,
        "node": health.node,
        **run,
        "interval": interval,
        "verdict": debounce.verdict(tracked, _otherwise(health)).value,
        "measured": health.verdict.value,
        # With a check, a finding of it says what is wrong.
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
    """The GPUs that there were since boot. Of one that does not answer only a part may be listed still: it
    keeps the name and the serial number that were `known`."""
    every = {gpu.index: gpu for gpu in (*health.gpus, *known, *_answering(health))}
    return [every[index] for index in sorted(every)]


def _silent(health: NodeHealth) -> set[str]:
    """The devices that a finding says do not answer."""
    found = (one for check in health.checks for one in check.findings)
    return {one.device for one in found if one.metric == "unanswered" and one.verdict is Verdict.FAIL}


def _answering(health: NodeHealth) -> list[GpuIdentity]:
    silent = _silent(health)
    return [gpu for gpu in health.gpus if (gpu.name or gpu.uuid) and f"gpu{gpu.index}" not in silent]


def _lost(health: NodeHealth, known: Sequence[GpuIdentity]) -> set[int]:
    """By index. For one GPU without a handle a tool may describe none of them, and say which one it is."""
    every = {gpu.index for gpu in identified(health, known)}
    named = {index for index in every if f"gpu{index}" in _silent(health)}
    here = {gpu.index for gpu in _answering(health)}
    return every - here if here or not named else named


def stale(age: float, interval: float) -> bool:
    """Whether a result of this age (seconds) says nothing of the node any more."""
    return age > max(_LATE * interval, _LEAST_LATE)


def _shown(value: Any) -> Any:
    """Without what a terminal does not show as itself: tools' own words are among the texts."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, (list, tuple)) else value


def _otherwise(health: NodeHealth) -> Verdict:
    """What a node is without a finding that counts. One that no check could look at is never healthy."""
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
    """As JSON of at most LARGEST bytes: of a longer one the evidence is left out, then the mildest
    findings."""
    made = json.dumps(told, default=str)
    if len(made) > LARGEST:
        told = {**told, "findings": [{**row, "evidence": []} for row in told["findings"]]}
    while len(made := json.dumps(told, default=str)) > LARGEST and told["findings"]:
        told = {**told, "findings": told["findings"][: len(told["findings"]) // 2]}
    return made + "\n"
