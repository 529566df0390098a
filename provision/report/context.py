"""Data of a report beyond one run's health: earlier runs, load samples, measurements between nodes.

It is read from the run's folder and from those of earlier runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.gpu import telemetry, telemetry_rows
from provision.checks.gpu.telemetry_rows import Series
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import PAIRS
from provision.checks.pairs import groups
from provision.checks.pairs.judge import TOLERANCE, Metric
from provision.checks.pairs.pairing import Result, Topology
from provision.errors import GpuprovError
from provision.report.causes import silence, worst_first
from provision.runs import fleet_pairs, node_history, store
from provision.runs.fleet_pairs import Team
from provision.runs.node_facts import read_node_facts
from provision.runs.node_history import Earlier
from provision.runs.store import RunFolder


@dataclass(frozen=True)
class Load:
    """One check's samples on one node: device → series. `raw`: their file in the run folder."""

    check: str
    raw: str
    series: Mapping[str, Series]


@dataclass(frozen=True)
class Pairs:
    """One check's measurements between the nodes of `fleet`, in `unit`.

    `direction`: `at_least` (more is better) or `at_most`; `tolerance`: as in pairs/judge.py; `left_out`: node
    → why it took no part; `fabric`: the findings about the network; None: all fabric findings of the
    check."""

    check: str
    unit: str
    fleet: Topology
    results: tuple[Result, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    direction: str = "at_least"
    tolerance: float = TOLERANCE
    fabric: tuple[Finding, ...] | None = None


@dataclass(frozen=True)
class Context:
    """Data of a report beyond the health of its run.

    `earlier`: earlier runs, if any; `loads`: node → the load of each check with samples, for the worst nodes;
    `not_read`: nodes with samples that were not read; `pairs`: checks between nodes. For proposed commands:
    `folder` has their node lists, `pattern` is the run's value of --nodes."""

    earlier: Earlier | None = None
    loads: Mapping[str, tuple[Load, ...]] = field(default_factory=dict)
    not_read: tuple[str, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    folder: str = ""
    pattern: str = "all"


NOTHING = Context()

# --- the context of a stored run


# Limits that keep plots from dominating a report's time: the number of nodes whose samples are read, and of
# samples kept per GPU, as many as a plot can show.
_NODES = 16
_SAMPLES = 300


def of_run(folder: RunFolder, fleet: FleetHealth) -> Context:
    """Read the context of a stored run, leaving out unreadable parts."""
    sampled = [node for node in worst_first(fleet) if any(check.may_have("samples") for check in node.checks)]
    loads = {node.node: tuple(_loads(folder, node)) for node in sampled[:_NODES]}
    return Context(
        earlier=node_history.earlier(folder, fleet),
        loads={name: node_loads for name, node_loads in loads.items() if node_loads},
        not_read=tuple(node.node for node in sampled[_NODES:]),
        pairs=tuple(_pairs(folder, fleet)),
        pattern=str(folder.meta().get("pattern") or "all"),
    )


def _pairs(folder: RunFolder, health: FleetHealth) -> Iterator[Pairs]:
    """Yield the measurements between nodes; nodes with nothing to measure are not reported as missing."""
    with contextlib.suppress(GpuprovError):
        noted, node_facts = fleet_pairs.noted(folder), read_node_facts(folder)
        for check, of_pairs in PAIRS.items():
            if check in noted:
                for pairs in _pairs_of(folder, of_pairs.METRIC, noted[check], health, node_facts):
                    if pairs.results or not of_pairs.METRIC.group:  # a good group needs no pairs
                        yield pairs


def _pairs_of(
    folder: RunFolder, metric: Metric, noted: Any, health: FleetHealth, known: Mapping[str, NodeFacts]
) -> Iterator[Pairs]:
    """Yield one set of all nodes, or one per vendor if vendors are measured separately."""
    able, left_out = fleet_pairs.took_part(folder, noted)
    results = fleet_pairs.kept(folder, metric.check)
    silent = {node.node: silence(node) for node in health.nodes if node.error and node.node not in able}
    silent |= {node: why for node, why in left_out.items() if why not in (metric.no_part, fleet_pairs.ALONE)}
    here = [node for node in able if node in known]
    teams = fleet_pairs.teams(metric.check, here, known) or [Team(PAIRS[metric.check], (), "")]
    for place, team in enumerate(teams):
        own = fleet_pairs.of_team(results, teams, place)
        fleet = fleet_pairs.topology(team.nodes, known)
        absent = {node: why for node, why in silent.items() if _whose(node, teams, known) == place}
        fabric = groups.judged(fleet, own, team.check.METRIC)[1] if len(teams) > 1 else None
        pairs = tuple(groups.pairs_of(own))
        yield Pairs(
            metric.check, metric.unit, fleet, pairs, absent, metric.direction, metric.tolerance, fabric
        )


def _whose(node: str, teams: Sequence[Team], known: Mapping[str, NodeFacts]) -> int:
    """Return the index of the team that a node would belong to, or of the first team if unknown."""
    gpu = known[node].gpuprov_node.get("gpu", {}) if node in known else {}
    return next((at for at, team in enumerate(teams) if team.vendor == str(gpu.get("vendor"))), 0)


def _sampled(node: NodeHealth) -> Iterator[str]:
    """Yield the checks that sampled this node's GPUs under load."""
    for check in node.checks:
        if any(row.metric == "samples" for row in check.measurements):
            yield check.check


def _loads(folder: RunFolder, node: NodeHealth) -> Iterator[Load]:
    for check in _sampled(node):
        with contextlib.suppress(GpuprovError):  # the check's findings already report unreadable samples
            raw = store.read_raw(folder, node.node, check)
            output = next((o for o in raw.outputs if o.name == telemetry.NAME), None) if raw else None
            if raw is not None and output is not None:
                series = telemetry_rows.series(output)
                thin = {device: one.thinned(_SAMPLES) for device, one in series.items()}
                yield Load(check, raw.path, thin)
