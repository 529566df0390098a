"""Timeline of one node's burn-in, from its events: steps, segments, reboots, incidents (pure).

Times are seconds since the epoch by the controller's clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.burnin.spool import Event
from provision.text import one_line

# Messages of events that are reported one by one; routine events (segment, step …) are not among them.
_TOLD = {
    "abort": "it was aborted by the rule {rule}: {value} on {device}",
    "clock_jump": "its clock jumped by {seconds} s",
    "error": "its runner failed: {text}",
    "foreign": "{name} (process {pid}) holds a GPU, so {segment} did not run",
    "kernel": "{line}",
    "killed": "{program} was killed by signal {signal} (not by gpuprov)",
    "left": "{name} (process {pid}, state {state}) cannot be stopped",
    "refused": "it refused: {why}",
    "sampler": "{source} of {device}: {trouble}",
    "space": "its disk is nearly full, {what} stopped: {room}",
    "stop": "a stop was requested",
    "unasked": "{what} could not be read: {why}",
    "xid": "Xid {code}: {line}",
}
SERIOUS = frozenset({"abort", "error", "foreign", "killed", "left", "refused", "space", "xid"})
_MEMORY = "the kernel killed {program} because memory ran out: {line}"
_ANSWERS = "{source} of {device} answers again"
_ROOM = "its disk has free space again"
# Events that cut off a step, with the reason.
_CUT = {
    "booted": "the node rebooted",
    "resumed": "the runner was ended",
    "finished": "it was cut off by the end of the burn-in ({})",
}


@dataclass(frozen=True)
class Step:
    """One run of one check. `end`: None if it was cut off; `why`: reason for missing output."""

    number: int
    check: str
    segment: str
    round: int
    begin: float
    end: float | None = None
    raw: str = ""  # the file with its output
    seconds: float = 0.0  # run time of its programs
    why: str = ""
    boot: str = ""


@dataclass(frozen=True)
class Stretch:
    """A segment as it ran. `outcome`: done, or what prevented that; empty while it runs."""

    name: str
    begin: float
    end: float | None = None
    outcome: str = ""


@dataclass(frozen=True)
class Reboot:
    """A reboot of the node, between the events at `last` and `back`; `during`: its segment."""

    last: float
    back: float
    during: str

    @property
    def away(self) -> float:
        return max(0.0, self.back - self.last)


@dataclass(frozen=True)
class Incident:
    """An event that is reported by itself."""

    kind: str  # the event's name
    at: float
    said: str  # message
    during: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Timeline:
    """All events of a node. `began`, `finished`: None if not yet; `ended`: how it came to its end."""

    began: float | None = None
    finished: float | None = None
    ended: str = ""
    steps: list[Step] = field(default_factory=list)
    segments: list[Stretch] = field(default_factory=list)
    reboots: list[Reboot] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    last: float | None = None
    sampling: dict[str, float] = field(default_factory=dict)

    def during(self, moment: float) -> str:
        """Return the segment at a moment."""
        for stretch in reversed(self.segments):
            if stretch.begin <= moment and (stretch.end is None or moment <= stretch.end):
                return stretch.name
        return ""


def timeline(events: Sequence[Event], clock: Clock) -> Timeline:
    """Build the timeline from events in the order written. Never raises for a node's data."""
    result = Timeline()
    step: Step | None = None
    stretch: Stretch | None = None
    before: Event | None = None
    for event in events:
        now = clock.at(event.boot, event.t, event.up)
        if event.name == "started" and result.began is None:
            result.began = now
        if before is not None and event.boot != before.boot:
            during = _during(event.fields.get("during")) or (stretch.name if stretch else "")
            result.reboots.append(Reboot(result.last or now, now, during))
        if event.name in ("step", "booted", "resumed", "finished") and step is not None:
            result.steps.append(_cut(step, _CUT.get(event.name, "it was cut").format(event.text("ended"))))
            step = None
        if event.name == "step":
            step = _step(event, now)
        elif event.name == "step_end":
            result.steps.append(_ended(step or _step(event, now), event, now))
            step = None
        elif event.name == "segment":
            if stretch is not None:
                result.segments.append(Stretch(stretch.name, stretch.begin, result.last, "cut"))
            stretch = Stretch(event.text("name"), now)
        elif event.name == "segment_end":
            begin = stretch.begin if stretch else now
            result.segments.append(Stretch(event.text("name"), begin, now, event.text("outcome") or "done"))
            stretch = None
        elif event.name == "finished":
            result.finished, result.ended = now, event.text("ended") or "done"
            names = ("sampler_cpu_seconds", "tools_cpu_seconds", "wall_seconds")
            result.sampling = {name: event.number(name) for name in names if name in event.fields}
        elif event.name in _TOLD:
            doing = stretch.name if stretch else ""
            result.incidents.append(Incident(event.name, now, _words(event), doing, event.fields))
        result.last = max(now, result.last or now)
        before = event
    if step is not None:
        result.steps.append(step)
    if stretch is not None:
        result.segments.append(stretch)
    return result


def _during(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("segment") or ""
    return one_line(str(value), 60) if isinstance(value, str) else ""


def _step(event: Event, now: float) -> Step:
    number = int(event.number("n", -1))
    return Step(
        number, event.text("check"), event.text("segment"), int(event.number("round")), now, boot=event.boot
    )


def _ended(step: Step, event: Event, now: float) -> Step:
    seconds = event.number("load_seconds", event.number("seconds"))
    raw = event.fields.get("raw")
    return Step(
        step.number, event.text("check") or step.check, event.text("segment") or step.segment, step.round,
        step.begin, now, str(raw)[:120] if isinstance(raw, str) else "", max(0.0, seconds),
        event.text("why"), event.boot,
    )  # fmt: skip


def _cut(step: Step, why: str) -> Step:
    return Step(step.number, step.check, step.segment, step.round, step.begin, None, "", 0.0, why, step.boot)


class _Fields(dict[str, str]):
    """Replaces fields that an event lacks by empty text."""

    def __missing__(self, _key: str) -> str:
        return ""


def _words(event: Event) -> str:
    fields = _Fields({key: event.text(key) for key in event.fields})
    words = _TOLD[event.name]
    if event.name == "killed" and event.fields.get("out_of_memory") is True:
        words = _MEMORY
    elif event.name == "sampler" and event.fields.get("answers") is True:
        words = _ANSWERS
    elif event.name == "space" and event.fields.get("stopped") is False:
        words = _ROOM
    return one_line(words.format_map(fields), 300).strip(" :")


def planned_steps(order: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return segment → check → ordered runs, at least; one run if the segment's length is in minutes."""
    planned: dict[str, dict[str, int]] = {}
    for segment in _list(order.get("segments")):
        rounds = segment.get("repeat")
        count = rounds if type(rounds) is int else 1
        for step in _list(segment.get("steps")):
            checks = planned.setdefault(str(segment.get("name"))[:60], {})
            check = str(step.get("check"))[:64]
            checks[check] = checks.get(check, 0) + count
    return planned


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


# --- Node times by the controller's clock. A node's wall clock may be hours off, or be set during the
# burn-in. Its seconds since boot only increase, and each answer to the controller has both clocks at the same
# moment.


APART = 30.0  # seconds between the two clocks; more is a finding


@dataclass(frozen=True)
class Contact:
    """An answer of the node: seconds since the epoch here (`at`) and there (`now`), and since its boot."""

    at: float
    now: float
    up: float
    boot: str


class Clock:
    """Converts the times of one node to seconds since the epoch by the controller's clock."""

    def __init__(self, contacts: Iterable[Contact], events: Iterable[Event]) -> None:
        self._zero: dict[str, float] = {}  # boot → its moment by the controller's clock
        answers = list(contacts)
        for boot in {contact.boot for contact in answers}:
            self._zero[boot] = min(c.at - c.up for c in answers if c.boot == boot)  # the quickest answer
        self.skew = statistics.median(c.now - c.at for c in answers) if answers else 0.0
        for event in events:
            if event.boot not in {contact.boot for contact in answers}:
                # Without contact in that boot its last known time is the best, since clocks are set late.
                self._zero[event.boot] = event.t - event.up - self.skew

    def at(self, boot: str, t: float, up: float) -> float:
        """Convert the node's time `t`, `up` seconds after that boot."""
        zero = self._zero.get(boot)
        return t - self.skew if zero is None else zero + up
