"""Measurements, thresholds, findings and verdicts, and judging by limits or by peers (pure)."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from provision.text import many


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value with its unit and device: `node`, `gpu3`, or a directed pair `gpu0->gpu5`.

    `metric` is the check's own name for the value (`h2d`); thresholds are named `<check>.<metric>`.
    """

    metric: str
    value: float | int | str | bool
    unit: str
    device: str = "node"


class Verdict(str, enum.Enum):
    """Verdicts ordered from best to worst by `badness`; `error` and `skip` never count as healthy."""

    PASS = "pass"  # noqa: S105
    SKIP = "skip"
    WARN = "warn"
    ERROR = "error"
    FAIL = "fail"

    def __str__(self) -> str:  # not enum.StrEnum of Python 3.11: nodes may have 3.9
        return str(self.value)

    @property
    def badness(self) -> int:
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A judged measurement with the action to take.

    `device`: node, gpu3, gpu0->gpu5, gpu0-gpu5 (both directions). `value`, `unit`: the measured value (None
    if nothing was measured). `limit`: the limit as text ("≥ 238 GB/s"); `source`: its source. `message`: one
    sentence for a person. `action`: one of ACTIONS. `evidence`: lines of raw output that prove it.
    """

    check: str
    verdict: Verdict
    device: str
    message: str
    metric: str = ""
    value: float | int | str | bool | None = None
    unit: str = ""
    limit: str = ""
    source: str = ""
    action: str = "none"
    evidence: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"{self.check}: {self.action!r} is not an action: {', '.join(ACTIONS)}")


ACTIONS = (
    "none",
    "watch",
    "restart job",
    "reset GPU",
    "reboot",
    "power-cycle",
    "reseat or check cable",
    "replace part",
    "fix configuration",
    "investigate",
    "run again",
)


@dataclass(frozen=True)
class TypicalValue:
    """The value a healthy part reaches, in the limit's unit; `machines`: number measured, if known."""

    value: float
    machines: int | None
    source: str


@dataclass(frozen=True)
class Spread:
    """Standard deviation between healthy parts, in percent of the typical value.

    `machines`: how many machines it was estimated from; None: so many that its own error is negligible.
    """

    percent: float
    machines: int | None
    source: str


@dataclass(frozen=True)
class Threshold:
    """The limit for one metric of one SKU. `direction`: at_least, at_most or equal.

    `kind`: measured (from measurements of such machines), vendor (the vendor's own figure) or derived
    (calculated from other figures; the arithmetic is in `source`). `date`: YYYY-MM of the source, empty if a
    user gave none. `machines`: number of measured machines; 0 for a vendor's figure or mere arithmetic, None
    if the source does not state it. `typical`, `spread`: for `checks.judging.threshold_evidence`.
    """

    metric: str  # "<check>.<metric>"
    limit: float
    unit: str
    direction: str
    source: str
    kind: str
    date: str = ""
    machines: int | None = None
    typical: TypicalValue | None = None
    spread: Spread | None = None

    @property
    def cited(self) -> str:
        """The source as findings cite it, with its date and the number of machines behind the limit."""
        rests = [self.date] if self.date else []
        if self.machines is not None:
            rests.insert(0, many(self.machines, "machine") if self.machines else "no machine measured")
        elif self.date:
            rests.insert(0, "number of machines unknown")
        return f"{self.source}; {', '.join(rests)}" if rests else self.source


# re-exported for users' own checks


PEERS = "median of the other GPUs of the node"  # the source of a limit set by the peers


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict, or `error` for an empty list, since nothing was measured.

    A check that does not apply must not hide the others: `skip` is returned only if nothing else was judged.
    """
    given = list(verdicts)
    judged = [verdict for verdict in given if verdict is not Verdict.SKIP] or given
    return max(judged, key=lambda verdict: verdict.badness, default=Verdict.ERROR)


def number(value: float | int | str | bool) -> float | None:
    """Return a measured value as a number, or None for text and booleans."""
    return None if isinstance(value, (str, bool)) else float(value)


def meets(value: float, threshold: Threshold) -> bool:
    """Return whether a value meets its limit."""
    if threshold.direction == "at_least":
        return value >= threshold.limit
    if threshold.direction == "at_most":
        return value <= threshold.limit
    return value == threshold.limit


def limit_text(threshold: Threshold) -> str:
    """Format a limit for a person: `≥ 238 GB/s`."""
    sign = {"at_least": "≥", "at_most": "≤", "equal": "="}[threshold.direction]
    return f"{sign} {threshold.limit:g} {threshold.unit}".rstrip()


_NO_LIMIT = "no limit is known for this GPU; give one with --thresholds FILE"


def without_limit(finding: Finding) -> bool:
    """Return whether a finding reports a number that could not be judged for lack of a limit."""
    return finding.verdict is Verdict.WARN and finding.message.endswith(_NO_LIMIT)


def by_threshold(
    check: str, what: str, measurement: Measurement, threshold: Threshold | None, *, action: str
) -> Finding:
    """Judge one number, described by `what`, against its limit; `warn` if there is no limit."""
    shown = f"{measurement.value:g}" if isinstance(measurement.value, float) else str(measurement.value)
    reading = f"{what} is {shown} {measurement.unit}".rstrip()
    value = number(measurement.value)
    if value is None:
        return unmeasured(check, f"{what} is not a number: {shown}", device=measurement.device)
    if threshold is None:
        message = f"{reading}, but {_NO_LIMIT}"
        return finding_on(check, Verdict.WARN, measurement, message, action="fix configuration")
    limit, good = limit_text(threshold), meets(value, threshold)
    return finding_on(
        check,
        Verdict.PASS if good else Verdict.FAIL,
        measurement,
        f"{reading} (limit {limit})",
        limit,
        threshold.cited,
        "none" if good else action,
    )


def finding_on(
    check: str,
    verdict: Verdict,
    measured: Measurement,
    message: str,
    limit: str = "",
    source: str = "",
    action: str = "none",
    evidence: Iterable[str] = (),
) -> Finding:
    """Build a finding with the device, metric, value and unit of a measurement."""
    of = (measured.metric, measured.value, measured.unit)
    return Finding(check, verdict, measured.device, message, *of, limit, source, action, tuple(evidence))


def unmeasured(
    check: str, message: str, *, device: str = "node", action: str = "run again", evidence: Iterable[str] = ()
) -> Finding:
    """Build the `error` finding for something that could not be measured."""
    return Finding(check, Verdict.ERROR, device, message, action=action, evidence=tuple(evidence))


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Return the median, and the median absolute deviation scaled to a standard deviation (by 1.4826)."""
    values = list(values)
    middle = statistics.median(values)
    return middle, 1.4826 * statistics.median(abs(value - middle) for value in values)


def below_peers(
    values: Mapping[str, float], tolerance: float, peers: int = 3
) -> dict[str, tuple[float, float]]:
    """Return devices far below their peers: device → (median of its peers, shortfall as a fraction).

    A device is included if it is more than `tolerance` (a fraction) and more than three robust deviations
    below that median, so that a group with a wide spread yields nothing. Needs at least `peers` other
    devices.
    """
    behind: dict[str, tuple[float, float]] = {}
    for device, value in values.items():
        # Excludes the device itself: in a small group a slow one would pull its own reference down.
        others = [other for name, other in values.items() if name != device]
        if len(others) < peers:
            continue
        middle, deviation = spread(others)
        if middle <= 0:
            continue
        shortfall = (middle - value) / middle
        if shortfall > tolerance and middle - value > 3 * deviation:
            behind[device] = (middle, shortfall)
    return behind


# Degrees above the peers' median that the position in the airflow cannot explain. Derived: a row of four GPUs
# of 700 W warms the air for the row behind it by 2,800 W / (0.52 m³/s · 1.2 kg/m³ · 1,005 J/kg·K), which is
# 4.5 K (1,105 CFM: DGX H100 user guide); sensors and heat sinks differ by a few degrees more.
HOTTER = 12.0


def hotter(check: str, metric: str, heat: Mapping[str, float], said: str, peers: int = 3) -> list[Finding]:
    """Warn about devices far hotter than their peers; `said`: message with `degrees` and `middle`."""
    findings = []
    for device, degrees in heat.items():
        others = [other for name, other in heat.items() if name != device]
        if len(others) < peers:
            continue
        middle, deviation = spread(others)
        if degrees - middle > max(HOTTER, 3 * deviation):
            measured, limit = Measurement(metric, degrees, "C", device), f"≤ {middle + HOTTER:g} C"
            message = said.format(degrees=degrees, middle=middle)
            findings.append(finding_on(check, Verdict.WARN, measured, message, limit, PEERS, "investigate"))
    return findings


@dataclass(frozen=True)
class Typical:
    """Statistics of the majority of a group: median and scaled median absolute deviation.

    They rest on `core` of the group's `count` values; values far from the majority are excluded.
    """

    middle: float
    deviation: float
    count: int
    core: int

    @property
    def scatter(self) -> float:
        """The difference that chance alone reaches in one of a hundred such groups with normal noise.

        One of `count` values lies k deviations off by chance with probability count * P(k); the factor for
        small groups is Rousseeuw and Leroy's (Robust Regression and Outlier Detection, 1987, chapter 5).
        """
        k = statistics.NormalDist().inv_cdf(1 - 0.01 / max(self.count, 2))
        return k * self.deviation * _for_few(self.count)


def _for_few(count: int) -> float:
    return 1 + 5 / max(count - 1, 1)


def typical(values: Iterable[float], tolerance: float) -> Typical:
    """Return statistics of the majority of `values`, even if nearly half are bad in the same way.

    The bad values would shift a median and inflate the median absolute deviation. So the narrowest interval
    that holds more than half of the values locates the majority first (least median of squares); values near
    it, within its own width or `tolerance` (a fraction of the value), are the core. Raises ValueError without
    values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    half = len(ordered) // 2 + 1
    start = min(range(len(ordered) - half + 1), key=lambda i: ordered[i + half - 1] - ordered[i])
    stretch = ordered[start : start + half]
    middle = statistics.median(stretch)
    # Half of a normal distribution lies within 0.6745 deviations of its middle.
    deviation = (stretch[-1] - stretch[0]) / 2 / 0.6745 * _for_few(len(ordered))
    reach = max(2.5 * deviation, tolerance * abs(middle))
    core = [value for value in ordered if abs(value - middle) <= reach]
    return Typical(*spread(core), len(ordered), len(core))
