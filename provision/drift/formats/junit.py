"""Drift as JUnit XML, which every CI shows: one case per node, and one for the fleet."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable

from provision.drift.diagnosis import Arguments
from provision.drift.drift_report import DriftReport, Finding
from provision.terminal import printable

_FLEET = "(fleet)"  # case for findings that no single node is responsible for


def render(report: DriftReport) -> str:
    """Render drift as failures, refused, silent and unreadable nodes as errors, and notes as output."""
    suite = ElementTree.Element("testsuite", name="gpuprov drift")
    failures = errors = 0
    cases: dict[str, list[Finding]] = {name: [] for name in report.seen.fleet.nodes}
    for finding in report.findings:
        fleet = len(finding.nodes) > 1 and finding.rule.startswith("majority/")
        for node in [_FLEET] if fleet else finding.nodes:
            cases.setdefault(node, []).append(finding)
    for name, findings in cases.items():
        case = ElementTree.SubElement(suite, "testcase", classname="gpuprov.drift", name=printable(name))
        unknown = [each for each in findings if each.level == "warning"]
        real = [each for each in findings if each.level == "error"]
        notes = [each for each in findings if each.level == "note"]
        for kind, members in (("failure", real), ("error", unknown)):
            if members:
                message = members[0].text.splitlines()[0]
                ElementTree.SubElement(case, kind, message=message).text = _lines(
                    members, name, report.seen.arguments
                )
        if notes:
            ElementTree.SubElement(case, "system-out").text = _lines(notes, name, report.seen.arguments)
        failures += bool(real)
        errors += bool(unknown)
    suite.attrib.update(tests=str(len(cases)), failures=str(failures), errors=str(errors))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _lines(found: Iterable[Finding], name: str, arguments: Arguments) -> str:
    nodes = () if name == _FLEET else (name,)
    return "\n".join(f"{each.text}\n  {each.advice(arguments, nodes)}" for each in found)
