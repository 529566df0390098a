"""Repeat offenders: stronger actions for a device's fault that came back after a repair (pure).

A first warning is watched. A fault that returns after a repair is investigated, and one that returns again
means replacement, with the earlier runs as evidence. Runs can detect two kinds of repair: a reboot, and a run
of the same check without the fault. Three observations of one fault count once. Configuration, version
differences and unmeasured values never wear out a part: they are neither counted nor escalated.
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

# Actions on the hardware of a device. Configuration, jobs and repeated runs do not concern hardware; a reboot
# resolves software inconsistencies, and a reseated cable is not a worn part.
_OF_HARDWARE = ("watch", "reset GPU", "power-cycle", "investigate", "replace part")
_GPU = re.compile(r"gpu(\d+)")
# One check reads the kernel log of a whole boot; the others read only the lines logged while they ran.
_OF_KERNEL_LOG = dict.fromkeys(("xid", "sxid", "aer", "nvrm", "amdgpu"), "gpu_inventory") | {
    "host_line": "host_health"
}


@dataclass(frozen=True)
class Rules:
    """Rules of data/offenders.yml: how often a fault must reappear within the last `runs` runs.

    `software`: faults (check.metric) caused by software alone.
    """

    runs: int
    investigate: int
    replace: int
    software: Collection[str] = ()


@dataclass(frozen=True)
class Past:
    """One run of a node with its faults (by `fault`); older versions stored no `boot` and `measured`."""

    run: str
    bad: Collection[str]
    boot: str = ""
    measured: Collection[str] = ()

    def record(self) -> dict[str, Any]:
        """Serialise the run; the inverse of `past_of`."""
        return {
            "run": self.run,
            "bad": sorted(self.bad),
            "boot": self.boot,
            "measured": sorted(self.measured),
        }


def past_of(row: Mapping[str, Any]) -> Past:
    """Parse a stored run; raise KeyError or TypeError if it is malformed."""
    bad, measured = (frozenset(map(str, names)) for names in (row["bad"], row.get("measured", ())))
    return Past(str(row["run"]), bad, str(row.get("boot", "")), measured)


@cache
def rules() -> Rules:
    """Load the shipped rules."""
    document = yamlfile.load_mapping(DATA / "offenders.yml")
    return Rules(**{name: document[name] for name in Rules.__dataclass_fields__})


def identity(node: NodeHealth, device: str) -> str:
    """Return a device's permanent name: `gpu3` → its UUID, `gpu2-gpu6` → both; others unchanged."""
    uuids = {gpu.index: gpu.uuid or gpu.serial for gpu in node.gpus}
    return _GPU.sub(lambda match: uuids.get(int(match[1])) or match[0], device)


def fault(node: NodeHealth, finding: Finding) -> str:
    """Return a fault's permanent name: identity of the device, a space, and the kind of fault."""
    return f"{identity(node, finding.device)} {_kind(finding)}"


def _kind(finding: Finding) -> str:
    check = _OF_KERNEL_LOG.get(finding.metric.partition(".")[0], finding.check)
    return f"{check}.{finding.metric}".replace(" ", "_")


def past_from(run: str, node: NodeHealth, asked: Iterable[str]) -> Past:
    """Summarise this run, with its requested checks, for later ones."""
    faults = (f for check in node.checks for f in check.wrong if _counts(f))
    unmeasured = {
        check.check
        for check in node.checks
        if check.verdict in (Verdict.SKIP, Verdict.ERROR)
        or any(f.verdict is Verdict.ERROR for f in check.wrong)
    }
    measured = () if node.error else frozenset(asked) - unmeasured
    return Past(run, frozenset(fault(node, f) for f in faults), _boot(node), measured)


def _counts(finding: Finding) -> bool:
    return (
        finding.verdict in (Verdict.WARN, Verdict.FAIL)
        and finding.action in _OF_HARDWARE
        and _kind(finding) not in rules().software
    )


def appearances(name: str, runs: Iterable[Past], use: Rules) -> list[str]:
    """Return the runs, among the last that count, in which the fault `name` reappeared.

    `runs`: oldest first. Consecutive runs with the fault and no repair between them count once, under the
    first one's name.
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
    """Return the nodes with the actions of repeat offenders raised.

    `past`: node → earlier runs, oldest first. Verdicts do not change: history does not alter today's
    measurement.
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
    history = f"came back {many(len(runs) - 1, 'time')} after a reboot or a run without it"
    return replace(
        finding,
        action=action,
        message=f"{finding.message}; {history}",
        evidence=(*finding.evidence, f"{history}: first found in {', '.join(runs[:-1])}"),
    )


def _next(finding: Finding, times: int, use: Rules) -> str:
    """Return the action for a fault that appeared `times` times."""
    # However many runs: they do not show which part of a node is faulty.
    if times >= use.replace and finding.device != "node":
        return "replace part"
    if times >= use.investigate and (finding.action == "watch" or times >= use.replace):
        return finding.action if finding.action == "replace part" else "investigate"
    return finding.action
