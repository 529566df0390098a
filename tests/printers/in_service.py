"""Judgement of gpu_inventory's outputs by the node's own health program.

It has a healthy run first, then runs with the fault, then healthy ones again. Each run's document is read as
the controller reads it, its metrics as Prometheus reads them, and its reason as NHC and Slurm take it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from provision.checks import exposition
from provision.checks.check import Raw
from provision.checks.health import NodeHealth
from provision.checks.judge import Finding
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.on_node import debounce, document, metrics, run, styles
from provision.checks.on_node.debounce import Tracked
from provision.checks.on_node.settings import Settings
from provision.validate.status import health_document

CHECK = "gpu_inventory"
_SETTINGS = Settings(checks=(CHECK,))
_RUNS = 5  # enough for every rule to count what each run showed, or to clear what none showed
_ABOUT = {"boot_id": "b", "uptime": 9.0, "started": "s", "finished": "f", "seconds": 1.0}
_DRAINS = ("fail", "error")


@dataclass(frozen=True)
class Printed:
    """A node's health, judged from the output of gpu_inventory's commands."""

    health: NodeHealth

    @classmethod
    def of(cls, node: NodeFacts, raw: Raw) -> Printed:
        """Judge the output with the node's program, which uses the controller's judge (see tests/on_node)."""
        measured = run.Measured(node.facts, node.problems, {CHECK: raw})
        return cls(run.judged(node.node, measured, _SETTINGS))

    @property
    def findings(self) -> list[Finding]:
        """Findings of all checks."""
        return [finding for check in self.health.checks for finding in check.findings]


def wrong(healthy: Printed, faulty: Printed, verdicts: Sequence[str], gone: str | None = None) -> list[str]:
    """Describe where the health program reports a fault incorrectly.

    `verdicts`: those allowed for the node; `gone`: the lost GPU, "" for none, None if unknown.
    """
    before, now = healthy.health, faulty.health
    found: list[str] = []
    first = _followed(None, faulty)
    states = [_followed(None, healthy)]
    for printed in [faulty] * _RUNS + [healthy] * _RUNS:
        states.append(_followed(states[-1], printed))
    at_once, counted, cleared = states[1], states[_RUNS], states[-1]
    for when, tracked in (("without a run before", first), (f"after {_RUNS} runs", counted)):
        found += (f"{when}: {one}" for one in _told(now, tracked, before, verdicts))
    if gone and "fail" in verdicts and debounce.verdict(at_once, now.verdict).value != "fail":
        found.append(f"{gone} is lost, and the first run that shows it does not count")
    if cleared and all(one.verdict.value in ("pass", "skip") for one in healthy.findings):
        found.append(f"it still tells of {_words([one.finding for one in cleared])} when it is gone")
    if gone is not None:
        lost = [f"gpu{row['index']}" for row in _document(now, counted, before)["gpus"] if row["lost"]]
        if lost != ([gone] if gone else []):
            found.append(f"it has {', '.join(lost) or 'no GPU'} as lost")
    return found


def _followed(before: Sequence[Tracked] | None, printed: Printed) -> list[Tracked]:
    return debounce.followed(before, printed.findings, _SETTINGS.rules, "2026-11-25T10:00:00Z")


def _document(health: NodeHealth, tracked: Sequence[Tracked], before: NodeHealth) -> dict[str, Any]:
    return document.document(health, tracked, _ABOUT, 60, before.gpus)


def _told(
    health: NodeHealth, tracked: Sequence[Tracked], before: NodeHealth, verdicts: Sequence[str]
) -> Iterator[str]:
    """Yield the errors in the document, the metrics and the reason to drain."""
    told = _document(health, tracked, before)
    verdict = "pass" if told["verdict"] == "skip" else told["verdict"]
    if verdict not in verdicts:
        yield f"the node is {verdict}, not {' or '.join(verdicts)}"
    read = health_document.read(document.text(told).encode())
    if (read.verdict.value, len(read.findings)) != (told["verdict"], len(told["findings"])):
        yield f"the controller reads {read.verdict.value} with {len(read.findings)} findings"
    text = exposition.render(metrics.families(told, 1.0, {}))
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    shown = [one.labels["verdict"] for one in families["gpuprov_health_verdict"] if one.value]
    if shown != [told["verdict"]]:
        yield f"its metrics have the verdicts {shown}"
    counted = {(one.finding.device, one.finding.metric) for one in tracked if one.active}
    labels = {(one.labels["device"], one.labels["metric"]) for one in families.get("gpuprov_finding", ())}
    if labels != counted:
        yield f"its metrics have the findings {sorted(labels)}, not {sorted(counted)}"
    reason, status = styles.nhc(told)
    worst = [one.finding for one in tracked if one.active and one.finding.verdict.value == verdict]
    if status != (verdict in _DRAINS):
        yield f"NHC gets the status {status} of a node that is {verdict}"
    elif status and not any(one.device in reason and one.message[:30] in reason for one in worst):
        yield f"the reason to drain it is {reason!r}"


def _words(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{one.verdict.value} {one.device} {one.metric}" for one in findings) or "nothing"
