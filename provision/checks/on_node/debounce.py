"""When a finding counts, and when it is gone again: rules as data, provision/data/debounce.yml (pure)."""

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

LONGEST = 60  # runs that a rule may look back
_VERDICTS = ("fail", "warn", "error")
_LISTS, _NUMBERS, _TEXTS = (
    ("checks", "metrics", "verdicts"),
    ("needs", "of", "clear_after"),
    ("name", "why", "source", "counts_as"),
)


@dataclass(frozen=True)
class Rule:
    """Findings of these checks, metrics and verdicts (patterns; empty: all) count once they were seen in
    `needs` of the last `of` runs, and are gone after `clear_after` runs in a row without them.

    `counts_as`: the verdict that they have in service; empty: their own."""

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
        """The finding with the verdict that counts on a node in service."""
        return replace(finding, verdict=Verdict(self.counts_as)) if self.counts_as else finding

    def fits(self, finding: Finding) -> bool:
        """Whether it is the rule for this finding."""
        wanted = (
            (self.checks, finding.check),
            (self.metrics, finding.metric),
            (self.verdicts, finding.verdict.value),
        )
        return all(
            not names or any(fnmatch.fnmatchcase(text, one) for one in names) for names, text in wanted
        )


@dataclass(frozen=True)
class Tracked:
    """A finding over several runs. `seen`: for each of the last runs, the newest last, whether it was there.
    `since`: when it was first seen, ISO 8601; `active`: it counts. `clean`: runs in a row without it."""

    finding: Finding
    rule: Rule
    since: str
    seen: tuple[bool, ...]
    active: bool = False
    clean: int = 0

    @property
    def state(self) -> str:
        """pending: seen, and not often enough yet; active; clearing: gone, and not for long enough yet."""
        return "pending" if not self.active else ("clearing" if self.clean else "active")


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of provision/data/debounce.yml; the last one fits every finding."""
    return tuple(rules(shipped.load("debounce"), str(shipped.file_of("debounce"))))


def rules(rows: Any, where: str) -> list[Rule]:
    """Rules as a file has them. Raises GpuprovError naming `where`, the rule and its key."""
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
    """The findings of this run joined with those of the runs before, worst first.

    `before` is None where nothing is known of earlier runs (the first one, or its record is damaged): then
    what is found counts at once, for nobody can say that it is new. `rebooted`: the node was, since the last
    run; what the new boot does not show is gone. `early`: it is a run out of turn, one with the run before
    it: rules count runs, and mean time.
    """
    known = dict(_numbered(before or (), lambda one: one.finding))
    tracked = []
    for key, finding in _numbered(found, lambda one: one):
        if finding.verdict.value not in _VERDICTS:
            continue
        one = known.pop(key, None)
        rule = next(rule for rule in by if rule.fits(finding))
        earlier = one.seen[: -1 if early else None] if one else ()
        seen = (*earlier, True)[-rule.of :]
        active = (one is not None and one.active) or before is None or sum(seen) >= rule.needs
        tracked.append(Tracked(rule.counted(finding), rule, one.since if one else now, seen, active))
    for one in () if rebooted else known.values():
        # By its rule of today: who changed the rules means it.
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
    """Each with what it is known by from run to run: what is wrong where, however bad, and however it is
    worded; and its number among those of which the same can be said."""
    count: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        finding = finding_of(row)
        key = finding.check, finding.metric, finding.device
        count[key] += 1
        yield (*key, count[key]), row


def verdict(tracked: Iterable[Tracked], otherwise: Verdict) -> Verdict:
    """The node's verdict by what counts; `otherwise` when nothing does."""
    active = [one.finding.verdict for one in tracked if one.active]
    return max(active, key=lambda one: one.badness, default=otherwise)
