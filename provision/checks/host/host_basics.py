"""Rules of host_health for memory, CPUs, services, file systems and NCCL variables of a machine.

Undeclared values are compared with the fleet instead (data/majority.yml).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from provision import shipped
from provision.checks.check import CheckNode
from provision.checks.host.host_rules import CONFIGURE, Rule, finding, number_of, texts
from provision.checks.judge import Finding, Verdict
from provision.checks.network.rdma_port import entries
from provision.checks.thresholds import limits
from provision.errors import ParseError

FACTS: tuple[str, ...] = (
    *("memory.installed_gib", "cpu.online", "service.running"),
    *("file.read_only_mounts", "file.free_space", "file.nccl_variables"),
)
# variable, fact, sufficient fraction of it, words, action
_DECLARED = (
    ("gpuprov_expected_memory_gib", "memory.installed_gib", 0.98, "GiB of memory", "reseat or check cable"),
    ("gpuprov_expected_cpus", "cpu.online", 1.0, "hardware threads online", CONFIGURE),
)


def _known(node: CheckNode, name: str) -> bool:
    """Return whether this run read the fact; runs stored by older versions did not."""
    return name in node.facts or bool({name, "file"} & node.problems.keys())


def judge_declared(check: str, node: CheckNode) -> list[Finding]:
    """Compare memory and CPUs with declared minima; data/majority.yml compares undeclared ones."""
    findings = []
    for variable, name, enough, words, action in _DECLARED:
        expected = node.variables.get(variable)
        if not isinstance(expected, int):
            continue
        value = number_of(node, name)
        if value is None:
            raise ParseError(f"{name} is not known on this machine", f"remove {variable}")
        if value < expected * enough:
            message = f"{value} of {expected} {words}"
            more: dict[str, Any] = {"limit": f"≥ {expected}", "source": variable, "action": action}
            findings.append(finding(check, Verdict.FAIL, message, name.partition(".")[2], value, **more))
    return findings


def judge_services(check: str, node: CheckNode) -> list[Finding]:
    """Fail each declared service that is not running."""
    expected = node.variables.get("gpuprov_expected_services") or ()
    running = texts(node, "service.running") if expected else ()
    return [
        finding(check, Verdict.FAIL, f"{name}.service does not run", f"service.{name}", "not active", "",
                source="gpuprov_expected_services")
        for name in (str(one).removesuffix(".service") for one in expected) if name not in running
    ]  # fmt: skip


def judge_file_systems(check: str, node: CheckNode) -> list[Finding]:
    """Fail file systems that became read-only (against /etc/fstab), and those nearly full."""
    findings = []
    for path in texts(node, "file.read_only_mounts") if _known(node, "file.read_only_mounts") else ():
        message = (
            f"{path} is mounted read-only, and /etc/fstab has it writable: look for errors in the kernel log"
        )
        findings.append(finding(check, Verdict.FAIL, message, "read_only", path, action="investigate"))
    rows = limits("host_limits")["free_percent"]
    for row in entries(node, "file.free_space") if _known(node, "file.free_space") else ():
        for key, what in (("free_percent", "space"), ("free_inodes_percent", "inodes")):
            free = row.get(key)
            for level, verdict in (("fail", Verdict.FAIL), ("warn", Verdict.WARN)):
                limit = int(rows[level]["limit"])
                if isinstance(free, int) and free < limit:
                    message = f"{row.get('path')} has {free} % of its {what} left"
                    more: dict[str, Any] = {"limit": f"≥ {limit} %", "source": str(rows[level]["source"])}
                    findings.append(finding(check, verdict, message, key, free, "%", **more))
                    break
    return findings


def judge_nccl(check: str, node: CheckNode) -> list[Finding]:
    """Warn of NCCL variables that slow down or stop every NCCL program on the machine."""
    findings, catalogue = [], shipped.load("nccl_environment")
    for row in entries(node, "file.nccl_variables") if _known(node, "file.nccl_variables") else ():
        name, value = str(row.get("name")), str(row.get("value"))
        entry = catalogue.get(name)
        pattern = entry["value"] if entry else "(?!)"
        declared = name == "NCCL_NET" and value == node.variables.get("gpuprov_nccl_net")
        if declared or not re.fullmatch(pattern, value, re.IGNORECASE):
            continue
        origin = f"{row.get('file')}:{row.get('line')}"
        message = f"{origin} sets {name}={value} for every program: {entry['meaning']}"
        findings.append(
            finding(
                check, Verdict.WARN, message, name.lower(), value, source=entry["source"], evidence=(origin,)
            )
        )
    return findings


RULES: Sequence[Rule] = (judge_declared, judge_services, judge_file_systems, judge_nccl)
