"""Drift as text for a terminal: nodes with the same drift grouped, and a summary at the end."""

from __future__ import annotations

from provision.checks.fleet.majority import outlier_text, tie_text
from provision.desired import compared
from provision.drift import diagnosis, drift_text
from provision.drift.diagnosis import NODES
from provision.drift.drift_report import DriftReport, Expiry, expiries
from provision.drift.sentences import for_fleet
from provision.node_names import fold
from provision.text import many


def render(report: DriftReport) -> str:
    """Render the whole report, safe to print."""
    seen = report.seen
    lines = [
        *_drifts(report),
        *_odd(report),
        *diagnosis.section(report.causes, report.seen.arguments),
        *_validation(report),
    ]
    lines += drift_text.trouble(seen.refused, seen.troubles, seen.host_only)
    lines += totals(report)
    if report.run_folder:
        lines.append(f"run folder {report.run_folder}")
    return drift_text.safe(lines, seen.secrets)


def _drifts(report: DriftReport) -> list[str]:
    alike: dict[tuple[str, ...], list[str]] = {}
    sentence = for_fleet()
    for name, drifts in report.seen.drifts.items():
        for drift in drifts:
            expected = drift.expectation
            key = (expected.role, expected.fact, sentence(drift), expected.why)
            alike.setdefault(key, []).append(name)
    by_nodes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for likeness, names in alike.items():
        by_nodes.setdefault(tuple(names), []).append(likeness)
    lines: list[str] = []
    for nodes, likenesses in by_nodes.items():
        lines.append(f"{fold(nodes)}  ({many(len(nodes), 'node')})")
        for role, fact, difference, why in likenesses:
            lines += [f"  {difference}  [{fact}]", f"      {role}: {why}"]
        lines.append("")
    return lines


def _odd(report: DriftReport) -> list[str]:
    """List undeclared facts that differ from the fleet's."""
    if report.odd is None or not report.odd.found:
        return []
    alike: dict[tuple[str, str, str], list[str]] = {}
    for outlier in report.odd.outliers:
        alike.setdefault((outlier.fact, outlier_text(outlier), outlier.why), []).append(outlier.node)
    lines = ["outliers (undeclared facts that differ from the fleet majority)"]
    for (fact, difference, why), nodes in alike.items():
        lines += [f"  {fold(nodes)}  {fact} {difference}", f"      {why}"]
    for each in report.odd.ties:
        lines += [f"  {each.fact} {tie_text(each)}", f"      {each.why}"]
    return [*lines, ""]


def _validation(report: DriftReport) -> list[str]:
    alike: dict[Expiry, list[str]] = {}
    for node, standings in report.standings.items():
        for expiry in expiries(standings):
            alike.setdefault(expiry, []).append(node)
    if not alike:
        return []
    lines = ["no current validation"]
    for expiry, nodes in alike.items():
        lines += [f"  {fold(nodes)}  {expiry.text()}"]
        lines += [f"      run: {expiry.command.replace(NODES, report.seen.arguments(nodes))}"]
    return [*lines, ""]


def totals(report: DriftReport) -> list[str]:
    """Return the totals of the comparison, one line each."""
    seen, odd = report.seen, report.odd
    total = many(len(seen.fleet.nodes), "node")
    lines = [f"{len(seen.as_declared)} of {total} as declared ({seen.expectations} expectations compared)"]
    if odd is not None and odd.compared:
        facts = sum(not fact.vendor for fact in compared.compared_facts().values())
        differ = len({outlier.node for outlier in odd.outliers})
        ambiguous = f", {many(len(odd.ties), 'fact')} ambiguous" if odd.ties else ""
        lines.append(
            f"{odd.compared - differ} of {odd.compared} nodes like the majority of their kind "
            f"({facts} undeclared facts compared{ambiguous})"
        )
    if odd is not None and odd.alone:
        alone = fold(node for nodes in odd.alone.values() for node in nodes)
        lines.append(f"not compared, because fewer than 3 of their kind: {alone}")
    holds = sum(all(each.holds for each in standings) for standings in report.standings.values())
    if report.standings:
        lines.append(f"{holds} of {many(len(report.standings), 'node')} with a current validation")
    return lines
