"""Recordings of simulated machines of the detection benchmark.
They hold the input of the node's health program and the controller's verdict on the same input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.detection import machine, trial
from benchmarks.detection.cases import FOUR, SKUS, Case, draw_case, generator
from benchmarks.detection.catalogue import ENTRIES
from benchmarks.detection.machine import Machine
from provision.checks.check import Output, Raw
from provision.checks.health import NodeHealth
from provision.checks.judging import node_judge
from provision.checks.on_node.settings import CHECKS

HEALTHY = trial.HEALTHY


def of(keys: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Record trials, each a key of the catalogue (or HEALTHY) and a seed, in separate simulator processes.
    Trials of whole fleets are left out, since no node knows its fleet."""
    return [one for one in machine.pooled(recorded, keys, 1, chunksize=4) if one is not None]


def recorded(what: tuple[str, int]) -> dict[str, Any] | None:
    """Record one trial: the node's `facts`, `problems` and `variables`, and `raws` by check.
    `controller` holds the controller's verdict on these checks alone."""
    key, seed = what
    rng = generator(key, seed, False)
    case, sku = Case(), ""
    if key == HEALTHY:
        sku = rng.choice(SKUS)
    else:
        drawn, case = draw_case(ENTRIES[key], rng, graded=False)
        sku = drawn.sku
    if case.fleet is not None:
        return None
    with Machine(sku, trial.NAME, rng.randrange(2**31), **case.machine) as one:
        trial.inject(one, case)
        declared = {**trial.DECLARED, **(trial.FOUR_GPUS if sku in FOUR else {}), **case.variables}
        node = trial.looked(one, CHECKS, declared)
        raws = {} if node.error else {check: trial.raw_of(one, node, check) for check in CHECKS}
    limits = node.limits()
    results = {check: node_judge.judge_check(node, raw, limits) for check, raw in raws.items()}
    made = {
        "key": key,
        "sku": sku,
        "facts": dict(node.facts),
        "problems": dict(node.problems),
        "variables": declared,
        "raws": {check: asdict(raw) for check, raw in raws.items()},
        "controller": told(node_judge.judge_node(node, results, CHECKS)),
    }
    document: dict[str, Any] = json.loads(json.dumps(made))
    return document


def told(health: NodeHealth) -> Mapping[str, Any]:
    """Return the compared values: the verdict and all fields of every finding."""
    findings = [
        {**asdict(one), "verdict": one.verdict.value} for check in health.checks for one in check.findings
    ]
    return {"verdict": health.verdict.value, "error": health.error, "findings": findings}


def raw_of(row: Mapping[str, Any]) -> Raw:
    """Rebuild a recorded result."""
    outputs = tuple(Output(**{**one, "argv": tuple(one["argv"])}) for one in row["outputs"])
    return Raw(**{**row, "outputs": outputs})
