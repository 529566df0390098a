"""Grouping of kernel log events into incidents with the event to blame in each (pure).

provision/data/xid.yml (`after`) lists the consequences of an Xid on its own GPU,
provision/data/kernel_log.yml (`ranks`) the NVLink errors that echo another GPU's.
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

# An incident's span in seconds: requests to a stuck GSP repeat every 6 s, channel cleanup takes tens.
WINDOW = 60.0
_SLACK = 2.0  # the consequence may be logged just before its cause

_NVLINK = frozenset({74, 136, 137, *range(144, 151), 155})
_SILENCING = frozenset({79, 95, 119, 120, 62})  # a GPU with one of these stops responding to its peers
_MANY = 3  # GPUs with NVLink errors at once: a link joins two GPUs, so three point to a shared part


@dataclass
class Incident:
    """An incident: the event to blame, its device, and the events it caused."""

    root: KernelEvent
    device: str
    with_it: list[KernelEvent] = field(default_factory=list)

    @property
    def is_echo(self) -> bool:
        """Whether all of its NVLink errors come from a link that another GPU lost."""
        links = [one for one in (self.root, *self.with_it) if _of_links(one)]
        return _of_links(self.root) and all(is_echo(one.kind, one.code, one.line) for one in links)


def grouped(events: Sequence[KernelEvent]) -> list[Incident]:
    """Group named events into incidents; the driver's own verdict (Xid 154) goes with its cause."""
    xids = [event for event in events if event.kind == "xid"]
    others = [event for event in events if event.kind in (driver_log.KIND, NVRM)]
    causes = {id(event): cause for event in events if (cause := _cause(event, xids, others)) is not None}
    incidents = {id(event): Incident(event, event.address) for event in events if id(event) not in causes}
    for event in events:
        root = event
        while id(root) in causes:  # the catalogue's rows form no cycle, as a test ensures
            root = causes[id(root)]
        if root is not event:
            incidents[id(root)].with_it.append(event)
    for one in incidents.values():
        if one.root.kind == NVRM and one.device == "node":  # the next line names the GPU
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
    same_gpu = [x for x in xids if x.address == event.address and x is not event]
    if event.code == RECOVERY_ACTION:
        near = [x for x in same_gpu if _near(x, event)]
        return max(near, key=lambda x: (*gravity(x), -x.first), default=None)
    if event.code == CLEANUP and (named := cause_named(event.line)) not in (None, RECOVERY_ACTION):
        cause = next((x for x in same_gpu if x.code == named), None)
        if cause is not None or names_lost_cause(event.code, event.line):
            return cause
    own = [x for x in same_gpu if brings(int(x.code), int(event.code))]
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
    """Return the earlier line that caused this one, on the same GPU or one reset together with it.

    If the line names no GPU, the cause may be on any."""
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
    """Merge simultaneous NVLink errors of many GPUs or of a switch into one incident of the highest rank."""
    links = [one for one in incidents if _of_links(one.root)]
    links.sort(key=lambda one: one.root.first)
    merged = [one for one in incidents if not _of_links(one.root)]
    while links:
        until = links[0].root.last + WINDOW
        together = [one for one in links if one.root.first <= until]
        links = [one for one in links if one.root.first > until]
        merged += _ranked(together)
    return merged


def _of_links(event: KernelEvent) -> bool:
    return event.kind == "sxid" or (event.kind == "xid" and event.code in _NVLINK)


def _precedence(one: Incident) -> tuple[int, int]:
    """Return the sort key: level, then rank as a cause."""
    event = one.root
    return gravity(event)[0], rank(event.kind, event.code, event.line)


def _ranked(together: list[Incident]) -> list[Incident]:
    """Return one incident per culprit; the first takes all other lines, except unrelated ones."""
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
