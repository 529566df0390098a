"""Reader of burn-in profiles: provision/data/burnin/<profile>.yml, or files of the same form.

A profile is a list of segments, described in docs/burnin.md. Segments with `weight` share the time that the
others leave.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision import paths, yamlfile
from provision.checks.judging import registry
from provision.checks.judging.registry import CHECKS, PAIRS
from provision.desired import vendors
from provision.errors import UsageError
from provision.nearest import did_you_mean

KINDS = ("load", "soak", "cool_down", "fleet")
LOADS = ("load", "soak")
_LEAST = 1.0  # minutes, the default minimum of a segment with a length
_LONGEST = 14 * 24 * 60.0  # minutes of a burn-in; more is probably a typing error
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Segment:
    """One part of a burn-in; `repeat` (rounds of its checks), `minutes` or `weight` sets its length.

    `weight`: its share of the time that the others leave, but at least `least` minutes. `step_minutes`:
    length of one load of a soak, the most that a reboot can cost. `attended`: "only" if a fleet segment is
    skipped, with a note, when no controller is attached; otherwise that is an error.
    """

    name: str
    kind: str
    checks: tuple[str, ...] = ()
    repeat: int | None = None
    minutes: float | None = None
    weight: float = 0.0
    least: float = _LEAST
    step_minutes: float = 30.0
    attended: str = ""


@dataclass(frozen=True)
class Abort:
    """Rules by which a node (or all nodes, by `failing_share`) stops by itself. None: no such rule.

    `gpu_celsius`: of any GPU, or vendor → of its GPUs. `xids`: a list of codes, or "fatal" for all codes, and
    lines of other drivers, after which the GPU needs a reset."""

    gpu_celsius: float | Mapping[str, float] | None = None
    xids: tuple[int, ...] | str | None = None
    failed_steps: int | None = None
    failing_share: float | None = None

    def celsius(self, vendor: str) -> float | None:
        """Return the limit for this vendor's GPUs."""
        given = self.gpu_celsius
        return given.get(vendor) if isinstance(given, Mapping) else given


@dataclass(frozen=True)
class Profile:
    """Segments in order, and their common settings."""

    name: str
    summary: str
    source: Path
    minutes: float
    segments: tuple[Segment, ...]
    sample_seconds: float = 5.0  # between two samples of a device
    space_mib: int = 512  # of the node's disk for samples and outputs
    ramp_steps: int = 4  # groups of nodes that start one after another
    ramp_seconds: float = 60.0  # between two groups
    abort: Abort = Abort()

    @property
    def checks(self) -> tuple[str, ...]:
        """All checks of the profile, in the order in which a validation runs them."""
        named = {check for segment in self.segments for check in segment.checks}
        return tuple(name for name in registry.table() if name in named)


def available() -> tuple[str, ...]:
    """Return the names of the shipped profiles, the shortest first."""
    files = (paths.DATA / "burnin").glob("*.yml")
    return tuple(sorted((file.stem for file in files), key=lambda name: load(name).minutes))


def load(name: str) -> Profile:
    """Load a shipped profile by name, or one from a file. Raises UsageError (file, segment, key)."""
    shipped = paths.DATA / "burnin" / f"{name}.yml"
    file = shipped if "/" not in name and shipped.is_file() else Path(name).expanduser()
    if not file.is_file():
        names = tuple(sorted(path.stem for path in (paths.DATA / "burnin").glob("*.yml")))
        hint = did_you_mean(name, names, f"there are {', '.join(names)}; or give the path of a file")
        raise UsageError(f"no profile called {name!r}", hint)
    return _read(file, yamlfile.load_mapping(file, UsageError))


_TOP: Mapping[str, tuple[Callable[[Any], bool], str]] = {}


def _number(low: float, high: float) -> tuple[Callable[[Any], bool], str]:
    return lambda v: type(v) in (int, float) and low <= v <= high, f"a number from {low:g} to {high:g}"


def _whole(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    return lambda v: type(v) is int and low <= v <= high, f"a whole number from {low} to {high}"


def _is_xids(value: Any) -> bool:
    return value == "fatal" or (isinstance(value, list) and all(type(x) is int and x > 0 for x in value))


_CELSIUS = _number(40, 130)


def _is_celsius(value: Any) -> bool:
    fits = _CELSIUS[0]
    if isinstance(value, dict):
        return bool(value) and value.keys() <= vendors.NAMES.keys() and all(map(fits, value.values()))
    return fits(value)


# key → (whether a value fits, description of a valid value)
_TOP = {
    "summary": (lambda v: isinstance(v, str) and bool(v.strip()), "a sentence"),
    "minutes": _number(1, _LONGEST),
    "sample_seconds": _number(1, 3600),
    "space_mib": _whole(16, 65536),
    "ramp_steps": _whole(1, 64),
    "ramp_seconds": _number(0, 3600),
    "abort": (lambda v: isinstance(v, dict), "a mapping"),
    "segments": (lambda v: isinstance(v, list) and bool(v), "a list of segments"),
}
_SEGMENT = {
    "name": (lambda v: isinstance(v, str) and bool(_NAME.fullmatch(v)), "lower case letters, digits and _"),
    "kind": (lambda v: v in KINDS, f"one of {', '.join(KINDS)}"),
    "checks": (lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v), "a list of checks"),
    "repeat": _whole(1, 10000),
    "minutes": _number(0.01, _LONGEST),
    "weight": _number(0.001, 1000),
    "least": _number(0.01, _LONGEST),
    "step_minutes": _number(0.1, 240),
    "attended": (lambda v: v == "only", "only, or left out"),
}
_ABORT = {
    "gpu_celsius": (_is_celsius, f"{_CELSIUS[1]}, or a mapping of {' and '.join(vendors.NAMES)} to one"),
    "xids": (_is_xids, "a list of Xids, or fatal"),
    "failed_steps": _whole(1, 10000),
    "failing_share": _number(0.001, 1),
}
# kind → allowed keys in addition to name and kind
_MAY = {
    "load": {"checks", "repeat", "minutes", "weight", "least"},
    "soak": {"checks", "minutes", "weight", "least", "step_minutes"},
    "cool_down": {"minutes"},
    "fleet": {"checks", "minutes", "attended"},
}


def _checked(where: str, given: Any, known: Mapping[str, tuple[Callable[[Any], bool], str]]) -> Any:
    """Return `given` if all its keys are known and their values fit. Raises UsageError."""
    if not isinstance(given, dict):
        raise UsageError(f"{where}: must be a mapping, not {given!r}"[:200], "see a shipped profile")
    for key, value in given.items():
        if key not in known:
            hint = did_you_mean(str(key), known, f"there are {', '.join(known)}")
            raise UsageError(f"{where}: unknown key {key!r}", hint)
        fits, expected = known[key]
        if not fits(value):
            raise UsageError(f"{where}: {key} must be {expected}, not {value!r}"[:300], "correct it")
    return given


def _read(file: Path, document: Mapping[str, Any]) -> Profile:
    given = _checked(str(file), dict(document), _TOP)
    for key in ("minutes", "segments"):
        if key not in given:
            raise UsageError(f"{file}: {key} is missing", "see a shipped profile")
    segments = [_segment(file, number, one) for number, one in enumerate(given["segments"], 1)]
    names = [segment.name for segment in segments]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{file}: two segments are called {name}", "give each a name of its own")
    if not any(segment.kind in LOADS for segment in segments):
        raise UsageError(f"{file}: no segment of it is load or soak", "a burn-in without load proves nothing")
    stops = _checked(f"{file}: abort", given.get("abort", {}), _ABORT)
    xids = stops.get("xids")
    abort = Abort(**{**stops, "xids": tuple(xids) if isinstance(xids, list) else xids})
    plain = {key: value for key, value in given.items() if key not in ("segments", "abort", "summary")}
    return Profile(
        name=file.stem, summary=str(given.get("summary", "")), source=file,
        segments=tuple(segments), abort=abort, **plain,
    )  # fmt: skip


def _segment(file: Path, number: int, given: Any) -> Segment:
    where = f"{file}: segment {number}"
    if isinstance(given, dict) and isinstance(given.get("name"), str):
        where = f"{file}: segment {given['name'][:60]}"
    given = _checked(where, given, _SEGMENT)
    for key in ("name", "kind"):
        if key not in given:
            raise UsageError(f"{where}: {key} is missing", "every segment has a name and a kind")
    kind = given["kind"]
    for key in given.keys() - {"name", "kind"} - _MAY[kind]:
        raise UsageError(f"{where}: a {kind} has no {key}", f"it may have {', '.join(sorted(_MAY[kind]))}")
    lengths = [key for key in ("repeat", "minutes", "weight") if key in given]
    if len(lengths) != 1:
        problem = f"has {' and '.join(lengths)}" if lengths else "has no length"
        choice = " or ".join(key for key in ("repeat", "minutes", "weight") if key in _MAY[kind])
        raise UsageError(f"{where}: {problem}", f"give it exactly one of {choice}")
    segment = Segment(**{**given, "checks": tuple(given.get("checks", ()))})
    _check_checks(where, segment)
    if segment.minutes is not None and segment.minutes < segment.least and "least" in given:
        raise UsageError(
            f"{where}: {segment.minutes:g} minutes are less than its least, {segment.least:g}", "give it more"
        )
    return segment


def _check_checks(where: str, segment: Segment) -> None:
    checks = registry.table()
    for name in segment.checks:
        if name not in checks:
            hint = did_you_mean(name, checks, f"the checks are {', '.join(checks)}")
            raise UsageError(f"{where}: unknown check {name!r}", hint)
        of_fleet = name in PAIRS
        if of_fleet != (segment.kind == "fleet"):
            kinds = "a fleet segment" if of_fleet else "load and soak segments"
            raise UsageError(f"{where}: {name} belongs into {kinds}", "move it there")
        if not of_fleet and not CHECKS[name].NEEDS:
            raise UsageError(
                f"{where}: {name} runs no program, so it makes no load", "gpuprov validate runs it beforehand"
            )
    if segment.kind == "cool_down":
        return
    if not segment.checks:
        raise UsageError(f"{where}: it has no checks", "name at least one")
    if segment.kind == "soak" and len(segment.checks) != 1:
        raise UsageError(f"{where}: a soak is one check, not {len(segment.checks)}", "make it a load")


def fitted(profile: Profile, minutes: float | None, cost: Callable[[str], float]) -> Profile:
    """Fit the profile to a duration (None: its own): every weight becomes minutes.

    `cost`: about how many seconds a check takes. Raises UsageError if a segment would fall below its least.
    """
    total = profile.minutes if minutes is None else minutes
    if total > _LONGEST:
        raise UsageError(f"--duration: {total / 60:g} h is more than {_LONGEST / 60:g} h", "give less")
    fixed = math.fsum(about(segment, cost) for segment in profile.segments if not segment.weight)
    weights = math.fsum(segment.weight for segment in profile.segments)
    left = total - fixed
    if not weights:
        if minutes is not None and abs(left) > 0.1 * fixed:
            raise UsageError(
                f"{profile.source}: it takes about {fixed:.0f} minutes, whatever --duration is set to",
                "leave out --duration, or give a segment a weight instead of minutes",
            )
        return replace(profile, minutes=fixed)
    segments = []
    for segment in profile.segments:
        if segment.weight:
            share = left * segment.weight / weights
            if share < segment.least:
                least = fixed + max(s.least * weights / s.weight for s in profile.segments if s.weight)
                raise UsageError(
                    f"{total:g} minutes leave {max(share, 0):.3g} for segment {segment.name} of "
                    f"{profile.name}, which needs {segment.least:g}",
                    f"give --duration {math.ceil(least)}m or more, or another --profile",
                )
            segment = replace(segment, minutes=share)
        segments.append(segment)
    return replace(profile, minutes=total, segments=tuple(segments))


def steps_of_soak(segment: Segment) -> tuple[int, int]:
    """Return (number of loads of a soak, seconds each); an interruption costs at most one load."""
    seconds = (segment.minutes or 0.0) * 60
    count = max(1, round(seconds / (segment.step_minutes * 60)))
    return count, max(1, round(seconds / count))


def about(segment: Segment, cost: Callable[[str], float]) -> float:
    """Return about how many minutes a segment takes."""
    if segment.minutes is not None:
        return segment.minutes
    return (segment.repeat or 0) * math.fsum(cost(check) for check in segment.checks) / 60


def duration(text: str) -> float:
    """Parse `24h`, `90m`, `1h30m`, `3d` to minutes. Raises ValueError.

    >>> duration("1h30m")
    90.0
    """
    units = {"d": 1440.0, "h": 60.0, "m": 1.0, "min": 1.0, "s": 1 / 60}
    parts: Sequence[tuple[str, str]] = re.findall(r"(\d{1,6}(?:\.\d{1,3})?)(min|[dhms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("write it as 24h, 90m or 1h30m")
    minutes = math.fsum(float(number) * units[unit] for number, unit in parts)
    if not minutes > 0:
        raise ValueError("must be above 0")
    return minutes
