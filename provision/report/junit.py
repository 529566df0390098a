"""report.junit.xml: a test suite per node, and one for faults between nodes; a test case per check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.report.causes import FABRIC, missing, silence
from provision.text import clean, columns, one_line, quantity

# CI systems have no `warn`: it passes, with its text in the case's output. `error` and `skip` never pass.
_OUTCOMES = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.SKIP: "skipped"}


def render(fleet: FleetHealth) -> Iterator[str]:
    """Yield the document in pieces, one suite each."""
    totals: Counter[Verdict] = Counter()
    for node in fleet.nodes:
        totals.update(_verdicts(fleet, node))
    totals.update(finding.verdict for finding in fleet.fabric)
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuites name={_attribute(f'gpuprov validate {fleet.run_id}')}{_counts(totals)}>\n"
    for node in fleet.nodes:
        yield from _suite(fleet, node)
    if fleet.fabric:
        yield from _fabric(fleet)
    yield "</testsuites>\n"


def _fabric(fleet: FleetHealth) -> Iterator[str]:
    """Yield a suite with a case for each finding between nodes."""
    counts = _counts(Counter(finding.verdict for finding in fleet.fabric))
    yield f"<testsuite name={_attribute(FABRIC)}{counts} timestamp={_attribute(fleet.started)}>\n"
    for finding in fleet.fabric:
        names = f"classname={_attribute(FABRIC)} name={_attribute(f'{finding.check} {finding.device}')}"
        yield _told(f"<testcase {names}", finding.verdict, (finding,))
    yield "</testsuite>\n"


def _verdicts(fleet: FleetHealth, node: NodeHealth) -> list[Verdict]:
    reached = [Verdict.ERROR] if node.error or node.unreachable else []
    return reached + [check.verdict for check in node.checks] + [Verdict.ERROR] * len(missing(fleet, node))


def _counts(verdicts: Counter[Verdict]) -> str:
    numbers = (
        ("tests", verdicts.total()),
        ("failures", verdicts[Verdict.FAIL]),
        ("errors", verdicts[Verdict.ERROR]),
        ("skipped", verdicts[Verdict.SKIP]),
    )
    return "".join(f' {name}="{number}"' for name, number in numbers)


def _suite(fleet: FleetHealth, node: NodeHealth) -> Iterator[str]:
    seconds = sum(check.seconds for check in node.checks)
    counts = _counts(Counter(_verdicts(fleet, node)))
    when = _attribute(fleet.started)
    yield f'<testsuite name={_attribute(node.node)}{counts} time="{seconds:.3f}" timestamp={when}>\n'
    if node.gpus:
        identities = (
            (f"gpu{gpu.index}", f"{gpu.name} serial {gpu.serial} {gpu.pci_address}") for gpu in node.gpus
        )
        rows = (
            f"<property name={_attribute(name)} value={_attribute(value)}/>" for name, value in identities
        )
        yield f"<properties>{''.join(rows)}</properties>\n"
    if node.error or node.unreachable:
        yield _unrun(node, "node", silence(node))
    for check in node.checks:
        yield _case(node, check)
    for name in missing(fleet, node):
        yield _unrun(node, name, "did not run")
    yield "</testsuite>\n"


def _unrun(node: NodeHealth, name: str, why: str) -> str:
    case = f"<testcase classname={_attribute(node.node)} name={_attribute(name)}"
    return f"{case}><error message={_attribute(why)}/></testcase>\n"


def _case(node: NodeHealth, check: CheckResult) -> str:
    names = f"classname={_attribute(node.node)} name={_attribute(check.check)}"
    case = f'<testcase {names} time="{check.seconds:.3f}"'
    notable = sorted(check.wrong, key=lambda finding: -finding.verdict.badness)
    return _told(case, check.verdict, notable)


def _told(case: str, verdict: Verdict, notable: Sequence[Finding]) -> str:
    """Complete a begun test case with its findings, worst first."""
    kind = _OUTCOMES.get(verdict)
    if kind is None:
        output = f"<system-out>{_text(notable)}</system-out>" if notable else ""
        return f"{case}>{output}</testcase>\n" if output else f"{case}/>\n"
    message = _attribute(f"{notable[0].device}: {notable[0].message}" if notable else "no reason was given")
    return f"{case}><{kind} message={message}>{_text(notable)}</{kind}></testcase>\n"


def _text(findings: Iterable[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict.value} {finding.device}: {finding.message}")
        if finding.value is not None:
            limit = f" (limit {finding.limit}; {finding.source})" if finding.limit else ""
            lines.append(f"  measured {quantity(finding.value, finding.unit)}{limit}")
        lines.append(f"  action: {finding.action}")
        lines += [f"  | {columns(line)}" for line in finding.evidence[:40]]
    return escape("\n".join(clean(line[:4000]) for line in lines), quote=False)


def _attribute(value: str) -> str:
    """Quote an XML attribute: one line, without characters that XML 1.0 forbids."""
    return f'"{escape(one_line(value))}"'
