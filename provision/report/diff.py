"""Comparison of two runs of a fleet: verdicts, findings, nodes, checks, GPUs and measurements (pure).

A measurement has moved if its relative change differs from that of its SKU's other devices by more than these
differ among themselves (data/compare.yml), so that a noisy benchmark or a warm room flags nothing. A change
of a whole SKU is reported once. Only metrics with a good and a bad direction are compared: those with limits,
those compared across the fleet, and rates. Counters that start at 0 have no relative change; limits judge
them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from provision import yamlfile
from provision.checks import thresholds
from provision.checks.fleet import fleet_judge
from provision.checks.health import FleetHealth, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict, number, typical
from provision.node_names import natural
from provision.paths import DATA

GONE = "not in the report"  # in place of a verdict
_GPU = re.compile(r"\bgpu(\d{1,4})\b")  # `gpu0->gpu5` names two
# A board without a serial number has `0`, `N/A`, `[N/A]` or `[Not Supported]` there.
_UNSTATED = re.compile(r"[\W0_]*|\W*(?:N/?A|unknown.*|none|not.*)\W*", re.IGNORECASE)


@dataclass(frozen=True)
class Rules:
    """Rules from data/compare.yml: `minimum` and `alone` as fractions, `smallest_group` in devices."""

    minimum: float
    alone: float
    smallest_group: int
    source: str


@dataclass(frozen=True)
class Part:
    """A replaced GPU; `was` and `now` are serial numbers (else UUIDs), or "" without a GPU.

    `moved_from`: the new GPU's place in the earlier run, `gpu-02 gpu3`."""

    node: str
    device: str
    slot: str
    was: str
    now: str
    moved_from: str = ""


@dataclass(frozen=True)
class Moved:
    """One moved measurement. `change`: as a fraction of the earlier value.

    `noise`: the largest change that does not count; `replaced`: it is another GPU."""

    node: str
    check: str
    metric: str
    device: str
    unit: str
    was: float
    now: float
    change: float
    noise: float
    worse: bool
    replaced: bool = False


@dataclass(frozen=True)
class Shift:
    """A metric that moved on a whole SKU: median `change` of `values` measurements on `nodes` nodes."""

    sku: str
    check: str
    metric: str
    change: float
    worse: bool
    nodes: int
    values: int


@dataclass(frozen=True)
class FindingChange:
    """One judged metric of one device; verdicts and limits (`…was`, `…now`) are "" if it was not judged."""

    check: str
    metric: str
    device: str
    value: float | int | str | bool | None
    unit: str
    was: str
    now: str
    limit_was: str
    limit_now: str
    message: str


@dataclass(frozen=True)
class NodeChange:
    """A node with a changed verdict (GONE: it is in one run only), and its changed findings."""

    node: str
    was: str
    now: str
    findings: tuple[FindingChange, ...]


@dataclass(frozen=True)
class Diff:
    """All differences.

    `verdicts`: exactly the nodes with a changed verdict, in the later run's order, missing nodes last;
    `failing_anew`: nodes that failed both times, now with additional findings; `only_before`, `only_after`:
    checks requested in one run only; `unpaired`: `check.metric` measured in one run only, for checks that
    measured in both."""

    before: FleetHealth
    after: FleetHealth
    use: Rules
    verdicts: tuple[NodeChange, ...]
    failing_anew: tuple[NodeChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    parts: tuple[Part, ...] = ()
    shifts: tuple[Shift, ...] = ()
    moved: tuple[Moved, ...] = ()
    unpaired: tuple[str, ...] = ()

    @property
    def changed(self) -> list[NodeChange]:
        """Changed verdicts of nodes in both runs."""
        return [one for one in self.verdicts if GONE not in (one.was, one.now)]

    @property
    def new(self) -> list[tuple[str, str]]:
        """(node, verdict) of nodes that only the later run has."""
        return [(one.node, one.now) for one in self.verdicts if one.was == GONE]

    @property
    def gone(self) -> list[tuple[str, str]]:
        """(node, verdict) of nodes that only the earlier run has."""
        return [(one.node, one.was) for one in self.verdicts if one.now == GONE]

    @property
    def worse(self) -> bool:
        """Whether a node newly fails or fails in more ways, or something measured worse."""
        failing = any(change.now == Verdict.FAIL for change in (*self.verdicts, *self.failing_anew))
        slower = any(shift.worse for shift in self.shifts) or any(one.worse for one in self.moved)
        return failing or slower

    @property
    def less_known(self) -> bool:
        """Whether something that was measured before no longer is."""
        lost = (Verdict.ERROR, Verdict.SKIP)
        return bool(self.gone or self.only_before) or any(change.now in lost for change in self.changed)


@cache
def rules() -> Rules:
    """Load the shipped rules."""
    document = yamlfile.load_mapping(DATA / "compare.yml")
    return Rules(**{name: document[name] for name in Rules.__dataclass_fields__})


def diff(before: FleetHealth, after: FleetHealth, *, measured: bool = True) -> Diff:
    """Compare two runs, matching nodes by name; `measured`: include GPUs and (many) measurements."""
    old, new = ({node.node: node for node in fleet.nodes} for fleet in (before, after))
    both = [(old[name], node) for name, node in new.items() if name in old]
    changes = [_change(name, old.get(name), new.get(name)) for name in dict.fromkeys((*new, *old))]
    made = Diff(
        before,
        after,
        rules(),
        tuple(one for one in changes if one.was != one.now),
        tuple(one for pair in both if (one := _failing_anew(*pair)).findings),
        tuple(name for name in before.asked if name not in after.asked),
        tuple(name for name in after.asked if name not in before.asked),
    )
    if not measured:
        return made
    parts = tuple(_parts(before.nodes, both))
    shifts, moved = _measured(both, parts, made.use)
    unpaired = tuple(_unpaired(before, after))
    return replace(made, parts=parts, shifts=shifts, moved=moved, unpaired=unpaired)


def _change(name: str, before: NodeHealth | None, after: NodeHealth | None) -> NodeChange:
    was, now = (node.verdict.value if node else GONE for node in (before, after))
    return NodeChange(name, was, now, tuple(_findings(before, after)) if was != now else ())


def _failing_anew(before: NodeHealth, after: NodeHealth) -> NodeChange:
    """Return the new failures of a node that failed already."""
    fail = Verdict.FAIL
    both = before.verdict is fail and after.verdict is fail
    new = tuple(one for one in _findings(before, after) if one.now == fail) if both else ()
    return NodeChange(after.node, before.verdict.value, after.verdict.value, new)


def _judged(node: NodeHealth | None) -> dict[tuple[str, str, str], Finding]:
    """Return the worst finding by check, metric and device."""
    worst: dict[tuple[str, str, str], Finding] = {}
    for check in node.checks if node else ():
        for finding in check.findings:
            key = (check.check, finding.metric, finding.device)
            if key not in worst or worst[key].verdict.badness < finding.verdict.badness:
                worst[key] = finding
    return worst


def _findings(before: NodeHealth | None, after: NodeHealth | None) -> Iterator[FindingChange]:
    """Yield the changed findings of one node; a pass in both runs is no change."""
    old, new = _judged(before), _judged(after)
    # A limit covers all devices of a node; a device that fails now may have shared a finding before.
    limits = {(check, metric): found.limit for (check, metric, _), found in old.items() if found.limit}
    later = {(check, metric): found.limit for (check, metric, _), found in new.items() if found.limit}
    # Findings that only the earlier run has come last, as nodes do.
    for key in [*new, *(key for key in old if key not in new)]:
        was, now = old.get(key), new.get(key)
        shown = now or was
        old_word, new_word = was.verdict.value if was else "", now.verdict.value if now else ""
        if shown is None or old_word == new_word:  # None only for mypy: each key is from a run
            continue
        if not {"warn", "error", "fail"} & {old_word, new_word}:  # covered by another device's pass
            continue
        check, metric, device = key
        yield FindingChange(
            check, metric, device, shown.value, shown.unit, old_word, new_word,
            limit_was=was.limit if was else limits.get((check, metric), ""),
            limit_now=now.limit if now else later.get((check, metric), ""),
            message=shown.message,
        )  # fmt: skip


def _slots(node: NodeHealth) -> dict[str, GpuIdentity]:
    """Map slots to GPUs by PCI address, because a GPU's index shifts if one before it is lost."""
    return {gpu.pci_address.lower() or f"gpu{gpu.index}": gpu for gpu in node.gpus}


def _identity(one: GpuIdentity, other: GpuIdentity | None = None) -> str:
    """Return the serial number, or the UUID if either GPU lacks one, as some boards do."""
    for name in ("serial", "uuid"):
        stated = [str(getattr(gpu, name)) for gpu in (one, other) if gpu]
        if not any(_UNSTATED.fullmatch(text) for text in stated):
            return stated[0]
    return ""


def _parts(old: Iterable[NodeHealth], both: Iterable[tuple[NodeHealth, NodeHealth]]) -> Iterator[Part]:
    # From all nodes of the earlier run, since a GPU may come from one that the later run lacks.
    places = {_identity(gpu): f"{node.node} gpu{gpu.index}" for node in old for gpu in node.gpus}
    for before, after in both:
        if not before.gpus or not after.gpus:
            continue  # unknown: not measured in one of the runs
        then, now = _slots(before), _slots(after)
        for slot in sorted({*then, *now}, key=natural):
            one, other = then.get(slot), now.get(slot)
            was = _identity(one, other) if one else ""
            present = _identity(other, one) if other else ""
            if was != present:  # two GPUs without any identity count as the same
                shown = other or one
                device = f"gpu{shown.index}" if shown else ""
                came = places.get(present, "") if present else ""
                yield Part(after.node, device, slot, was, present, came)


@cache
def direction(check: str, metric: str, unit: str) -> str:
    """Return `at_least` (low is bad), `at_most`, or "" if the metric has no direction."""
    name = f"{check}.{metric}"
    # A direction stated in the data wins over one guessed from the unit: rates and latencies.
    compared = fleet_judge.shipped().metrics.get(name)
    limited = thresholds.find(name)
    stated = compared or limited
    stated_direction = stated.direction if stated else ""
    if stated_direction in ("at_least", "at_most"):
        return stated_direction
    return "at_least" if unit.endswith("/s") else "at_most" if unit == "us" else ""


def _values(node: NodeHealth) -> dict[tuple[str, str, str, str], tuple[str, float]]:
    """Return (check, metric, unit, device by slot) → (device, value) for metrics with a direction."""
    slots = {gpu.index: slot for slot, gpu in _slots(node).items()}
    values = {}
    for check in node.checks:
        for m in check.measurements:
            value = number(m.value)
            if value is None or not math.isfinite(value) or not direction(check.check, m.metric, m.unit):
                continue
            # `gpu0->gpu5` by slots: a lost GPU renumbers the others, and these would be compared crosswise.
            place = _GPU.sub(lambda match: slots.get(int(match[1]), match[0]), m.device)
            values[check.check, m.metric, m.unit, place] = (m.device, value)
    return values


def _measured(
    both: Iterable[tuple[NodeHealth, NodeHealth]], parts: Iterable[Part], use: Rules
) -> tuple[tuple[Shift, ...], tuple[Moved, ...]]:
    other_gpu = {(part.node, part.device) for part in parts if part.was and part.now}
    groups: dict[tuple[str, str, str, str], list[tuple[str, str, float, float]]] = defaultdict(list)
    for before, after in both:
        sku, then = str(after.facts.get("sku") or ""), _values(before)
        for key, (device, value) in _values(after).items():
            if key in then and then[key][1] > 0:  # from 0, there is no relative change
                groups[sku, *key[:3]].append((after.node, device, then[key][1], value))
    shifts, moved = [], []
    for (sku, check, metric, unit), rows in groups.items():
        ratios = [now / was for _, _, was, now in rows]
        low_is_bad = direction(check, metric, unit) == "at_least"
        # The changes of a few devices may be alike by luck, so a fixed limit holds for them.
        middle, noise = 1.0, use.alone
        if len(rows) >= use.smallest_group:
            usual = typical(ratios, use.minimum)  # of the majority: nearly half may be bad
            middle, noise = usual.middle, max(use.minimum, usual.scatter)
            if abs(middle - 1) > use.minimum:
                nodes = len({name for name, *_ in rows})
                worse = (middle < 1) == low_is_bad  # a fall where low is bad, or a rise where high is
                shifts.append(Shift(sku, check, metric, middle - 1, worse, nodes, len(rows)))
        for (name, device, was, now), ratio in zip(rows, ratios, strict=True):
            # Compared with the others and with itself: a device that kept its rate while the others gained
            # has not moved.
            if abs(ratio - middle) > noise and abs(ratio - 1) > use.minimum:
                gpus = {(name, f"gpu{index}") for index in _GPU.findall(device)}
                moved.append(
                    Moved(
                        name, check, metric, device, unit, was, now, ratio - 1, noise,
                        worse=(ratio < 1) == low_is_bad, replaced=bool(gpus & other_gpu),
                    )
                )  # fmt: skip
    # `diff_text` shows only the first device of each metric, and only the first metrics.
    moved.sort(key=lambda one: (not one.worse, -abs(one.change), natural(one.node)))
    return tuple(shifts), tuple(moved)


def _unpaired(before: FleetHealth, after: FleetHealth) -> Iterator[str]:
    """Yield metrics measured in one run only by checks of both; another gpuprov may have renamed them."""

    def metrics(fleet: FleetHealth) -> dict[str, set[str]]:
        names: dict[str, set[str]] = defaultdict(set)
        for node in fleet.nodes:
            for check in node.checks:
                names[check.check] |= {
                    m.metric for m in check.measurements if direction(check.check, m.metric, m.unit)
                }
        return names

    one, other = metrics(before), metrics(after)
    for check in one:
        if one[check] and other.get(check):
            yield from (f"{check}.{metric}" for metric in sorted(one[check] ^ other[check]))
