"""Debouncing (pure): when findings count and when they clear, by provision/data/debounce.yml."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from provision import shipped
from provision.checks.judge import Finding, Verdict
from provision.errors import GpuprovError

LONGEST = 60  # most recent runs that a rule may consider
_VERDICTS = ("fail", "warn", "error")
_LISTS, _NUMBERS, _TEXTS = (
    ("checks", "metrics", "verdicts"),
    ("needs", "of", "clear_after"),
    ("name", "why", "source", "counts_as"),
)


@dataclass(frozen=True)
class Rule:
    """Debounce rule for findings; check, metric and verdict must match its patterns (empty: all).

    A finding counts once it was seen in `needs` of the last `of` runs, and clears after `clear_after` runs in
    a row without it. `counts_as`: its verdict on a node in service; empty: its own."""

    name: str
    needs: int
    of: int
    clear_after: int
    checks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    why: str = ""
    source: str = ""
    counts_as: str = ""

    def counted(self, finding: Finding) -> Finding:
        """Return the finding with the verdict that counts on a node in service."""
        return replace(finding, verdict=Verdict(self.counts_as)) if self.counts_as else finding

    def fits(self, finding: Finding) -> bool:
        """Return whether the rule applies to this finding."""
        criteria = (
            (self.checks, finding.check),
            (self.metrics, finding.metric),
            (self.verdicts, finding.verdict.value),
        )
        return all(
            not names or any(fnmatch.fnmatchcase(text, one) for one in names) for names, text in criteria
        )


@dataclass(frozen=True)
class Tracked:
    """A finding tracked over several runs."""

    finding: Finding
    rule: Rule
    since: str  # when it was first seen, ISO 8601
    seen: tuple[bool, ...]  # presence in each of the last runs, newest last
    active: bool = False  # it counts
    clean: int = 0  # runs in a row without it

    @property
    def state(self) -> str:
        """`pending` (not seen often enough yet), `active` or `clearing` (not absent for long enough yet)."""
        return "pending" if not self.active else ("clearing" if self.clean else "active")


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """Load the rules of provision/data/debounce.yml; the last one matches every finding."""
    return tuple(rules(shipped.load("debounce"), str(shipped.file_of("debounce"))))


def rules(rows: Any, where: str) -> list[Rule]:
    """Parse the rules of a file. Raises GpuprovError that names `where`, the rule and its key."""
    if not isinstance(rows, list):
        raise GpuprovError(f"{where}: debounce must be a list of rules", "docs/health.md describes a rule")
    return [_rule(row, f"{where}: debounce rule {number}") for number, row in enumerate(rows, 1)]


def _rule(row: Any, where: str) -> Rule:
    fix = "docs/health.md describes a rule"
    if not isinstance(row, Mapping) or not {*_NUMBERS, "name"} <= set(row) <= {*_LISTS, *_NUMBERS, *_TEXTS}:
        raise GpuprovError(f"{where}: must have name, needs, of and clear_after, and no unknown key", fix)
    for key in _NUMBERS:
        if not isinstance(row[key], int) or isinstance(row[key], bool) or not 1 <= row[key] <= LONGEST:
            raise GpuprovError(f"{where}: {key} must be a whole number from 1 to {LONGEST}", fix)
    if row.get("counts_as", "warn") not in _VERDICTS:
        raise GpuprovError(f"{where}: counts_as must be one of {', '.join(_VERDICTS)}", fix)
    if row["needs"] > row["of"]:
        raise GpuprovError(f"{where}: needs {row['needs']} of {row['of']} runs can never be", fix)
    for key in _LISTS:
        value = row.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise GpuprovError(f"{where}: {key} must be a list of names", fix)
        if key == "verdicts" and not set(value) <= set(_VERDICTS):
            raise GpuprovError(f"{where}: verdicts are {', '.join(_VERDICTS)}", fix)
    if not all(isinstance(row.get(key, ""), str) for key in _TEXTS):
        raise GpuprovError(f"{where}: {', '.join(_TEXTS)} must be text", fix)
    fields: dict[str, Any] = {key: tuple(value) if key in _LISTS else value for key, value in row.items()}
    return Rule(**fields)


def followed(
    before: Sequence[Tracked] | None,
    found: Iterable[Finding],
    by: Sequence[Rule],
    now: str,
    *,
    rebooted: bool = False,
    early: bool = False,
) -> list[Tracked]:
    """Merge this run's findings with the findings of earlier runs, worst first.

    `before`: None if earlier runs are unknown (first run, or a damaged record); every finding then counts at
    once, since it may be old. `rebooted`: the node rebooted since the last run; findings that the new boot
    does not show are dropped. `early`: an event started this run before its time. It then shares one slot
    with the run before, since rules count runs to measure time.
    """
    unseen = dict(_numbered(before or (), lambda one: one.finding))
    tracked = []
    for key, finding in _numbered(found, lambda one: one):
        if finding.verdict.value not in _VERDICTS:
            continue
        one = unseen.pop(key, None)
        rule = next(rule for rule in by if rule.fits(finding))
        earlier = one.seen[: -1 if early else None] if one else ()
        seen = (*earlier, True)[-rule.of :]
        active = (one is not None and one.active) or before is None or sum(seen) >= rule.needs
        tracked.append(Tracked(rule.counted(finding), rule, one.since if one else now, seen, active))
    for one in () if rebooted else unseen.values():
        # By the current rules, since an administrator may have changed them.
        rule = next(rule for rule in by if rule.fits(one.finding))
        if early:
            tracked.append(replace(one, rule=rule))
            continue
        seen, clean = (*one.seen, False)[-rule.of :], one.clean + 1
        if clean < rule.clear_after if one.active else any(seen):
            tracked.append(replace(one, rule=rule, seen=seen, clean=clean))
    return sorted(
        tracked, key=lambda one: (-one.finding.verdict.badness, one.finding.device, one.finding.metric)
    )


T = TypeVar("T")


def _numbered(rows: Iterable[T], finding_of: Callable[[T], Finding]) -> Iterator[tuple[tuple[Any, ...], T]]:
    """Yield each row with its identity across runs: check, metric, device, number among equals.

    Severity and wording are not part of it, since they may change from run to run."""
    count: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        finding = finding_of(row)
        key = finding.check, finding.metric, finding.device
        count[key] += 1
        yield (*key, count[key]), row


def verdict(tracked: Iterable[Tracked], otherwise: Verdict) -> Verdict:
    """Return the worst verdict of the active findings; `otherwise` without one."""
    active = [one.finding.verdict for one in tracked if one.active]
    return max(active, key=lambda one: one.badness, default=otherwise)
