"""Errors of the kernel log that belong together → one finding an incident, on the part it began with.

A GPU that falls off the bus takes its channels, its firmware and its peers' NVLinks with it: one cause,
thirty lines. What an Xid brings along on its own GPU says provision/data/xid.yml (`after`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision.checks.amd import driver_log
from provision.checks.check import CheckNode, Measurement
from provision.checks.host.kernel_log import (
    AER_CORRECTED,
    RECOVERY_ACTION,
    KernelEvent,
    brings,
    bus_address,
    fatal,
    instance,
    meaning,
)
from provision.checks.judge import Finding, Verdict, finding_on

# Seconds within which errors belong to one incident: a stuck GSP is asked again every 6 s for a while, and a
# job's channels are cleaned up for tens of seconds.
WINDOW = 60.0
_SLACK = 2.0  # the consequence may be logged just before its cause

_NVLINK = frozenset({74, 136, 137, *range(144, 151), 155})
_SILENCING = frozenset({79, 95, 119, 120, 62})  # a GPU with one of these stops answering its peers
_MANY = 3  # GPUs with NVLink errors at once: a link joins two, so what they share is to blame

# NVIDIA's own limit for the replays of a healthy PCIe link, of which these messages are the trace.
_AER_PER_MINUTE = 8
_AER_SOURCE = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h: at most 8 PCIe replays a minute"
_NAMES = {"xid": "Xid", "sxid": "SXid", "aer": "PCIe error"}
_ALONE = "by the kernel log alone"
_CATALOGUE = "NVIDIA Xid catalogue (provision/data/xid.yml)"


@dataclass
class Incident:
    """What happened first, on which device, and what came with it."""

    root: KernelEvent
    device: str
    with_it: list[KernelEvent] = field(default_factory=list)


def devices(node: CheckNode) -> dict[str, str]:
    """PCI address → gpu<n>, in the order of the bus, which is nvidia-smi's."""
    addresses = sorted(bus_address(str(one)) for one in node.variables.get("gpuprov_pci_addresses", ()))
    return {address: f"gpu{index}" for index, address in enumerate(addresses)}


def fatal_lines(vendor: str | None) -> tuple[str, ...]:
    """Patterns of the lines after which a GPU of this vendor is of no use until its reset; NVIDIA's driver
    gives numbers instead (provision/data/xid.yml)."""
    return driver_log.FATAL if vendor == "amd" else ()


def is_of_driver(line: str, code: str = "") -> bool:
    """Whether a kernel line is one that the driver amdgpu writes when something is wrong. `code`: of that
    kind."""
    event = driver_log.event(line)
    return event is not None and (not code or event[0] == code)


def breaks_a_gpu(line: str) -> bool:
    """Whether it is such a line, of one that breaks the GPU."""
    event = driver_log.event(line)
    return event is not None and driver_log.MEANINGS[event[0]].level == "fail"


def of_its_gpus(node: CheckNode, events: Iterable[KernelEvent]) -> list[KernelEvent]:
    """Without what the driver amdgpu says of a processor's own graphics, on a node with other GPUs."""
    vendor = node.gpuprov_node.get("gpu", {}).get("vendor")
    return [event for event in events if event.kind != driver_log.KIND or vendor == "amd"]


def named(events: Iterable[KernelEvent], gpus: Mapping[str, str]) -> list[KernelEvent]:
    """Events with the device's name for its address; PCIe errors of all but GPUs and the ports above are
    left out.

    A GPU that nobody lists any more (it fell off the bus) has no index: its address names it.
    """
    found = []
    for event in events:
        if event.kind == "aer" and event.address not in gpus:
            found += _of_port(event, gpus)
            continue
        if event.kind == driver_log.KIND and not driver_log.of_gpu(event.code, event.address, gpus):
            continue
        of_gpu = event.kind == "xid" or (event.kind == driver_log.KIND and event.address)
        away = f"gpu@{event.address}" if of_gpu else "node"
        found.append(replace(event, address=gpus.get(event.address, away), below=None))
    # Both ends of a link may report one error: the end that reports more of it counts. NVSwitches all stand
    # for the node: what one of them calls fatal counts.
    most: dict[tuple[str, int | str, str], KernelEvent] = {}
    for event in found:
        key = event.kind, event.code, event.address
        if key not in most or (fatal(most[key]), most[key].count) < (fatal(event), event.count):
            most[key] = event
    return list(most.values())


def _of_port(event: KernelEvent, gpus: Mapping[str, str]) -> list[KernelEvent]:
    """A PCIe error that the port above GPUs reports: the GPU's if it is alone below, else the node's."""
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
    """Named events as measurements: how often, when first and last, the most within a minute, and a line."""
    found = []
    for event in events:
        name, device = f"{event.kind}.{event.code}", event.address
        found += [
            Measurement(name, event.count, "events", device),
            Measurement(f"{name}.first", event.first, "s", device),
            Measurement(f"{name}.last", event.last, "s", device),
            Measurement(f"{name}.burst", event.burst, "events/min", device),
            Measurement(f"{name}.line", event.line, "", device),
        ]
    return found


def remembered(by_metric: Mapping[str, Mapping[str, Any]]) -> list[KernelEvent]:
    """The inverse of `measured`: metric → device → value."""
    found = []
    for metric, counts in sorted(by_metric.items()):
        kind, _, word = metric.partition(".")
        if kind in ("xid", "sxid", "aer") and word.isdigit():
            code: int | str = int(word)
        elif kind == driver_log.KIND and word in driver_log.MEANINGS:
            code = word
        else:
            continue
        for device, count in counts.items():
            more: dict[str, Any] = {
                key: by_metric.get(f"{metric}.{key}", {}).get(device) for key in ("first", "last", "burst")
            }
            found.append(
                KernelEvent(
                    kind,
                    code,
                    device,
                    count,
                    str(by_metric.get(f"{metric}.line", {}).get(device, "")),
                    **more,
                )
            )
    return found


def grouped(events: Sequence[KernelEvent]) -> list[Incident]:
    """Named events → incidents. The driver's own verdict (Xid 154) goes with its cause."""
    xids = [event for event in events if event.kind == "xid"]
    others = [event for event in events if event.kind == driver_log.KIND]
    causes = {id(event): cause for event in events if (cause := _cause(event, xids, others)) is not None}
    incidents = {id(event): Incident(event, event.address) for event in events if id(event) not in causes}
    for event in events:
        root = event
        while id(root) in causes:  # the catalogue's rows lead nowhere in a circle; a test holds that
            root = causes[id(root)]
        if root is not event:
            incidents[id(root)].with_it.append(event)
    return _shared(list(incidents.values()))


def _near(root: KernelEvent, event: KernelEvent) -> bool:
    return root.first - _SLACK <= event.first and event.last <= root.last + WINDOW


def _cause(
    event: KernelEvent, xids: Sequence[KernelEvent], others: Sequence[KernelEvent]
) -> KernelEvent | None:
    if event.kind == driver_log.KIND:
        return _cause_in_driver(event, others)
    if event.kind != "xid":
        return None
    if event.code == RECOVERY_ACTION:
        near = [x for x in xids if x.address == event.address and x is not event and _near(x, event)]
        worst = {"fail": 0, "warn": 1, "program": 2, "info": 3}
        near.sort(key=lambda x: (worst[meaning(x.kind, x.code, x.line)[0]], x.first))
        return near[0] if near else None
    own = [
        x
        for x in xids
        if x.address == event.address and x is not event and brings(int(x.code), int(event.code))
    ]
    far = [
        x
        for x in xids
        if event.code in _NVLINK
        and x.address != event.address
        and x.code in _SILENCING
        and x.first <= event.first
    ]
    near = [x for x in (*own, *far) if _near(x, event)]
    return min(near, key=lambda x: x.first, default=None)


def _cause_in_driver(event: KernelEvent, others: Sequence[KernelEvent]) -> KernelEvent | None:
    """An earlier line of the same GPU, or of any where the driver did not say of which."""
    after = driver_log.MEANINGS[str(event.code)].after
    near = [
        other
        for other in others
        if other.code in after
        and other is not event
        and (other.address == event.address or event.address == "node")
        and _near(other, event)
        and (other.first, str(other.code)) < (event.first, str(event.code))
    ]
    return min(near, key=lambda other: other.first, default=None)


def _shared(incidents: list[Incident]) -> list[Incident]:
    """NVLink errors of many GPUs at once are one incident of the node; a switch's own go with them."""
    links = [one for one in incidents if one.root.kind == "xid" and one.root.code in _NVLINK]
    links.sort(key=lambda one: one.root.first)
    if not links:
        return incidents
    together = [one for one in links if one.root.first <= links[0].root.last + WINDOW]
    if len({one.device for one in together}) >= _MANY:
        first = together[0]
        joint = Incident(first.root, "node", [*first.with_it])
        for other in together[1:]:
            joint.with_it += [other.root, *other.with_it]
        incidents = [joint, *(one for one in incidents if one not in together)]
        links = [joint]
    for one in [one for one in incidents if one.root.kind == "sxid"]:
        host = next((link for link in links if abs(link.root.first - one.root.first) <= WINDOW), None)
        if host is not None:
            host.with_it += [one.root, *one.with_it]
            incidents.remove(one)
    return incidents


def judge(
    check: str,
    events: Sequence[KernelEvent],
    *,
    own_test: bool = False,
    settled: Iterable[str] = (),
    others: Iterable[Finding] = (),
) -> list[Finding]:
    """One finding for each incident that asks for something; none when all is well.

    `own_test`: these came while one of our programs ran, so a program's fault is none of a user's. `settled`:
    the GPUs that say no row remap is pending, so that a recorded one (Xid 63) has taken effect. `others`:
    findings of other readings; without one on the same device the message says so.
    """
    cleared = {
        event.address: event.last
        for event in events
        if (event.kind, event.code) == ("xid", RECOVERY_ACTION)
        and meaning("xid", event.code, event.line)[1] == "none"
    } | {
        event.address: event.last
        for event in events
        if (event.kind, event.code) == (driver_log.KIND, driver_log.RESET)
    }
    found = [_finding(check, one, own_test, cleared, frozenset(settled)) for one in grouped(events)]
    # A GPU that no tool lists any more is missed on the node.
    bad = {
        one.device
        for one in others
        if one.verdict is Verdict.FAIL or (one.verdict is Verdict.WARN and one.device != "node")
    }
    return [
        one if bad & {one.device, "node"} else replace(one, message=f"{one.message}; {_ALONE}")
        for one in found
        if one is not None
    ]


def _finding(
    check: str, one: Incident, own_test: bool, cleared: Mapping[str, float], settled: frozenset[str]
) -> Finding | None:
    root = one.root
    level, action, words = meaning(root.kind, root.code, root.line)
    if root.kind == "aer" and root.code == AER_CORRECTED and root.burst <= _AER_PER_MINUTE:
        return None
    if (root.kind, root.code) == ("xid", 63) and root.address in settled and not one.with_it:
        return None
    verdicts = [x for x in one.with_it if (x.kind, x.code) == ("xid", RECOVERY_ACTION)]
    wanted = [meaning(x.kind, x.code, x.line) for x in verdicts]
    asked = next((words for words in wanted if words[1] != "none"), None)
    if asked is not None:
        level, action = asked[:2]
        words += f"; {asked[2]}"
    elif level == "program" and own_test:
        level, action = "warn", "investigate"
    if level in ("info", "program"):
        return None
    if asked is None and cleared.get(root.address, -1.0) >= root.last and driver_log.mended(root.code):
        since = "the GPU was reset since"
        if root.kind == "xid":
            since = "the driver took its demand back since, after a reset"
        level, action, words = "warn", "watch", f"{words}; {since}"
    said = f"{_NAMES.get(root.kind, root.kind)} {root.code} ({words})"
    if root.kind == "aer":
        said = f"{words}, {root.burst} within a minute"
    elif root.kind == driver_log.KIND:
        said = f"the driver amdgpu logged: {words}"
    if mig := instance(root.line):
        said += f" of the MIG instance {mig}"
    times = f", {root.count} time{'s' * (root.count != 1)} {'during this test' if own_test else 'since boot'}"
    return finding_on(
        check,
        Verdict.FAIL if level == "fail" else Verdict.WARN,
        Measurement(f"{root.kind}.{root.code}", root.count, "events", one.device),
        said + times + _company(one, {id(x) for x in verdicts}),
        f"≤ {_AER_PER_MINUTE} a minute" if root.kind == "aer" else "",
        {"xid": _CATALOGUE, "aer": _AER_SOURCE}.get(root.kind, "kernel log"),
        action,
        [x.line for x in (root, *one.with_it) if x.line][:5],
    )


def _in_words(event: KernelEvent) -> str:
    return meaning(event.kind, event.code, event.line)[2]


def _company(one: Incident, told: set[int]) -> str:
    """`; with it Xid 45, 94 and Xid 74 of gpu1, gpu2`."""
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
