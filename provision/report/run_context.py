"""Loader of a report's context (see report/context.py) from its run folder and those before it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from provision.checks.gpu import telemetry, telemetry_series
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.pairs import groups
from provision.checks.pairs.metric import Metric
from provision.checks.registry import PAIRS
from provision.errors import GpuprovError
from provision.report.causes import silence, worst_first
from provision.report.context import Context, Load, Pairs
from provision.runs import fleet_pairs, node_history, raw_output
from provision.runs.node_facts import NodeFacts, read_node_facts
from provision.runs.store import RunFolder

# A report must not take longer for its plots than for everything else: these many nodes' samples are read,
# and of a GPU as many samples kept as a plot has room for.
_NODES = 16
_SAMPLES = 160


def read(folder: RunFolder, fleet: FleetHealth) -> Context:
    """The context of a stored run. Whatever of it cannot be read is left out, never an error."""
    sampled = [node for node in worst_first(fleet) if any(check.may_have("samples") for check in node.checks)]
    loads = {node.node: tuple(_loads(folder, node)) for node in sampled[:_NODES]}
    return Context(
        earlier=node_history.earlier(folder, fleet),
        loads={name: found for name, found in loads.items() if found},
        not_read=tuple(node.node for node in sampled[_NODES:]),
        pairs=tuple(_pairs(folder, fleet)),
    )


def _pairs(folder: RunFolder, health: FleetHealth) -> Iterator[Pairs]:
    """What was measured between nodes; who has nothing to measure is no part of that, and is not missed."""
    with contextlib.suppress(GpuprovError):
        noted, known = fleet_pairs.noted(folder), read_node_facts(folder)
        for check, of_pairs in PAIRS.items():
            if check in noted:
                found = _pairs_of(folder, of_pairs.METRIC, noted[check], health, known)
                if found.results or not of_pairs.METRIC.group:  # a good group needs no pairs
                    yield found


def _pairs_of(
    folder: RunFolder, metric: Metric, noted: Any, health: FleetHealth, known: Mapping[str, NodeFacts]
) -> Pairs:
    able, left_out = fleet_pairs.took_part(folder, noted)
    results = tuple(groups.pairs_of(fleet_pairs.kept(folder, metric.check)))
    fleet = fleet_pairs.topology([node for node in able if node in known], known)
    silent = {node.node: silence(node) for node in health.nodes if node.error and node.node not in able}
    silent |= {node: why for node, why in left_out.items() if why != metric.no_part}
    return Pairs(metric.check, metric.unit, fleet, results, silent, metric.direction, metric.tolerance)


def _sampled(node: NodeHealth) -> Iterator[str]:
    """The checks that sampled this node's GPUs under load."""
    for check in node.checks:
        if any(row.metric == "samples" for row in check.measurements):
            yield check.check


def _loads(folder: RunFolder, node: NodeHealth) -> Iterator[Load]:
    for check in _sampled(node):
        with contextlib.suppress(GpuprovError):  # what cannot be read again is told by the check's findings
            raw = raw_output.read_raw(folder, node.node, check)
            output = next((o for o in raw.outputs if o.name == telemetry.NAME), None) if raw else None
            if raw is not None and output is not None:
                series = telemetry_series.series(output)
                thin = {device: one.thinned(_SAMPLES) for device, one in series.items()}
                yield Load(check, raw.path, thin)
