"""Grouping of kernel log errors by cause, with one finding per incident on the part that caused it.

A GPU that falls off the bus takes its channels, its firmware and its peers' NVLinks with it: one cause,
thirty lines (kernel_grouping.py). An incident has the worst level and the worst action of all its lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.checks.check import CheckNode, Measurement
from provision.checks.judge import Finding, Verdict, finding_on
from provision.checks.kernel.kernel_grouping import Incident, grouped
from provision.checks.kernel.kernel_log import KernelEvent, bus_address, gravity, instance
from provision.checks.kernel.kernel_meaning import (
    AER_CORRECTED,
    NVRM,
    RECOVERY_ACTION,
    Meaning,
    is_echo,
    lines,
    meaning,
    of_domain,
    worst,
)
from provision.checks.kernel.vendors import driver_log

# NVIDIA's limit for the replays of a healthy PCIe link, which cause these messages.
_AER_PER_MINUTE = 8
_AER_SOURCE = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h: at most 8 PCIe replays a minute"
_NAMES = {"xid": "Xid", "sxid": "SXid", "aer": "PCIe error"}
_OF_MANAGER = "detected NVSwitch "  # the beginning of an SXid in the log of fabric manager
_CATALOGUE = "NVIDIA Xid catalogue (provision/data/xid.yml)"
_SWITCHES = "NVIDIA Fabric Manager guide (provision/data/sxid.yml)"


def devices(node: CheckNode) -> dict[str, str]:
    """Map PCI addresses to gpu<n>, in bus order like nvidia-smi."""
    addresses = sorted(bus_address(str(one)) for one in node.variables.get("gpuprov_pci_addresses", ()))
    return {address: f"gpu{index}" for index, address in enumerate(addresses)}


def spans_nodes(node: CheckNode) -> bool:
    """Return whether GPUs of other nodes are in this node's NVLink domain, as on trays of an NVL72."""
    return bool(node.gpuprov_node.get("gpu", {}).get("fabric") == "imex")


def is_of_driver(line: str, code: str = "") -> bool:
    """Return whether a kernel line is an error of the driver amdgpu. `code`: only of that kind."""
    event = driver_log.event(line)
    return event is not None and (not code or event[0] == code)


def breaks_a_gpu(line: str) -> bool:
    """Return whether a kernel line is an amdgpu error that breaks the GPU."""
    event = driver_log.event(line)
    return event is not None and driver_log.MEANINGS[event[0]].level == "fail"


def of_its_gpus(node: CheckNode, events: Iterable[KernelEvent]) -> list[KernelEvent]:
    """Remove amdgpu's events about a CPU's integrated graphics, on a node with another vendor's GPUs."""
    vendor = node.gpuprov_node.get("gpu", {}).get("vendor")
    return [event for event in events if event.kind != driver_log.KIND or vendor == driver_log.VENDOR]


def named(events: Iterable[KernelEvent], gpus: Mapping[str, str]) -> list[KernelEvent]:
    """Replace the addresses of events with device names, without PCIe errors of unrelated devices.

    PCIe errors remain only for GPUs and the ports above them. A GPU that fell off the bus and is no longer
    listed has no index and keeps its address as its name.
    """
    renamed = []
    for event in events:
        if (whole := event.address.partition(".")[0]) in gpus:  # a GPU's other functions belong to the GPU
            event = replace(event, address=whole)
        if (event.kind == "aer" or driver_log.of_port(event.code)) and event.address not in gpus:
            renamed += _of_port(event, gpus)
            continue
        if event.kind == driver_log.KIND and not driver_log.of_gpu(event.code, event.address, gpus):
            continue
        if of_domain(event.kind, event.code, event.line):  # each GPU of the node repeats it
            renamed.append(replace(event, address="node", below=None))
            continue
        of_gpu = event.kind == "xid" or (event.kind in (driver_log.KIND, NVRM) and event.address)
        away = f"gpu@{event.address}" if of_gpu else "node"
        renamed.append(replace(event, address=gpus.get(event.address, away), below=None))
    # Both ends of a link may report one error, and all NVSwitches count as the node: keep the worst.
    joined: dict[tuple[str, int | str, str], KernelEvent] = {}
    for event in renamed:
        key = event.kind, event.code, event.address
        joined[key] = _joined(joined[key], event) if key in joined else event
    return list(joined.values())


def _joined(one: KernelEvent, other: KernelEvent) -> KernelEvent:
    """Merge two events of the same kind: the worse line, and the larger of each number."""
    return replace(
        max((one, other), key=gravity),
        count=max(one.count, other.count),
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        burst=max(one.burst, other.burst),
    )


def _of_port(event: KernelEvent, gpus: Mapping[str, str]) -> list[KernelEvent]:
    """Return a port's PCIe error as that of the only GPU below it, or as the node's if there are more."""
    if event.below is None:
        return []
    domain, (first, last) = event.address.partition(":")[0], event.below
    below = {
        device
        for address, device in gpus.items()
        if address.partition(":")[0] == domain and first <= int(address.split(":")[1], 16) <= last
    }
    if not below:
        return []
    return [replace(event, address=below.pop() if len(below) == 1 else "node", below=None)]


def measured(events: Iterable[KernelEvent]) -> list[Measurement]:
    """Convert named events to measurements: count, first and last time, most per minute, and a line."""
    measurements = []
    for event in events:
        name, device = f"{event.kind}.{event.code}", event.address
        measurements += [
            Measurement(name, event.count, "events", device),
            Measurement(f"{name}.first", event.first, "s", device),
            Measurement(f"{name}.last", event.last, "s", device),
            Measurement(f"{name}.burst", event.burst, "events/min", device),
            Measurement(f"{name}.line", event.line, "", device),
        ]
    return measurements


def remembered(by_metric: Mapping[str, Mapping[str, Any]]) -> list[KernelEvent]:
    """Rebuild the events from the measurements of `measured`: metric → device → value."""
    events = []
    for metric, counts in sorted(by_metric.items()):
        kind, _, word = metric.partition(".")
        if kind in ("xid", "sxid", "aer") and word.isdigit():
            code: int | str = int(word)
        elif (kind == driver_log.KIND and word in driver_log.MEANINGS) or (kind == NVRM and word in lines()):
            code = word
        else:
            continue
        for device, count in counts.items():
            more: dict[str, Any] = {
                key: by_metric.get(f"{metric}.{key}", {}).get(device) for key in ("first", "last", "burst")
            }
            events.append(
                KernelEvent(
                    kind,
                    code,
                    device,
                    count,
                    str(by_metric.get(f"{metric}.line", {}).get(device, "")),
                    **more,
                )
            )
    return events


def judge(
    check: str,
    events: Sequence[KernelEvent],
    *,
    own_test: bool = False,
    settled: Iterable[str] = (),
    others: Iterable[Finding] = (),
    domain: bool = False,
) -> list[Finding]:
    """Return one finding for each incident that needs an action.

    `own_test`: the events were logged while one of our programs ran, so a program's fault is not a user's.
    `settled`: GPUs without a pending row remap, on which a recorded one (Xid 63) has taken effect. `others`:
    findings from other sources; without one on the same device the message mentions that. `domain`: GPUs of
    other nodes are in the NVLink domain (`spans_nodes`), so an echo breaks no GPU of this node.
    """
    cleared = {
        event.address: event.last
        for event in events
        if (event.kind, event.code) == ("xid", RECOVERY_ACTION)
        and meaning("xid", event.code, event.line).action == "none"
    } | {
        event.address: event.last
        for event in events
        if (event.kind, event.code) == (driver_log.KIND, driver_log.RESET)
    }
    now = _Now(own_test, cleared, frozenset(settled), domain)
    findings = [_finding(check, one, now) for one in grouped(events)]
    # A GPU that no tool lists any longer is reported missing on the node.
    bad = {
        one.device
        for one in others
        if one.verdict is Verdict.FAIL or (one.verdict is Verdict.WARN and one.device != "node")
    }
    return [
        one if bad & {one.device, "node"} else replace(one, message=f"{one.message}; by {_log(one)} alone")
        for one in findings
        if one is not None
    ]


def _log(finding: Finding) -> str:
    by_manager = all(line.startswith(_OF_MANAGER) for line in finding.evidence)
    return "fabric manager's log" if finding.evidence and by_manager else "the kernel log"


@dataclass(frozen=True)
class _Now:
    """State that affects an event's meaning; `cleared`: device → time of its last reset."""

    own_test: bool
    cleared: Mapping[str, float]
    settled: frozenset[str]
    domain: bool


def _finding(check: str, one: Incident, now: _Now) -> Finding | None:
    root, events = one.root, [one.root, *one.with_it]
    requests = [x for x in one.with_it if (x.kind, x.code) == ("xid", RECOVERY_ACTION)]
    read = [_reading(x, now) for x in events]
    level, action = worst(read)
    if level in ("info", "program"):
        return None
    when = "during this test" if now.own_test else "since boot"
    message = _sentence(one, read[0].words, requests, now.domain)
    message += f", {root.count} time{'s' * (root.count != 1)} {when}"
    return finding_on(
        check,
        Verdict.FAIL if level == "fail" else Verdict.WARN,
        Measurement(f"{root.kind}.{root.code}", root.count, "events", one.device),
        message + _company(one, {id(x) for x in requests}),
        f"≤ {_AER_PER_MINUTE} a minute" if root.kind == "aer" else "",
        {"xid": _CATALOGUE, "sxid": _SWITCHES, "aer": _AER_SOURCE}.get(root.kind, "kernel log"),
        action,
        [x.line for x in events if x.line][:5],
    )


def _reading(event: KernelEvent, now: _Now) -> Meaning:
    """Return the meaning of an event in the current state of this node."""
    read = meaning(event.kind, event.code, event.line)
    few = event.kind == "aer" and event.code == AER_CORRECTED and event.burst <= _AER_PER_MINUTE
    remapped = (event.kind, event.code) == ("xid", 63) and event.address in now.settled
    if few or remapped:
        return Meaning("info", "none", read.words)
    if now.domain and read.level == "fail" and is_echo(event.kind, event.code, event.line):
        # This GPU's own errors come with Xid 48 (the decode sheet) or with the driver's request (154).
        read = Meaning("warn", "investigate", read.words)
    if read.level == "program" and now.own_test:
        return Meaning("warn", "investigate", read.words)
    mended = event.kind != driver_log.KIND or driver_log.mended(event.code)
    over = now.cleared.get(event.address, -1.0) >= event.last and mended
    if read.level not in ("fail", "warn") or not over:
        return read
    xid = event.kind == "xid"
    since = "the driver took its demand back since, after a reset" if xid else "the GPU was reset since"
    return Meaning("warn", "watch", f"{read.words}; {since}")


def _sentence(one: Incident, words: str, requests: Sequence[KernelEvent], domain: bool) -> str:
    """Describe the event to blame, its GPU if others are involved, and the driver's request."""
    root = one.root
    requested = [meaning(x.kind, x.code, x.line) for x in requests]
    words = "; ".join([words, *dict.fromkeys(x.words for x in requested if x.action != "none")])
    text = f"{_NAMES.get(root.kind, root.kind)} {root.code} ({words})"
    if root.kind == "aer":
        text = f"{words}, {root.burst} within a minute"
    elif root.kind == driver_log.KIND:
        text = f"the driver amdgpu logged: {words}"
    elif root.kind == NVRM:
        text = f"the NVIDIA driver logged: {words}"
    if any(x.address != root.address for x in one.with_it):
        text += f" of {root.address}"
    if mig := instance(root.line):
        text += f" of the MIG instance {mig}"
    if one.is_echo and domain:
        text += (
            ", an echo of a link that went down elsewhere: look for Xid 149 on the other nodes of its domain"
        )
    elif one.is_echo and one.device == "node":
        text += ", an echo of what these GPUs share: a link of another GPU, or an NVSwitch"
    return text


def _in_words(event: KernelEvent) -> str:
    return meaning(event.kind, event.code, event.line)[2]


def _company(one: Incident, told: set[int]) -> str:
    """Describe the accompanying events: `; with it Xid 45, 94 and Xid 74 of gpu1, gpu2`."""
    by_device: dict[str, list[str]] = {}
    for event in one.with_it:
        if id(event) not in told:
            name = f"{_NAMES[event.kind]} {event.code}" if event.kind in _NAMES else _in_words(event)
            by_device.setdefault(event.address, []).append(name)
    if not by_device:
        return ""
    parts = [
        ", ".join(dict.fromkeys(names)) + ("" if device == one.device else f" of {device}")
        for device, names in sorted(by_device.items())
    ]
    return f"; with it: {'; '.join(parts)}"
