"""Repeat offenders: a device with faults in several runs gets a stronger action than a reset (pure).

A single warning is watched. What warned or failed in an earlier run as well is investigated, and what does so
in most runs is replaced, with the earlier runs as evidence. Configuration and what could not be measured
never wear out a part: they are neither counted nor raised.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from provision import yamlfile
from provision.checks.health import NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.paths import DATA

# What asks for a hand on a device; a configuration, a job or a second run is no matter of its hardware.
_OF_HARDWARE = (
    "watch",
    "reset GPU",
    "reboot",
    "power-cycle",
    "reseat or check cable",
    "investigate",
    "replace part",
)
_GPU = re.compile(r"gpu(\d+)")


@dataclass(frozen=True)
class Rules:
    """data/offenders.yml: of the last `runs` runs, in how many a device must be bad."""

    runs: int
    investigate: int
    replace: int


@dataclass(frozen=True)
class Past:
    """One earlier run of a node: its name, and which devices (by `identity`) warned or failed in it."""

    run: str
    bad: Collection[str]


@cache
def rules() -> Rules:
    """The shipped rules."""
    document = yamlfile.load_mapping(DATA / "offenders.yml")
    return Rules(**{name: document[name] for name in Rules.__dataclass_fields__})


def identity(node: NodeHealth, device: str) -> str:
    """The name of a device that stays with it: `gpu3` → its UUID, `gpu2-gpu6` → both; others as they are."""
    uuids = {gpu.index: gpu.uuid or gpu.serial for gpu in node.gpus}
    return _GPU.sub(lambda match: uuids.get(int(match[1])) or match[0], device)


def bad(node: NodeHealth) -> list[str]:
    """The devices of a node that warned or failed, by identity; each once."""
    found = (f.device for check in node.checks for f in check.wrong if _counts(f))
    return sorted({identity(node, device) for device in found})


def _counts(finding: Finding) -> bool:
    return finding.verdict in (Verdict.WARN, Verdict.FAIL) and finding.action in _OF_HARDWARE


def escalate(
    nodes: Iterable[NodeHealth], past: Mapping[str, Sequence[Past]], use: Rules | None = None
) -> tuple[NodeHealth, ...]:
    """The nodes, with the action of each repeat offender raised. `past`: node → earlier runs, oldest first.

    No verdict changes: what a device did before does not make today's measurement another one.
    """
    use = use or rules()
    return tuple(
        _raised(node, past[node.node][-(use.runs - 1) :], use) if past.get(node.node) else node
        for node in nodes
    )


def _raised(node: NodeHealth, earlier: Sequence[Past], use: Rules) -> NodeHealth:
    checks = [
        replace(check, findings=tuple(_again(node, finding, earlier, use) for finding in check.findings))
        for check in node.checks
    ]
    return replace(node, checks=tuple(checks))


def _again(node: NodeHealth, finding: Finding, earlier: Sequence[Past], use: Rules) -> Finding:
    if not _counts(finding):
        return finding
    name = identity(node, finding.device)
    runs = [each.run for each in earlier if name in each.bad]
    action = _next(finding, 1 + len(runs), use)
    if action == finding.action:
        return finding
    said = f"bad in {1 + len(runs)} of the last {1 + len(earlier)} runs"
    return replace(
        finding,
        action=action,
        message=f"{finding.message}; {said}",
        evidence=(*finding.evidence, f"{said}: also in {', '.join(runs)}"),
    )


def _next(finding: Finding, times: int, use: Rules) -> str:
    """What to do about a device that is bad for the `times`-th time."""
    # Which part of a node is the bad one, no number of runs says.
    if times >= use.replace and finding.device != "node":
        return "replace part"
    if times >= use.investigate and (finding.action == "watch" or times >= use.replace):
        return finding.action if finding.action == "replace part" else "investigate"
    return finding.action
