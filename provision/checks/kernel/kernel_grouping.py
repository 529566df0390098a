"""Group kernel log events into incidents, and choose the event to blame in each (pure).

What an Xid brings along on its own GPU is in provision/data/xid.yml (`after`), which NVLink errors are the
echo of another GPU's in provision/data/kernel_log.yml (`ranks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from provision.checks.kernel.kernel_log import KernelEvent, gravity
from provision.checks.kernel.kernel_meaning import (
    CLEANUP,
    NVRM,
    RECOVERY_ACTION,
    brings,
    cause_named,
    is_echo,
    lines,
    names_lost_cause,
    rank,
)
from provision.checks.kernel.vendors import driver_log

# Seconds within which errors belong to one incident: a stuck GSP is asked again every 6 s for a while, and a
# job's channels are cleaned up for tens of seconds.
WINDOW = 60.0
_SLACK = 2.0  # the consequence may be logged just before its cause

_NVLINK = frozenset({74, 136, 137, *range(144, 151), 155})
_SILENCING = frozenset({79, 95, 119, 120, 62})  # a GPU with one of these stops answering its peers
_MANY = 3  # GPUs with NVLink errors at once: a link joins two GPUs, so three point to a shared part


@dataclass
class Incident:
    """An incident: the event to blame, its device, and the events it brought along."""

    root: KernelEvent
    device: str
    with_it: list[KernelEvent] = field(default_factory=list)

    @property
    def is_echo(self) -> bool:
        """Whether all of its NVLink errors come from a link that another GPU lost."""
        links = [one for one in (self.root, *self.with_it) if _of_links(one)]
        return _of_links(self.root) and all(is_echo(one.kind, one.code, one.line) for one in links)


def grouped(events: Sequence[KernelEvent]) -> list[Incident]:
    """Named events → incidents. The driver's own verdict (Xid 154) goes with its cause."""
    xids = [event for event in events if event.kind == "xid"]
    others = [event for event in events if event.kind in (driver_log.KIND, NVRM)]
    causes = {id(event): cause for event in events if (cause := _cause(event, xids, others)) is not None}
    incidents = {id(event): Incident(event, event.address) for event in events if id(event) not in causes}
    for event in events:
        root = event
        while id(root) in causes:  # the catalogue's rows lead nowhere in a circle; a test holds that
            root = causes[id(root)]
        if root is not event:
            incidents[id(root)].with_it.append(event)
    for one in incidents.values():
        if one.root.kind == NVRM and one.device == "node":  # the line that follows names the GPU
            one.device = next((x.address for x in one.with_it if x.kind == NVRM), one.device)
            one.root = replace(one.root, address=one.device)
    return _shared(list(incidents.values()))


def _near(root: KernelEvent, event: KernelEvent) -> bool:
    return root.first - _SLACK <= event.first and event.last <= root.last + WINDOW


def _cause(
    event: KernelEvent, xids: Sequence[KernelEvent], others: Sequence[KernelEvent]
) -> KernelEvent | None:
    if event.kind == driver_log.KIND:
        return _cause_in_driver(event, others)
    if event.kind == NVRM:
        after = lines()[str(event.code)].get("after", ())
        return next((x for x in others if x.kind == NVRM and x.code in after and _near(x, event)), None)
    if event.kind != "xid":
        return None
    beside = [x for x in xids if x.address == event.address and x is not event]
    if event.code == RECOVERY_ACTION:
        near = [x for x in beside if _near(x, event)]
        return max(near, key=lambda x: (*gravity(x), -x.first), default=None)
    if event.code == CLEANUP and (named := cause_named(event.line)) not in (None, RECOVERY_ACTION):
        known = next((x for x in beside if x.code == named), None)
        if known is not None or names_lost_cause(event.code, event.line):
            return known
    own = [x for x in beside if brings(int(x.code), int(event.code))]
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
    """Find the earlier line that caused this one: of the same GPU, of a GPU reset together with it, or of any
    GPU if the driver names none."""
    after = driver_log.MEANINGS[str(event.code)].after
    near = [
        other
        for other in others
        if other.kind == driver_log.KIND
        and other.code in after
        and other is not event
        and (
            other.address == event.address
            or event.address == "node"
            or event.code in driver_log.MEANINGS[str(other.code)].hive
        )
        and _near(other, event)
        and (other.first, str(other.code)) < (event.first, str(event.code))
    ]
    return min(near, key=lambda other: other.first, default=None)


def _shared(incidents: list[Incident]) -> list[Incident]:
    """NVLink errors of one moment, of many GPUs or of a switch, are one incident of the highest rank."""
    links = [one for one in incidents if _of_links(one.root)]
    links.sort(key=lambda one: one.root.first)
    found = [one for one in incidents if not _of_links(one.root)]
    while links:
        until = links[0].root.last + WINDOW
        together = [one for one in links if one.root.first <= until]
        links = [one for one in links if one.root.first > until]
        found += _ranked(together)
    return found


def _of_links(event: KernelEvent) -> bool:
    return event.kind == "sxid" or (event.kind == "xid" and event.code in _NVLINK)


def _precedence(one: Incident) -> tuple[int, int]:
    """By level, then by rank as a cause."""
    event = one.root
    return gravity(event)[0], rank(event.kind, event.code, event.line)


def _ranked(together: list[Incident]) -> list[Incident]:
    """One incident for each culprit, the others' lines with the first; apart where nothing joins them."""
    top = max(_precedence(one) for one in together)
    chiefs = [one for one in together if _precedence(one) == top and one.root.kind == "xid"]
    chiefs = chiefs or [one for one in together if _precedence(one) == top][:1]
    rest = [one for one in together if one not in chiefs]
    gpus = {one.device for one in together if one.root.kind == "xid"}
    if len({one.device for one in chiefs}) >= _MANY:
        first, *others = chiefs
        chiefs, rest = [Incident(first.root, "node", [*first.with_it])], [*others, *rest]
    elif len(gpus) < _MANY and not any(one.root.kind == "sxid" for one in together):
        apart = [one for one in rest if not is_echo(one.root.kind, one.root.code, one.root.line)]
        chiefs, rest = [*chiefs, *apart], [one for one in rest if one not in apart]
    for one in rest:
        chiefs[0].with_it += [one.root, *one.with_it]
    return chiefs
