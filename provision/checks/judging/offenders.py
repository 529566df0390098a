"""Repeat offenders: a fault of a device that came back after a repair gets a stronger action (pure).

A single warning is watched. What came back after a repair is investigated, and what did so again is replaced,
with the earlier runs as evidence. The repairs that runs can see: another boot, and a run of the same check
without the fault. Three looks at one fault are one fault. Configuration, versions that differ and what could
not be measured never wear out a part: they are neither counted nor raised.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from provision import yamlfile
from provision.checks.health import NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.paths import DATA
from provision.text import many

# What asks for a hand on a device. A configuration, a job or a second run is no matter of its hardware; a
# reboot mends what the node's software disagrees about, and a cable that was reseated is no worn part.
_OF_HARDWARE = ("watch", "reset GPU", "power-cycle", "investigate", "replace part")
_GPU = re.compile(r"gpu(\d+)")
# The kernel log of a boot is read by one check; others read the part that came while they ran.
_OF_KERNEL_LOG = dict.fromkeys(("xid", "sxid", "aer", "nvrm", "amdgpu"), "gpu_inventory") | {
    "host_line": "host_health"
}


@dataclass(frozen=True)
class Rules:
    """data/offenders.yml: within the last `runs` runs, how often a fault must have appeared anew.

    `software`: faults (check.metric) that are of programs alone.
    """

    runs: int
    investigate: int
    replace: int
    software: Collection[str] = ()


@dataclass(frozen=True)
class Past:
    """One run of a node: its name, its faults (by `fault`), the boot it saw, and the checks that measured.
    Older versions kept neither of the last two.
    """

    run: str
    bad: Collection[str]
    boot: str = ""
    measured: Collection[str] = ()

    def record(self) -> dict[str, Any]:
        """The inverse of `past_of`."""
        return {
            "run": self.run,
            "bad": sorted(self.bad),
            "boot": self.boot,
            "measured": sorted(self.measured),
        }


def past_of(row: Mapping[str, Any]) -> Past:
    """A run as it was kept. Raises KeyError or TypeError."""
    bad, measured = (frozenset(map(str, names)) for names in (row["bad"], row.get("measured", ())))
    return Past(str(row["run"]), bad, str(row.get("boot", "")), measured)


@cache
def rules() -> Rules:
    """The shipped rules."""
    document = yamlfile.load_mapping(DATA / "offenders.yml")
    return Rules(**{name: document[name] for name in Rules.__dataclass_fields__})


def identity(node: NodeHealth, device: str) -> str:
    """The name of a device that stays with it: `gpu3` → its UUID, `gpu2-gpu6` → both; others as they are."""
    uuids = {gpu.index: gpu.uuid or gpu.serial for gpu in node.gpus}
    return _GPU.sub(lambda match: uuids.get(int(match[1])) or match[0], device)


def fault(node: NodeHealth, finding: Finding) -> str:
    """The name of a fault that stays with it: the device's identity, a space, and the kind of fault."""
    return f"{identity(node, finding.device)} {_kind(finding)}"


def _kind(finding: Finding) -> str:
    check = _OF_KERNEL_LOG.get(finding.metric.partition(".")[0], finding.check)
    return f"{check}.{finding.metric}".replace(" ", "_")


def past_from(run: str, node: NodeHealth, asked: Iterable[str]) -> Past:
    """What this run found, to be kept. `asked`: the checks of the run."""
    found = (f for check in node.checks for f in check.wrong if _counts(f))
    unmeasured = {
        check.check
        for check in node.checks
        if check.verdict in (Verdict.SKIP, Verdict.ERROR)
        or any(f.verdict is Verdict.ERROR for f in check.wrong)
    }
    measured = () if node.error else frozenset(asked) - unmeasured
    return Past(run, frozenset(fault(node, f) for f in found), _boot(node), measured)


def _counts(finding: Finding) -> bool:
    return (
        finding.verdict in (Verdict.WARN, Verdict.FAIL)
        and finding.action in _OF_HARDWARE
        and _kind(finding) not in rules().software
    )


def appearances(name: str, runs: Iterable[Past], use: Rules) -> list[str]:
    """The runs in which the fault `name` appeared anew, of the last that count. `runs`: oldest first.

    Runs that saw it without a repair between them are one, and it is named by the first of them.
    """
    check = name.rpartition(" ")[2].partition(".")[0]
    steps: list[str] = []  # each run without the fault: ""
    present, boot = False, ""
    for each in runs:
        if name in each.bad:
            if not present or (boot and each.boot and boot != each.boot):
                steps.append(each.run)
            present, boot = True, each.boot or boot
        elif check in each.measured:
            present = False
            steps.append("")
    return [run for run in steps[-use.runs :] if run]


def _boot(node: NodeHealth) -> str:
    return str(node.facts.get("boot", ""))


def escalate(
    nodes: Iterable[NodeHealth], past: Mapping[str, Sequence[Past]], use: Rules | None = None
) -> tuple[NodeHealth, ...]:
    """The nodes, with the action of each repeat offender raised. `past`: node → earlier runs, oldest first.

    No verdict changes: what a device did before does not make today's measurement another one.
    """
    use = use or rules()
    return tuple(_raised(node, past[node.node], use) if past.get(node.node) else node for node in nodes)


def _raised(node: NodeHealth, earlier: Sequence[Past], use: Rules) -> NodeHealth:
    checks = [
        replace(check, findings=tuple(_again(node, finding, earlier, use) for finding in check.findings))
        for check in node.checks
    ]
    return replace(node, checks=tuple(checks))


def _again(node: NodeHealth, finding: Finding, earlier: Sequence[Past], use: Rules) -> Finding:
    if not _counts(finding):
        return finding
    name = fault(node, finding)
    now = Past("now", {name}, _boot(node))
    runs = appearances(name, (*earlier, now), use)
    action = _next(finding, len(runs), use)
    if action == finding.action:
        return finding
    said = f"came back {many(len(runs) - 1, 'time')} after a reboot or a run without it"
    return replace(
        finding,
        action=action,
        message=f"{finding.message}; {said}",
        evidence=(*finding.evidence, f"{said}: first found in {', '.join(runs[:-1])}"),
    )


def _next(finding: Finding, times: int, use: Rules) -> str:
    """What to do about a fault that appeared `times` times."""
    # Which part of a node is the bad one, no number of runs says.
    if times >= use.replace and finding.device != "node":
        return "replace part"
    if times >= use.investigate and (finding.action == "watch" or times >= use.replace):
        return finding.action if finding.action == "replace part" else "investigate"
    return finding.action
