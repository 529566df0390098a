"""The result of `gpuprov drift`, complete for every format: drifts, outliers, expired passes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.fleet import majority
from provision.checks.fleet.majority import Comparison, Voter, outlier_text, tie_text
from provision.checks.judging import registry as checks_asked
from provision.desired import compared, vendors
from provision.desired.expectations import by_fact
from provision.drift import drift_text
from provision.drift.assess import Assessment
from provision.drift.diagnosis import NODES, Arguments, Diagnosis
from provision.drift.drifts import Drift
from provision.drift.sentences import for_fleet
from provision.errors import ExitCode
from provision.fleet import Kind
from provision.runs import fingerprint, node_history
from provision.runs.fingerprint import Standing
from provision.secrets_mask import masked
from provision.terminal import printable

FACTS = compared.facts_to_ask() | fingerprint.FACTS  # observed in addition to the roles' promises
FACTS_OF = {vendor: compared.facts_to_ask(vendor) for vendor in vendors.NAMES}


@dataclass(frozen=True)
class DriftReport:
    """One comparison of a fleet. `odd`: its outliers, None if nodes were not compared with each other.

    `standings`: node → validity of its validation, if it answered; `required`: a missing pass is a
    finding."""

    seen: Assessment
    odd: Comparison | None
    standings: Mapping[str, Sequence[Standing]]
    causes: Mapping[Diagnosis, Sequence[str]]
    required: bool = False
    run_folder: str = ""

    @functools.cached_property
    def findings(self) -> list[Finding]:
        """All findings; the exit status and every format for programs are derived from them."""
        return findings(self)

    @property
    def code(self) -> ExitCode:
        """The exit status; drift outranks a failed check, and both outrank an unknown state."""
        errors = {each.rule.partition("/")[0] for each in self.findings if each.level == "error"}
        if errors:
            return ExitCode.UNHEALTHY if errors == {"validation"} else ExitCode.DRIFT
        unknown = any(each.level == "warning" for each in self.findings)
        return ExitCode.INCOMPLETE if unknown else ExitCode.OK

    @property
    def all_standings(self) -> list[Standing]:
        return [each for standings in self.standings.values() for each in standings]


def make(
    seen: Assessment, *, compare: bool = True, required: bool = False, run_folder: str = ""
) -> DriftReport:
    """Compare the fleet with its majority and with each node's latest validation. Raises RunFolderError."""
    answered = [name for name, seen_node in seen.observations.items() if seen_node.error is None]
    results = node_history.read(answered)
    checks = checks_asked.select("standard")
    standings = {}
    for name in answered:
        if not seen.fleet.nodes[name].kind & Kind.GPU:
            continue  # validate skips such nodes
        seen_node = seen.observations[name]
        now = fingerprint.of(seen_node.facts, seen_node.problems)
        standings[name] = fingerprint.standings(name, checks, results[name], now)
    odd = majority.compare(_voters(seen, answered)) if compare else None
    return DriftReport(seen, odd, standings, seen.causes(), required, run_folder)


def _voters(seen: Assessment, answered: Sequence[str]) -> dict[str, Voter]:
    sets: dict[int, frozenset[str]] = {}  # similar nodes share their list of expectations

    def declared(name: str) -> frozenset[str]:
        expected = seen.expected.get(name, [])
        if id(expected) not in sets:
            sets[id(expected)] = by_fact(expected)
        return sets[id(expected)]

    return {
        name: Voter(
            sku=seen.described[name]["gpu"]["sku"],
            facts=seen.observations[name].facts,
            problems=seen.observations[name].problems,
            declared=declared(name),
            ignored=seen.declared[name].get("gpuprov_ignore_majority") or (),
        )
        for name in answered
    }


# --- wording


@dataclass(frozen=True)
class Expiry:
    """Checks of one node with the same expired or missing result.

    `verdict` and `day` describe the result, empty if the checks never ran; `why`: the changes since."""

    checks: tuple[str, ...]
    verdict: str
    day: str
    why: tuple[str, ...]
    everything: bool = False

    def text(self) -> str:
        """Return a sentence: `passed gpu_burn on 2026-11-02, expired: kernel.release 6.12.1 → 6.12.2`."""
        if not self.verdict:
            return "never validated" if self.everything else f"never ran {', '.join(self.checks)}"
        words = {"pass": "passed", "warn": "passed with a warning", "fail": "failed", "skip": "skipped"}
        result = f"{words.get(self.verdict, 'could not measure')} {', '.join(self.checks)} on {self.day}"
        return f"{result}, expired: {'; '.join(self.why)}" if self.why else result

    @property
    def command(self) -> str:
        """The command that makes these checks valid again, with NODES as placeholder for the nodes."""
        only = "" if self.everything else f" --checks {','.join(self.checks)}"
        return f"gpuprov validate {NODES}{only}"


def expiries(standings: Sequence[Standing]) -> list[Expiry]:
    """Group the invalid checks of one node by verdict and day of their results."""
    groups: dict[tuple[str, str], list[Standing]] = {}
    for each in standings:
        if not each.holds:
            verdict, day = (each.result.verdict, each.result.at[:10]) if each.result else ("", "")
            groups.setdefault((verdict, day), []).append(each)
    return [
        Expiry(
            checks=tuple(each.check for each in members),
            verdict=verdict,
            day=day,
            why=tuple(dict.fromkeys(str(change) for each in members for change in each.changes)),
            everything=len(members) == len(standings),
        )
        for (verdict, day), members in groups.items()
    ]


# --- findings for programs


@dataclass(frozen=True)
class Finding:
    """One finding for a CI: `text` and `more` (the reason or remedy) are printable and free of secrets.

    `rule`: stable id (role/fact); `level`: error, warning or note; `text` names no node."""

    rule: str
    nodes: tuple[str, ...]
    level: str
    text: str
    more: str

    def advice(self, arguments: Arguments, nodes: Sequence[str] = ()) -> str:
        """Return `more` with its nodes (or the given ones) filled into commands."""
        return self.more.replace(NODES, arguments(nodes or self.nodes))


def findings(report: DriftReport) -> list[Finding]:
    """Return all findings of the report, sorted by kind with the worst first."""
    seen = report.seen
    found: list[Finding] = []

    def add(rule: str, nodes: Sequence[str], level: str, text: str, more: str) -> None:
        clean = [printable(str(masked(words, seen.secrets))) for words in (rule, text, more)]
        found.append(Finding(clean[0], tuple(nodes), level, clean[1], clean[2]))

    sentence = for_fleet()
    for drifts in seen.drifts.values():
        for drift in drifts:
            text = f"{sentence(drift)} ({drift.expectation.fact})"
            add(rule_of(drift), [drift.node], _level([drift]), text, drift.expectation.why)
    for outlier in report.odd.outliers if report.odd else ():
        text = f"{outlier.fact} {outlier_text(outlier)}"
        add(f"majority/{outlier.fact}", [outlier.node], "error", text, outlier.why)
    for each in report.odd.ties if report.odd else ():
        nodes = [node for _, members in each.sides for node in members]
        add(f"majority/{each.fact}", nodes, "error", f"{each.fact} {tie_text(each)}", each.why)
    for cause, names in report.causes.items():
        # A diagnosis takes the level of the drifts it explains.
        levels = {name: _level(seen.drifts.get(name, ())) for name in names}
        for level, alike in drift_text.grouped(levels):
            add(f"diagnosis/{cause.rule}", alike, level, cause.cause, f"next: {cause.next_step}")
    for node, refusals in seen.refused.items():
        for refusal in refusals:
            text = refusal.what.removeprefix(f"{node}: ")
            add(f"refused/{refusal.rule}", [node], "warning", text, refusal.fix)
    for node, what in seen.host_only.items():
        add("gpus/observed", [node], "note", f"compared without its GPUs: {what}", "no role provisions them")
    for node, why in seen.troubles.items():
        add("node/unreachable", [node], "warning", why, "its state is unknown")
    for node, standings in report.standings.items():
        for expiry in expiries(standings):
            rule = "validation/expired" if expiry.why else f"validation/{expiry.verdict or 'never'}"
            needed = "error" if expiry.verdict == "fail" else "warning"
            level = needed if report.required else "note"
            add(rule, [node], level, expiry.text(), f"run: {expiry.command}")
    return found


def _level(drifts: Sequence[Drift]) -> str:
    readable = any(not drift.unknown for drift in drifts)
    return "error" if readable else "warning" if drifts else "note"


def rule_of(drift: Drift) -> str:
    """Return the rule id of a drift: `nvidia_driver/driver.loaded_version`."""
    return f"{drift.expectation.role}/{drift.expectation.fact}"


def grouped(found: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Merge equal findings, each with all its nodes, in order of appearance."""
    groups: dict[tuple[Any, ...], tuple[Finding, dict[str, None]]] = {}
    for each in found:
        key = (each.rule, each.level, each.text, each.more)
        groups.setdefault(key, (each, {}))[1].update(dict.fromkeys(each.nodes))
    return [(finding, list(nodes)) for finding, nodes in groups.values()]


def together(found: Sequence[Finding]) -> list[tuple[list[str], list[Finding]]]:
    """Group merged findings with the same nodes, level and role (or kind: majority, validation)."""
    groups: dict[tuple[str, ...], tuple[list[str], list[Finding]]] = {}
    for finding, nodes in grouped(found):
        key = (finding.level, finding.rule.partition("/")[0], *nodes)
        groups.setdefault(key, (nodes, []))[1].append(finding)
    return list(groups.values())
