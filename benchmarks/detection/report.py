"""The scores as tables, both for the console and for docs/detection.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.detection import catalogue, scores
from benchmarks.detection.cases import Entry
from benchmarks.detection.scores import Outcomes, Share
from benchmarks.detection.trial import HEALTHY

NOT_ASKED = "not asked for"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Report:
    """The results, ready for display."""

    lines: tuple[str, ...]
    misses: tuple[str, ...]
    trouble: tuple[str, ...]


def report(outcomes: Outcomes, asked: set[str], how: str) -> Report:
    """Render tables (Markdown, legible as plain text) and the misses with the seeds that reproduce them."""
    by_key: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in outcomes:
        if not one["trouble"]:
            by_key[one["key"]].append(one)
    found = {
        entry.key: scores.of_class(entry, by_key[entry.key])
        for entry in catalogue.ENTRIES.values()
        if not entry.trap and by_key.get(entry.key)
    }
    usable = [one for rows in by_key.values() for one in rows]
    lines = [
        how,
        "",
        *_headline(found, by_key, usable),
        "",
        *_faults(found, asked),
        "",
        *_curves(found),
        "",
        *_traps(by_key),
        "",
        *_healthy(by_key[HEALTHY]),
    ]
    return Report(
        tuple(lines), tuple(_misses(usable)), tuple(one["trouble"] for one in outcomes if one["trouble"])
    )


def _percent(share: Share) -> str:
    if not share.of:
        return "-"
    low, high = share.interval
    return f"{share.value:.1%} ({share}; {low:.1%} to {high:.1%})"


def _headline(
    found: Mapping[str, scores.ClassScore], by_key: Mapping[str, Any], usable: Outcomes
) -> list[str]:
    every = Share(sum(s.recall.hits for s in found.values()), sum(s.recall.of for s in found.values()))
    blame = Share(sum(s.blame.hits for s in found.values()), sum(s.blame.of for s in found.values()))
    traps = [one for key, rows in by_key.items() if key.endswith("t") for one in rows]
    rows = [
        (
            "Fault classes tried",
            f"{len({s.entry.number for s in found.values()})} of {len(catalogue.CLASSES)}",
        ),
        ("Recall at clear severities", _percent(every)),
        ("Blame right, of those caught (part, action, no innocent part)", _percent(blame)),
        ("Precision: failures that name a part rightly", _percent(scores.precision(usable))),
        ("Look-alikes flagged", _percent(scores.share(traps, "flagged"))),
        ("Healthy nodes flagged", _percent(scores.share(by_key.get(HEALTHY, []), "flagged"))),
    ]
    for name, mix in (("build-out", catalogue.BUILD_OUT), ("production", catalogue.PRODUCTION)):
        mixed = scores.of_mix(mix, found)
        rows.append(
            (
                f"Recall under the {name} mix",
                f"{mixed.recall:.1%} of the {mixed.covered:.0%} that is tried" if mixed.covered else "-",
            )
        )
    return ["| | share (95 % interval) |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _faults(found: Mapping[str, scores.ClassScore], asked: set[str]) -> list[str]:
    lines = [
        "| # | fault | recall, clear | blame right | from which severity on 99 % are noticed |",
        "|---:|---|---|---|---|",
    ]
    for entry in catalogue.ENTRIES.values():
        if entry.trap:
            continue
        lines.append(_fault_row(entry, found.get(entry.key), entry.key in asked))
    return lines


def _fault_row(entry: Entry, score: scores.ClassScore | None, asked: bool) -> str:
    reason = catalogue.not_covered(entry.key)
    if reason or score is None:
        why = f"not covered: {reason}" if reason else "not measured" if asked else NOT_ASKED
        return f"| {entry.number} | {entry.name} | {why} | | |"
    clear = f" ({_range(entry.clear, entry.unit)})" if entry.clear else ""
    least = ""
    if entry.graded:
        least = "none" if score.smallest is None else _amount(score.smallest, entry.unit)
    return f"| {entry.number} | {entry.name}{clear} | {score.recall} | {score.blame} | {least} |"


def _amount(value: float, unit: str) -> str:
    return f"{value:.1%} slower" if unit == "slowdown" else f"{value:,.0f} {unit}"


def _range(span: tuple[float, float], unit: str) -> str:
    low, high = span
    return f"{low:.0%} to {high:.0%} slower" if unit == "slowdown" else f"{low:,.0f} to {high:,.0f} {unit}"


def _curves(found: Mapping[str, scores.ClassScore]) -> list[str]:
    graded = [score for score in found.values() if any(share.of for _, _, share in score.curve)]
    if not graded:
        return ["No graded severities were drawn."]
    lines = ["Noticed (any warning, failure or error) by severity:", ""]
    lines += [
        f"| # | fault |{' severity: noticed |' * scores.BUCKETS}",
        f"|---:|---|{'---|' * scores.BUCKETS}",
    ]
    for score in graded:
        cells = [
            f"{_short(a, b, score.entry.unit)}: {share.value:.0%} of {share.of}" if share.of else "-"
            for a, b, share in score.curve
        ]
        lines.append(f"| {score.entry.number} | {score.entry.name} | {' | '.join(cells)} |")
    return lines


def _short(low: float, high: float, unit: str) -> str:
    return f"{low:.0%} to {high:.0%}" if unit == "slowdown" else f"{low:,.0f}-{high:,.0f}"


def _traps(by_key: Mapping[str, Outcomes]) -> list[str]:
    lines = ["| # | healthy look-alike | flagged |", "|---:|---|---|"]
    for entry in catalogue.ENTRIES.values():
        if entry.trap:
            reason = catalogue.not_covered(entry.key)
            flagged = scores.share(by_key.get(entry.key, []), "flagged")
            cell = f"not covered: {reason}" if reason else str(flagged)
            lines.append(f"| {entry.number} | {entry.name} | {cell if flagged.of or reason else NOT_ASKED} |")
    return lines


def _healthy(outcomes: Outcomes) -> list[str]:
    if not outcomes:
        return ["No healthy nodes were run."]
    found = scores.of_healthy(outcomes)
    lines = [
        "| healthy nodes | flagged (any warning, failure or error) | failed or in error |",
        "|---|---|---|",
    ]
    lines.append(f"| all | {_percent(found.alarms)} | {_percent(found.bad)} |")
    lines += [f"| {sku} | {_percent(share)} | |" for sku, share in found.by_sku.items()]
    lines += ["", "| up to the end of stage | node time, median | node time, worst |", "|---|---:|---:|"]
    lines += [
        f"| {stage} | {median:.0f} s | {worst:.0f} s |" for stage, (median, worst) in found.seconds.items()
    ]
    return lines


def _misses(outcomes: Outcomes) -> list[str]:
    """List missed, wrongly blamed and wrongly flagged trials with the arguments that reproduce them."""
    report = []
    for one in outcomes:
        if one["graded"]:
            continue
        healthy = one["key"] == HEALTHY or one["key"].endswith("t")
        if not one["flagged"] if healthy else one["caught"] and one["blamed"]:
            continue
        what = "false alarm" if healthy else "wrong blame" if one["caught"] else "missed"
        where = f"--classes {one['key']} --seeds {one['seed']}-{one['seed']}"
        faults = "; ".join(one["faults"]) or "no fault of the lab"
        report.append(f"{what}: {where} ({one['sku']}: {faults}) verdict {one['verdict']}")
        report += [f"    {finding}" for finding in one["findings"][:4]]
    return report
