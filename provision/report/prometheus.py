"""The health of a fleet as metrics, for the textfile folder of a node exporter (docs/metrics.md).

Messages and measured values are not labels, so that a series lasts as long as its fault.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from provision.checks.exposition import Family, Sample
from provision.checks.exposition import render as text_of
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.node_names import label
from provision.report.causes import Culprit, missing
from provision.text import one_line

_LONGEST = 200  # characters per label


def render(fleet: FleetHealth) -> Iterator[str]:
    """Yield the text of `gpuprov-validation.prom`."""
    yield text_of(families(fleet))


def families(fleet: FleetHealth) -> list[Family]:
    """Return every metric of a validation."""
    return [
        Family(
            "gpuprov_validation_timestamp_seconds",
            "gauge",
            "When the run ended in which checks last had a result on this node, in seconds since 1970.",
            tuple(_timestamps(fleet)),
        ),
        Family(
            "gpuprov_validation_verdict",
            "gauge",
            "1 for the verdict of the node, 0 for the others.",
            tuple(
                Sample(node.verdict is verdict, {"node": label(node.node), "verdict": verdict.value})
                for node in fleet.nodes
                for verdict in Verdict
            ),
        ),
        Family(
            "gpuprov_validation_check_verdict",
            "gauge",
            "1 for the verdict of a check on the node; the other verdicts have no series.",
            tuple(_checks(fleet)),
        ),
        Family(
            "gpuprov_validation_finding",
            "gauge",
            "1 for each finding that is no pass; the node is empty for what lies between nodes.",
            tuple(_findings(fleet)),
        ),
        Family(
            "gpuprov_validation_nodes",
            "gauge",
            "How many nodes have this verdict.",
            tuple(Sample(count, {"verdict": verdict.value}) for verdict, count in fleet.counts.items()),
        ),
    ]


def _timestamps(fleet: FleetHealth) -> Iterator[Sample]:
    try:
        ended = datetime.datetime.fromisoformat(fleet.finished or fleet.started).timestamp()
    except ValueError:
        return
    for node in fleet.nodes:
        if node.checks:
            yield Sample(ended, {"node": label(node.node)})


def _checks(fleet: FleetHealth) -> Iterator[Sample]:
    for node in fleet.nodes:
        verdicts = {check.check: check.verdict for check in node.checks}
        verdicts |= dict.fromkeys(missing(fleet, node), Verdict.ERROR)
        for check, verdict in verdicts.items():
            yield Sample(
                1, {"node": label(node.node), "check": one_line(check, _LONGEST), "verdict": verdict.value}
            )


def _findings(fleet: FleetHealth) -> Iterator[Sample]:
    between = NodeHealth("", Verdict.PASS, ())
    culprits = [Culprit(between, finding) for finding in fleet.fabric]
    culprits += [
        Culprit(node, finding) for node in fleet.nodes for check in node.checks for finding in check.wrong
    ]
    for culprit in culprits:
        finding, gpus = culprit.finding, culprit.gpus
        labels = {
            "check": finding.check,
            "metric": finding.metric,
            "device": finding.device,
            "verdict": finding.verdict.value,
            "action": finding.action,
            "serial": gpus[0].serial if len(gpus) == 1 else "",
        }
        short = {name: one_line(value, _LONGEST) for name, value in labels.items()}
        yield Sample(1, {"node": label(culprit.node.node), **short})
