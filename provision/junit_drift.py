"""Drift as JUnit XML, which every CI shows: one case per node."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from provision import shown
from provision.assess import Assessment
from provision.secrets_mask import masked
from provision.terminal import printable


def render(seen: Assessment) -> str:
    """The document. A node that drifted is a failure; one that is refused or silent an error."""
    suite = ElementTree.Element("testsuite", name="gpuprov drift")
    failures = errors = 0
    for name in seen.fleet.nodes:
        case = ElementTree.SubElement(suite, "testcase", classname="gpuprov.drift", name=printable(name))
        drifts = seen.drifts.get(name, [])
        unknown = [seen.unreachable[name]] if name in seen.unreachable else []
        unknown += [refusal.what for refusal in seen.refused.get(name, [])]
        unknown += [
            f"{drift.expectation.fact} {shown.difference(drift)}" for drift in drifts if drift.unknown
        ]
        real = [
            f"{drift.expectation.fact} {shown.difference(drift)}" for drift in drifts if not drift.unknown
        ]
        for kind, found in (("failure", real), ("error", unknown)):
            if found:
                text = str(masked("\n".join(found), seen.secrets))
                message = printable(text.splitlines()[0])
                ElementTree.SubElement(case, kind, message=message).text = printable(text)
        failures += bool(real)
        errors += bool(unknown)
    suite.attrib.update(tests=str(len(seen.fleet.nodes)), failures=str(failures), errors=str(errors))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
