"""From which severity on a slow GPU is found in 1, 3 and 10 runs: by its node alone, and beside a fleet.

gpuprov pools no measurements over runs: each run is judged by itself, and what an earlier one found raises
the action of the next finding (provision/checks/offenders.py). So a GPU is found in k runs when one of
them names
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.detection import machine, trial
from benchmarks.detection.cases import FLAGGED, GPUS, generator
from benchmarks.detection.machine import Machine
from benchmarks.detection.scores import Share
from provision.checks import node_judge
from provision.checks.fleet import fleet_judge
from provision.checks.health import NodeHealth

SKU = "h100-sxm"
# What is slow, and by how much; 0 is a healthy node, for the false alarms.
SEVERITIES = {
    "one GPU": (0.0, 0.06, 0.08, 0.09, 0.095, 0.1, 0.105, 0.11, 0.12),
    "all GPUs of a node": (0.02, 0.03, 0.04, 0.05, 0.06, 0.08),
}
RUNS = (1, 3, 10)
FLEET = 16
CHECKS = ("gpu_inventory", "ddp_scaling", "gpu_burn")  # of those that a GPU's clocks can show in
BEGIN, END = "<!-- repeats: begin -->", "<!-- repeats: end -->"


@dataclass(frozen=True)
class Node:
    """One node that is run again and again: what is slow in it, by how much, and its number."""

    kind: str
    severity: float
    number: int


def runs(one: Machine) -> Iterator[NodeHealth]:
    """The node's health, run after run; each has measurement noise of its own."""
    node = trial.looked(one, CHECKS, trial.DECLARED)
    limits = node.limits(trial.OWN_LIMITS)
    for _ in range(max(RUNS)):
        results = {
            name: node_judge.judge_check(node, trial.raw_of(one, node, name), limits) for name in CHECKS
        }
        yield node_judge.judge_node(node, results, CHECKS)


@cache
def company() -> tuple[tuple[NodeHealth, ...], ...]:
    """The healthy rest of the fleet, run by run."""
    found = []
    for number in range(FLEET - 1):
        with Machine(SKU, f"node-{number + 2}", _seed("company", number)) as one:
            found.append(tuple(runs(one)))
    return tuple(zip(*found, strict=True))


def _seed(*words: object) -> int:
    return generator("repeats", *words).randrange(2**31)


def run(asked: Node) -> dict[str, Any]:
    """For each run, whether the slow part was named, and whether anything else was; alone, and in a fleet."""
    rng = generator("repeats", asked.kind, asked.severity, asked.number)
    hit = rng.randrange(GPUS)
    slow = [hit] if asked.kind == "one GPU" else list(range(GPUS))
    with Machine(SKU, trial.NAME, _seed(asked.kind, asked.severity, asked.number)) as one:
        for gpu in slow if asked.severity else ():
            one.fault("gpu_slow", f"gpu={gpu}", f"factor={1 - asked.severity:.4f}")
        alone = list(runs(one))
    fleet = [fleet_judge.judge([mine, *others])[0][0] for mine, others in zip(alone, company(), strict=True)]
    targets = {f"gpu{gpu}" for gpu in slow} if asked.severity else set[str]()
    if len(slow) > 1:
        targets.add("node")
    return {
        "kind": asked.kind,
        "severity": asked.severity,
        "alone": [_said(health, targets) for health in alone],
        "fleet": [_said(health, targets) for health in fleet],
    }


def _said(health: NodeHealth, targets: set[str]) -> tuple[bool, bool]:
    """(the slow part was named, something else was)."""
    devices = {f.device for check in health.checks for f in check.findings if f.verdict.value in FLAGGED}
    return bool(devices & targets), bool(devices - targets)


def outcomes(nodes: int, jobs: int) -> list[dict[str, Any]]:
    """So many nodes of each severity, in processes of their own."""
    drawn = [(kind, severity) for kind, severities in SEVERITIES.items() for severity in severities]
    asked = [Node(*one, number) for number in range(nodes) for one in drawn]
    return list(machine.pooled(run, asked, jobs))


def found_in(said: Sequence[Sequence[bool]], count: int, what: int) -> list[bool]:
    """For each `count` runs in a row, whether one of them said it (0: the GPU, 1: something else)."""
    groups = (said[at : at + count] for at in range(0, len(said) - count + 1, count))
    return [any(one[what] for one in group) for group in groups]


def lines(found: Sequence[Mapping[str, Any]], nodes: int) -> list[str]:
    """The table: by severity, the share of k runs in which the slow part was named."""
    places = [(where, count) for where in ("alone", "fleet") for count in RUNS]
    words = {"alone": "alone", "fleet": f"fleet of {FLEET}"}
    heads = [f"{words[where]}, {count} run{'s' * (count > 1)}" for where, count in places]
    table = [f"| slow | by | {' | '.join(heads)} |", f"|---|---:|{'---|' * len(heads)}"]
    for kind, severities in SEVERITIES.items():
        for severity in severities:
            own = [one for one in found if (one["kind"], one["severity"]) == (kind, severity)]
            cells = [
                _share([h for one in own for h in found_in(one[where], count, 0 if severity else 1)])
                for where, count in places
            ]
            by = f"{kind} | {severity:.1%}" if severity else "nothing: flagged | "
            table.append(f"| {by} | {' | '.join(cells)} |")
    others = [hit for one in found if one["severity"] for hit in found_in(one["fleet"], 1, 1)]
    how = (
        f"`python -m benchmarks.detection --repeats {nodes}`: {nodes} nodes ({SKU}) of each severity, run "
        f"{max(RUNS)} times; another part was flagged beside the slow one in {_share(others)} of runs."
    )
    return [how, "", *table]


def _share(hits: Sequence[bool]) -> str:
    share = Share(sum(hits), len(hits))
    return f"{share.value:.0%} ({share})"
