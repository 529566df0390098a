"""Judging of measurements against limits and against peers: findings with a verdict (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provision.checks.model import ACTIONS as ACTIONS  # own checks import these from here
from provision.checks.model import Finding as Finding
from provision.checks.model import Measurement, Threshold
from provision.checks.model import Verdict as Verdict


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst verdict; `error` when there is none at all, for nothing was measured.

    What does not apply says nothing about what does: `skip` is the answer only when nothing else was judged.
    """
    given = list(verdicts)
    judged = [verdict for verdict in given if verdict is not Verdict.SKIP] or given
    return max(judged, key=lambda verdict: verdict.badness, default=Verdict.ERROR)


def number(value: float | int | str | bool) -> float | None:
    """A measured value as a number; None for text and truth values."""
    return None if isinstance(value, str | bool) else float(value)


def meets(value: float, threshold: Threshold) -> bool:
    """Whether a value keeps to a limit."""
    if threshold.direction == "at_least":
        return value >= threshold.limit
    if threshold.direction == "at_most":
        return value <= threshold.limit
    return value == threshold.limit


def limit_text(threshold: Threshold) -> str:
    """The limit as a person reads it: `≥ 238 GB/s`."""
    sign = {"at_least": "≥", "at_most": "≤", "equal": "="}[threshold.direction]
    return f"{sign} {threshold.limit:g} {threshold.unit}".rstrip()


def by_threshold(
    check: str, what: str, measurement: Measurement, threshold: Threshold | None, *, action: str
) -> Finding:
    """Judge one number (`what` names it) against its limit; `warn` when nobody has stated a limit."""
    shown = f"{measurement.value:g}" if isinstance(measurement.value, float) else str(measurement.value)
    said = f"{what} is {shown} {measurement.unit}".rstrip()
    value = number(measurement.value)
    if value is None:
        return unmeasured(check, f"{what} is not a number: {shown}", device=measurement.device)
    if threshold is None:
        return Finding(
            check,
            Verdict.WARN,
            measurement.device,
            f"{said}, but no limit is known for this GPU; give one with --thresholds FILE",
            metric=measurement.metric,
            value=measurement.value,
            unit=measurement.unit,
            action="fix configuration",
        )
    good = meets(value, threshold)
    return Finding(
        check,
        Verdict.PASS if good else Verdict.FAIL,
        measurement.device,
        f"{said} (limit {limit_text(threshold)})",
        metric=measurement.metric,
        value=measurement.value,
        unit=measurement.unit,
        limit=limit_text(threshold),
        source=threshold.cited,
        action="none" if good else action,
    )


def unmeasured(
    check: str, message: str, *, device: str = "node", action: str = "run again", evidence: Iterable[str] = ()
) -> Finding:
    """The verdict for what could not be measured."""
    return Finding(check, Verdict.ERROR, device, message, action=action, evidence=tuple(evidence))


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Median, and median absolute deviation scaled to a standard deviation (times 1.4826)."""
    values = list(values)
    middle = statistics.median(values)
    return middle, 1.4826 * statistics.median(abs(value - middle) for value in values)


def below_peers(
    values: Mapping[str, float], tolerance: float, peers: int = 3
) -> dict[str, tuple[float, float]]:
    """Who falls behind the median of the others: device → (median of its peers, shortfall as a fraction).

    A device is named when it is more than `tolerance` (a fraction) below that median and more than three
    robust deviations below it, so that a group that differs much anyway names nobody. Fewer than `peers`
    others: nobody.
    """
    behind: dict[str, tuple[float, float]] = {}
    for device, value in values.items():
        # Without the device itself: in a small group a slow one would pull its own reference down.
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


@dataclass(frozen=True)
class Typical:
    """What most of a group's values are like: their median and scaled median absolute deviation, and how many
    of the group's `count` values that rests on (`core`): those that are not far from where most are."""

    middle: float
    deviation: float
    count: int
    core: int

    @property
    def scatter(self) -> float:
        """A difference that chance alone reaches in one of a hundred such groups, were its noise normal.

        One of `count` values lies k deviations off by chance with count * P(k); the factor for few values is
        Rousseeuw and Leroy's (Robust Regression and Outlier Detection, 1987, chapter 5).
        """
        k = statistics.NormalDist().inv_cdf(1 - 0.01 / max(self.count, 2))
        return k * self.deviation * _for_few(self.count)


def _for_few(count: int) -> float:
    return 1 + 5 / max(count - 1, 1)


def typical(values: Iterable[float], tolerance: float) -> Typical:
    """What most of `values` are like, though nearly half of them may be bad in the same way.

    A median alone is drawn towards the bad ones, and the median absolute deviation grows with them. So the
    narrowest stretch that holds more than half of the values says first where most are (least median of
    squares); what is near it, by its own width or by `tolerance` (a fraction of the value), is the core.
    Raises ValueError without values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    half = len(ordered) // 2 + 1
    start = min(range(len(ordered) - half + 1), key=lambda i: ordered[i + half - 1] - ordered[i])
    stretch = ordered[start : start + half]
    middle = statistics.median(stretch)
    # Of a normal distribution half lies within 0.6745 deviations of its middle.
    deviation = (stretch[-1] - stretch[0]) / 2 / 0.6745 * _for_few(len(ordered))
    reach = max(2.5 * deviation, tolerance * abs(middle))
    core = [value for value in ordered if abs(value - middle) <= reach]
    return Typical(*spread(core), len(ordered), len(core))
