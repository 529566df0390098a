"""One trial: a drawn node, broken or healthy, its whole `validate`, and the outcome."""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.detection import catalogue_amd, fleets
from benchmarks.detection.cases import (
    AMD,
    FLAGGED,
    FOUR,
    SKUS,
    Case,
    Expected,
    FleetCase,
    draw_case,
    generator,
)
from benchmarks.detection.catalogue import ENTRIES
from benchmarks.detection.machine import Machine
from provision.checks.check import Raw
from provision.checks.fleet import fleet_judge
from provision.checks.health import NodeHealth
from provision.checks.judge import Verdict, worst
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.checks.judging.registry import CHECKS
from provision.checks.judging.table import STAGES
from provision.desired import stack
from tests.support.fleet_versions import judge_fleet

HEALTHY = "healthy"
EVERY = {**ENTRIES, **catalogue_amd.ENTRIES}
NAME = "node-1"
DECLARED: Mapping[str, Any] = {
    "gpuprov_expected_gpus": 8,
    "gpuprov_expected_nics": 8,
    "gpuprov_expected_nvmes": 4,
    "validation_tools_torch_python": "/opt/pytorch/bin/python3",
}
FOUR_GPUS = {"gpuprov_expected_gpus": 4, "gpuprov_expected_nics": 4}
GONE = "Failed to connect to the host via ssh: ssh: connect to host 192.0.2.1 port 22: No route to host"
PEERS = 4  # healthy nodes of the same SKU in the run of every trial
SEEDS_PER_FLEET = 500  # trials in the same block of seeds have the same peers
OWN_LIMITS = Path(__file__).with_name("own_limits.yml")  # limits that only operators can define
OPTIONS: Mapping[str, Any] = {"burn_seconds": 60, "timeout": None}


@dataclass(frozen=True)
class Trial:
    """Input of a trial: a catalogue key, `healthy` or `amd-healthy`, and the seed of all random choices."""

    key: str
    seed: int
    graded: bool = False


@dataclass
class Outcome:
    """The validator's result. `flagged`: any warning, failure or error; `caught`: the expected verdict.
    `blamed`: the right part and action, no innocent part accused; `innocent`: wrongly accused parts;
    `accused`: all failures; `seconds`: node time by stage; `trouble`: an error of the benchmark itself.
    """

    key: str
    seed: int
    graded: bool
    sku: str = ""
    severity: float | None = None
    faults: tuple[str, ...] = ()
    verdict: str = ""
    flagged: bool = False
    caught: bool = False
    blamed: bool = False
    accused: int = 0
    innocent: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    trouble: str = ""


def run(trial: Trial) -> dict[str, Any]:
    """Return the trial's outcome as plain data; an error of the benchmark itself becomes its `trouble`."""
    outcome = Outcome(trial.key, trial.seed, trial.graded)
    try:
        _run(trial, outcome)
    except Exception:
        outcome.trouble = traceback.format_exc(limit=-4)
    return asdict(outcome)


def _run(trial: Trial, outcome: Outcome) -> None:
    rng = generator(trial.key, trial.seed, trial.graded)
    healthy = {HEALTHY: SKUS, catalogue_amd.HEALTHY: AMD}
    if trial.key in healthy:
        outcome.sku, case = rng.choice(healthy[trial.key]), Case()
    else:
        entry = EVERY[trial.key]
        drawn, case = draw_case(entry, rng, graded=trial.graded)
        outcome.sku = drawn.sku
        outcome.severity = drawn.severity if entry.clear or entry.graded else None
    if case.fleet is not None:
        _run_fleet(outcome, case.fleet, case.expected, rng)
        return
    made = (f"{name} {value}" for name, value in case.machine.items())
    outcome.faults = (*case.faults, *made, *filter(None, [case.event]))
    with Machine(outcome.sku, NAME, rng.randrange(2**31), **case.machine) as node:
        inject(node, case)
        alone, outcome.seconds, known = validate(node, case.variables, case.event)
        slots = _slots(json.loads((node.state / "state.json").read_text()))
    if case.everywhere:
        company = tuple(_companions(outcome.sku, case, "alike", outcome.key, outcome.seed))
    else:
        company = peers(outcome.sku, trial.seed // SEEDS_PER_FLEET)
    compared, _ = fleet_judge.judge([alone, *(health for health, _ in company)])
    (health, *others), _ = judge_fleet(
        compared, {NAME: known.check_node, **{one.node: said.check_node for one, said in company}}
    )
    _score(outcome, health, case.expected, slots)
    wronged = [other for other in others if other.verdict.value in FLAGGED]
    if wronged:
        outcome.innocent += len(wronged)
        outcome.accused += len(wronged)
        outcome.blamed, outcome.flagged = False, True
        outcome.findings += [f"innocent node accused: {other.node}" for other in wronged]


def inject(node: Machine, case: Case) -> None:
    for words in case.faults:
        if words == "reboot":
            node.boot()
        elif words.startswith("run "):
            node.tool(*words.split()[1:])
        else:
            node.fault(*words.split())


def _companions(sku: str, case: Case, *words: object) -> Iterator[tuple[NodeHealth, NodeFacts]]:
    """Yield other nodes of this SKU in this case, judged separately, numbered by the seed `words`."""
    for number in range(PEERS):
        seed = generator(*words, number).randrange(2**31)
        with Machine(sku, f"node-{number + 2}", seed, **case.machine) as one:
            inject(one, case)
            health, _, known = validate(one, case.variables)
            yield health, known


def _run_fleet(outcome: Outcome, fleet: FleetCase, expected: Expected | None, rng: Random) -> None:
    findings = fleets.run(fleet, rng)
    outcome.faults = tuple(f"{' '.join(place)} {factor}" for place, factor in fleet.faults.items())
    outcome.verdict = worst([finding.verdict for _, finding in findings] or [Verdict.PASS]).value
    outcome.flagged = bool(findings)
    failures = [finding for _, finding in findings if finding.verdict is Verdict.FAIL]
    outcome.accused = len(failures)
    outcome.findings = [
        f"{f.verdict.value} {place} {f.device} [{f.action}]: {f.message}" for place, f in findings
    ]
    if expected is None:
        outcome.innocent = len(failures)
        return
    outcome.caught, outcome.blamed = fleets.score(findings, expected)
    outcome.innocent = 0 if outcome.blamed else max(0, len(failures) - len(expected.devices))


@functools.lru_cache(maxsize=len(SKUS) + len(AMD))
def peers(sku: str, block: int) -> tuple[tuple[NodeHealth, NodeFacts], ...]:
    """Return healthy nodes of this SKU; all seeds of one block share them."""
    return tuple(_companions(sku, Case(), "peer", sku, block))


def looked(one: Machine, asked: Sequence[str], declared: Mapping[str, Any]) -> NodeFacts:
    """Observe a node for these checks and add its declared variables."""
    facts, problems = one.observe(registry.facts_for(asked))
    vendor = stack.describe_node(facts)["gpu"]["vendor"]
    if late := registry.facts_of_vendor(asked, vendor):
        facts, problems = map(dict.__or__, (facts, problems), one.observe(late))
    return node_facts_of(one.name, facts, problems, stack.describe_node(facts), declared)


def raw_of(one: Machine, node: NodeFacts, check: str) -> Raw:
    """Run a check's commands on a node and return their output as it arrives from a real node."""
    commands = node_judge.commands_for(check, node.check_node, OPTIONS)
    answer = json.loads(json.dumps(one.measure(commands)))
    return node_judge.raw_from_answer(one.name, check, answer, str(node.facts.get("boot.id") or ""))


def validate(
    one: Machine, variables: Mapping[str, Any], event: str = ""
) -> tuple[NodeHealth, dict[str, float], NodeFacts]:
    """Run `gpuprov validate --stage burnin` on one node; return its health, seconds by stage and facts.

    `event`: `reboots CHECK` or `vanishes CHECK` happens to the node while that check runs.
    """
    checks = tuple(registry.select("burnin"))
    node = looked(one, checks, {**DECLARED, **(FOUR_GPUS if one.sku in FOUR else {}), **variables})
    results = {}
    seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    if not node.error:
        limits = node.limits(OWN_LIMITS)
        for name in checks:
            if name == event.partition(" ")[2]:
                one.happen(event.partition(" ")[0])
            raw = raw_of(one, node, name)
            if one.gone:
                raw = Raw(one.name, name, error=GONE, unreachable=True)
            results[name] = node_judge.judge_check(node, raw, limits)
            seconds[CHECKS.entries[name].stage] += raw.seconds
            if one.gone:
                break
    return node_judge.judge_node(node, results, checks, lost=one.gone), seconds, node


def _score(outcome: Outcome, health: NodeHealth, expected: Expected | None, slots: Mapping[str, str]) -> None:
    findings = [finding for check in health.checks for finding in check.findings]
    flagged = [finding for finding in findings if finding.verdict.value in FLAGGED]
    outcome.verdict = health.verdict.value
    outcome.flagged = outcome.verdict in FLAGGED
    outcome.findings = [
        f"{f.verdict.value} {f.check}.{f.metric or '-'} {f.device} [{f.action}]: {f.message}" for f in flagged
    ]
    failures = [f for f in flagged if f.verdict.value == "fail"]
    outcome.accused = len(failures)
    if expected is None:
        outcome.innocent = len(failures)
        return
    devices = {slots.get(device, device) for device in expected.devices}
    spared = devices | {slots.get(device, device) for device in expected.also}
    innocent = [f for f in failures if not _one_of(f.device, spared)]
    outcome.innocent = len(innocent)
    outcome.caught = outcome.verdict in expected.verdicts
    right = [
        f
        for f in flagged
        if _one_of(f.device, devices)
        and f.action in expected.actions
        and f.verdict.value in expected.verdicts
    ]
    outcome.blamed = bool(right) and not innocent


def _one_of(device: str, names: set[str]) -> bool:
    """Whether a device is one of `names`; a name that ends in * is a prefix."""
    return any(device.startswith(name[:-1]) if name.endswith("*") else device == name for name in names)


def _slots(state: Mapping[str, Any]) -> dict[str, str]:
    """Return `slot 3`, `nic slot 3` → the name, by PCI address, of a part that lost its own."""
    found = {f"slot {gpu['slot']}": "gpu@" + gpu["address"].rpartition(".")[0] for gpu in state["gpus"]}
    for nic in state.get("nics", ()):
        found[f"nic slot {nic['number']}"] = "hca@" + nic["address"]
    return found
