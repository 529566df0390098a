"""Versions of the driver's module, its libraries, fabric manager and IMEX, which must be the same.

Further versions should be the same on the nodes of a fleet; they are compared once all nodes are observed
(provision/checks/fleet/majority.py). Judged from facts alone: runs nothing on the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output, fact
from provision.checks.fleet import majority
from provision.checks.fleet.majority import Outlier, Voter, outlier_text, tie_text
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.host.host_rules import flag_of, text_of
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.thresholds import Threshold
from provision.desired.compared import compared_facts
from provision.errors import ParseError
from provision.shared_facts import Pool

SUMMARY = "driver, its libraries, fabric manager, IMEX of one version; versions and firmware like the fleet's"
FINDS = (
    "driver module and libraries, fabric manager, IMEX of one version; driver, kernel, VBIOS, BIOS and "
    "card firmware as on most nodes of the kind"
)
NEEDS: tuple[str, ...] = ()
# By the names of data/majority.yml.
ALIKE = (
    *("driver.loaded_version", "driver.userspace_version", "driver.flavour", "kernel.release"),
    *("firmware.gpu_vbios", "firmware.gpu_gsp", "firmware.bios_version", "rdma.firmware"),
    *("amdgpu.loaded_version", "amdgpu.rocm", "amdgpu.vbios"),  # on nodes with AMD's GPUs
    *("memory.installed_gib", "cpu.online"),
)
_COMPARED = (
    *("driver.loaded_version", "driver.userspace_version", "driver.flavour", "kernel.release"),
    *("firmware.gpu_vbios", "firmware.gpu_gsp", "firmware.bios_version", "firmware.system", "firmware.rdma"),
)
FACTS: tuple[str, ...] = (
    *(*_COMPARED, "memory.installed_gib", "cpu.online"),
    *(
        "driver.mismatch",
        "driver.installed_version",
        "fabric.manager_version",
        "fabric.manager_matches_driver",
    ),
    *("fabric.imex_version", "fabric.imex_matches_driver", "service.nvidia-imex.active"),
)

ID = "versions"

_NOT_SHARED = "no GPU memory is shared between the trays of the rack"
_SOURCE = "NVIDIA Fabric Manager user guide: its version must be that of the driver"


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return []


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:  # noqa: ARG001 - the contract
    """Return the node's own versions."""
    names = (
        "driver.loaded_version",
        "driver.userspace_version",
        "fabric.manager_version",
        "fabric.imex_version",
    )
    versions = {name: node.facts.get(name) for name in names}
    return [Measurement(name, value[:80], "") for name, value in versions.items() if isinstance(value, str)]


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],  # noqa: ARG001 - the contract
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    findings: list[Finding] = []
    for rule in (_judge_libraries, _judge_fabric_manager, _judge_imex):
        try:
            findings += rule(node)
        except ParseError as error:
            findings.append(unmeasured(ID, f"{error.what}; {error.fix}"))
    findings += not_compared(node, _COMPARED)
    if not any(finding.verdict is not Verdict.SKIP for finding in findings):
        message = "the driver's module, its libraries and the fabric's programs are of one version"
        findings.append(Finding(ID, Verdict.PASS, "node", message, "versions"))
    return findings


def not_compared(node: CheckNode, compared: Sequence[str]) -> list[Finding]:
    """Report facts that could not be read and so are not compared with the fleet."""
    problems = {}
    for name in compared:
        try:
            fact(node, name)
        except ParseError as error:
            problems[name] = error.what
    if not problems:
        return []
    message = f"not compared with other nodes: {'; '.join(problems.values())}"
    return [Finding(ID, Verdict.SKIP, "node", message, "not_compared", len(problems))]


def _judge_libraries(node: CheckNode) -> list[Finding]:
    mismatch = text_of(node, "driver.mismatch")
    if mismatch is None:
        return []
    message = f"the driver's module and library differ: {mismatch}"
    library, on_disk = (node.facts.get(f"driver.{part}_version") for part in ("userspace", "installed"))
    if isinstance(library, str) and isinstance(on_disk, str) and library != on_disk:
        message += (
            f"; the module on disk is {on_disk}, so a reboot does not help: gpuprov up makes them one version"
        )
        return [_finding(Verdict.FAIL, message, "driver_mismatch", mismatch, "fix configuration")]
    return [_apart(node, message, "driver_mismatch", mismatch, "reboot")]


def _judge_fabric_manager(node: CheckNode) -> list[Finding]:
    """Judge fabric manager's version; guests do not need it if their host runs it."""
    if node.gpuprov_node["gpu"].get("fabric") not in ("nvswitch", "nvlink5"):
        return []
    version = text_of(node, "fabric.manager_version")
    if version is None or not _differs(node, "manager"):
        return []
    message = (
        f"fabric manager {version} is installed beside driver {fact(node, 'driver.loaded_version')}: when it "
        f'starts it ends at once, and CUDA with error 802 "system not yet initialized"'
    )
    return [_apart(node, message, "manager_version", version, "fix configuration", _SOURCE)]


def _judge_imex(node: CheckNode) -> list[Finding]:
    """Judge IMEX on trays of an NVL72, ignoring its domain's state, which is unhealthy when idle."""
    if node.gpuprov_node["gpu"].get("fabric") != "imex":
        return []
    version = text_of(node, "fabric.imex_version")
    if version is None:
        message = f"IMEX is not installed: {_NOT_SHARED}"
        return [_finding(Verdict.WARN, message, "imex_version", None, "fix configuration")]
    if _differs(node, "imex"):
        driver = fact(node, "driver.loaded_version")
        message = f"IMEX {version} is installed beside driver {driver}, which it refuses"
        return [_apart(node, message, "imex_version", version, "fix configuration", _SOURCE)]
    state = text_of(node, "service.nvidia-imex.active")
    if state == "active":
        return []
    message = f"nvidia-imex.service is {state or 'not there'}: {_NOT_SHARED}"
    return [_finding(Verdict.FAIL, message, "imex_state", state, "fix configuration")]


def _differs(node: CheckNode, program: str) -> bool:
    """Return whether a program's version differs from the loaded driver's, if there is one."""
    if text_of(node, "driver.loaded_version") is None:
        return False
    return not flag_of(node, f"fabric.{program}_matches_driver")


def _apart(node: CheckNode, message: str, metric: str, value: str, action: str, source: str = "") -> Finding:
    """Report two versions that must be equal; a warning if a planned reboot loads the installed module."""
    if node.facts.get("boot.required") is True:
        message += "; a reboot is planned, which loads the installed module"
        return _finding(Verdict.WARN, message, metric, value, "reboot", source)
    return _finding(Verdict.FAIL, message, metric, value, action, source)


def _finding(
    verdict: Verdict, message: str, metric: str, value: str | None, action: str, source: str = ""
) -> Finding:
    return Finding(ID, verdict, "node", message, metric, value, source=source, action=action)


# --- comparison of the nodes of one kind, by majority.py as in `drift`


# Nodes with another declared driver, such as a canary group, are compared among themselves.
_DECLARED = ("nvidia_driver_source", "nvidia_driver_version", "nvidia_driver_flavour")
_OF_MOST = "most nodes of this run with the same GPUs, system and declared driver"


class Versions:
    """The versions of a fleet, added node by node, and the nodes that differ from most of their kind."""

    def __init__(self) -> None:
        self._voters: dict[str, Voter] = {}
        self._facts = Pool()  # most nodes have equal facts

    def add(self, node: str, voter: Voter | None) -> None:
        """Add the next node; None: it takes no part."""
        if voter is not None:
            self._voters[node] = replace(voter, facts=self._facts.of(voter.facts))

    def found(self) -> tuple[dict[str, list[Finding]], tuple[str, ...]]:
        """Return findings by node, and a line for each fact without a majority value."""
        comparison = majority.compare(self._voters)
        findings: dict[str, list[Finding]] = defaultdict(list)
        for outlier in comparison.outliers:
            if outlier.fact in ALIKE and not outlier.unknown:
                findings[outlier.node].append(_differing(outlier))
        ties = (tie for tie in comparison.ties if tie.fact in ALIKE)
        return dict(findings), tuple(f"{tie.fact}: {tie_text(tie)}" for tie in ties)


def voter_of(node: NodeHealth, one: CheckNode | None) -> Voter | None:
    """Return the facts to compare of a node, or None if its versions were not checked."""
    if one is None or all(check.check != ID for check in node.checks):
        return None
    names = {*FACTS, "os.id", "os.version_id", "gpu.pci", *of_vendors()}
    return Voter(
        one.sku,
        {name: value for name, value in one.facts.items() if name in names},
        ignored=one.variables.get("gpuprov_ignore_majority") or (),
        group=tuple(str(one.variables.get(name, "")) for name in _DECLARED),
    )


@cache
def of_vendors() -> frozenset[str]:
    """Return the facts compared only on nodes with one vendor's GPUs."""
    return frozenset(fact.source for fact in compared_facts().values() if fact.vendor)


def _differing(outlier: Outlier) -> Finding:
    message = f"{outlier.fact} {outlier_text(outlier)}: {outlier.why}"
    value = outlier.found if isinstance(outlier.found, (int, str)) else None
    return Finding(
        ID,
        Verdict.WARN,
        "node",
        message,
        outlier.fact,
        value,
        limit=f"= {outlier.majority}",
        source=_OF_MOST,
        action="investigate"
        if outlier.fact in ("memory.installed_gib", "cpu.online")
        else "fix configuration",
    )


def extended(node: NodeHealth, added: Sequence[Finding]) -> NodeHealth:
    """Return the node with these findings on its versions."""
    checks = tuple(_extended(check, added) if check.check == ID else check for check in node.checks)
    return replace(node, checks=checks, verdict=worst([node.verdict, *(check.verdict for check in checks)]))


def _extended(check: CheckResult, added: Sequence[Finding]) -> CheckResult:
    kept = list(check.wrong)
    findings = (*kept, *added)
    return replace(check, findings=findings, verdict=worst(finding.verdict for finding in findings))
