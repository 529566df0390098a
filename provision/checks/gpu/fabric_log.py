"""Rules for fabric manager and IMEX logs since boot, by provision/data/fabric_lines.yml (pure).

A failed start-up no longer counts once the daemon has configured the NVSwitches, nor a lost peer once it is
connected again. The NVSwitch errors that fabric manager logs are the SXids of the kernel log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.checks.check import CheckNode
from provision.checks.gpu.inventory_rules import ID
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.kernel import host_lines
from provision.checks.kernel.host_lines import HostEvent, Log
from provision.checks.kernel.kernel_log import KernelEvent, bus_address
from provision.checks.network.rdma_port import entries
from provision.errors import ParseError
from provision.text import one_line

_CATALOGUE, _METRIC = "fabric_lines", "fabric_log."
# fact → (log, the fabrics that need the daemon on this machine)
_LOGS = {
    "fabric.manager_log": (Log(_CATALOGUE, "fabric manager", _METRIC, ""), ("nvswitch", "nvlink5")),
    "fabric.imex_log": (Log(_CATALOGUE, "IMEX", _METRIC, ""), ("imex",)),
}
FACTS = (*_LOGS, "fabric.manager_matches_driver")
# `fid` in logs of 2024 and 2025, `NodeId` in 2026.
_SWITCH = re.compile(
    r"detected NVSwitch (?:non-)?fatal error (\d{1,6}) on (?:fid|NodeId) \d{1,5} on NVSwitch "
    r"pci bus id ([0-9A-Fa-f:.]{7,16}) physical id \d"
)
_NO_SWITCH, _PEER_LOST = "no_switch", "peer_lost"


def _rows(node: CheckNode, name: str) -> list[Mapping[str, Any]]:
    """Return the rows of a log, if the fabric needs its daemon; raise ParseError if they are malformed."""
    if node.gpuprov_node["gpu"].get("fabric") not in _LOGS[name][1]:
        return []
    if node.facts.get(name) is None and name not in node.problems:
        return []
    rows = entries(node, name)
    for row in rows:
        numbers = [row.get(key) for key in ("count", "first", "last")]
        if not isinstance(row.get("line"), str) or any(type(one) is not int for one in numbers):
            raise ParseError(f"{name}: an entry without line, count or time", "run the check again")
    return rows


def switch_errors(node: CheckNode) -> list[KernelEvent]:
    """Return the NVSwitch errors logged by fabric manager as kernel log events."""
    try:
        rows = _rows(node, "fabric.manager_log")
    except ParseError:
        return []  # `judge` reports it
    return [
        KernelEvent(
            "sxid",
            int(match[1]),
            bus_address(match[2]),
            row["count"],
            row["line"],
            float(row["first"]),
            float(row["last"]),
        )
        for row in rows
        if (match := _SWITCH.match(row["line"]))
    ]


def judge(node: CheckNode, findings: Sequence[Finding]) -> list[Finding]:
    """Add the findings of the logs: as the cause if GPUs have not joined, or else separately."""
    updated = list(findings)
    for name, (log, _) in _LOGS.items():
        try:
            events = _standing(_rows(node, name))
        except ParseError as error:
            why = f"the log of {log.writer} is not judged: {one_line(error.what, 200)}"
            updated.append(replace(unmeasured(ID, why), verdict=Verdict.SKIP))
            continue
        apart = [one for one in updated if one.metric == "fabric_state" and one.verdict is Verdict.FAIL]
        if any(one.metric == "fabric_state" for one in updated) and not apart:
            # The fabric of a virtual machine's GPUs is managed by its host.
            events = [event for event in events if event.id != _NO_SWITCH]
        logged = sorted(host_lines.judge(ID, node, events, log), key=_rank)
        if apart and logged:
            cause = logged.pop(0)
            updated = [_explained(one, cause) if one in apart else one for one in updated]
        updated += logged
    return updated


def _rank(finding: Finding) -> int:
    return host_lines.catalogue(_CATALOGUE)[finding.metric.removeprefix(_METRIC)].rank


def _explained(finding: Finding, cause: Finding) -> Finding:
    message = f"{finding.message}; {cause.message}"
    return replace(finding, message=message, action=cause.action, evidence=cause.evidence)


def _standing(rows: Sequence[Mapping[str, Any]]) -> list[HostEvent]:
    """Return the events that no later line has ended.

    Lost peers count once, and only if at least half of them are lost; otherwise the fault is theirs."""
    catalogue = host_lines.catalogue(_CATALOGUE)
    events: dict[tuple[str, str], HostEvent] = {}
    peers: set[str] = set()
    for row in rows:
        kind = host_lines.kind_of(row["line"], _CATALOGUE)
        if kind is None:
            continue
        peers |= {kind[1]} - {"node"}
        events = {
            key: event
            for key, event in events.items()
            if kind[0] not in catalogue[event.id].until
            or (kind[1] != event.device and "node" not in (kind[1], event.device))
        }
        count = row["count"] + (events[kind].count if kind in events else 0)
        events[kind] = HostEvent(*kind, count, row["line"])
    lost = [event for event in events.values() if event.id == _PEER_LOST]
    standing = [event for event in events.values() if event.id != _PEER_LOST]
    if lost and 2 * len(lost) >= len(peers):
        standing.append(replace(lost[-1], device="node", count=sum(event.count for event in lost)))
    return standing
