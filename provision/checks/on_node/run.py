"""One run on the node: look, run the programs of the checks, judge. The same code as `validate` judges
with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision import foreign_json
from provision.checks.check import Command, Raw
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import Finding, Verdict, worst
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.checks.on_node import kernel_since
from provision.checks.on_node import parts as parts  # what is found by name
from provision.checks.on_node.kernel_since import Remembered
from provision.checks.on_node.processes import Hung
from provision.checks.on_node.settings import Settings
from provision.desired import skus
from provision.errors import GpuprovError
from provision.node import description
from provision.node.modules import gpuprov_run
from provision.node.observe import answer

ID = "node_health"  # the check that the program's own findings belong to
CAP = 8 * 1024 * 1024  # bytes of one program's output
_LOOK_SECONDS = 40.0
_PROBE_SECONDS = 8.0
# A program that hangs is known after this, whatever the check would wait: a run has to end before the next.
_LONGEST = 25.0


@dataclass(frozen=True)
class Measured:
    """What one run read, before any judging. `raws`: by check. `kernel`: how far the kernel log was read.
    `silent`: the programs that did not end in time, in the order they were started."""

    facts: Mapping[str, Any]
    problems: Mapping[str, str]
    raws: Mapping[str, Raw]
    kernel: Remembered | None = None
    silent: tuple[str, ...] = ()


def measure(
    name: str, settings: Settings, known: Remembered | None, hung: Collection[Hung], now: float
) -> Measured:
    """Look at the node and run what its checks ask for. `known`: what earlier runs read of the kernel log.
    `hung`: programs that are not to be started, for one of them hangs. `now`: seconds since boot."""
    stuck = {one.program: one for one in hung}
    facts, problems = look(registry.facts_for(settings.checks), stuck, now)
    if late := registry.facts_of_vendor(settings.checks, _vendor(facts)):
        facts, problems = map(dict.__or__, (facts, problems), look(late, stuck, now))
    node = seen(name, facts, problems, settings)
    raws: dict[str, Raw] = {}
    boot_id, kernel = str(facts.get("boot.id") or ""), known
    if not node.error and not node.without_gpus:
        for check in settings.checks:
            commands = node_judge.commands_for(check, node.check_node, {"timeout": _LONGEST})
            wanted = [
                kernel_since.command(one, known) if one.name == kernel_since.NAME else one for one in commands
            ]
            outputs = [_output(one, stuck, now) for one in wanted]
            raw = node_judge.raw_from_answer(
                name,
                check,
                {"outputs": outputs, "boot_id": gpuprov_run.boot_id()},
                boot_id,
                [one.name for one in wanted],
            )
            raws[check], kernel = _with_journal(raw, known, kernel, boot_id)
    return Measured(facts, problems, raws, kernel, tuple(stuck))


def _vendor(facts: Mapping[str, Any]) -> str | None:
    """Whose GPUs the node has, as far as that is known."""
    if not isinstance(facts.get("gpu.count"), int):
        return None
    vendor: str | None = description.describe(facts, {})["gpu"]["vendor"]
    return vendor


def _output(command: Command, stuck: dict[str, Hung], now: float) -> dict[str, Any]:
    """The fields of one program's Output; of one that hangs still, that it has not answered since. What hangs
    now is added to `stuck`: the run's other commands do not wait for it once more."""
    asked = {
        "name": command.name,
        "argv": list(command.argv),
        "deadline": command.deadline,
        "env": dict(command.env),
        "keep": list(command.keep),
    }
    program = command.argv[0].rpartition("/")[2][:15]  # the kernel keeps 15 characters of a name
    if program in stuck:
        return {**gpuprov_run.nothing_yet(asked), "timed_out": True, "seconds": now - stuck[program].since}
    output: dict[str, Any] = gpuprov_run.run_one(asked, CAP)
    if output["timed_out"]:
        stuck[program] = Hung(0, 0, program, now - output["seconds"])
    return output


def _with_journal(
    raw: Raw, known: Remembered | None, kernel: Remembered | None, boot_id: str
) -> tuple[Raw, Remembered | None]:
    outputs = []
    for output in raw.outputs:
        if output.name == kernel_since.NAME:
            output, kernel = kernel_since.joined(output, known, boot_id)
        outputs.append(output)
    return replace(raw, outputs=tuple(outputs)), kernel


def look(
    names: Collection[str], stuck: Mapping[str, Hung], now: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Facts by name, and why one could not be read. Nothing that hangs is started."""
    probes, unknown = answer.plan(names)
    observer = answer.Observer({"probe_seconds": _PROBE_SECONDS, "seconds": _LOOK_SECONDS})
    ready = []
    for probe in probes:
        hung = stuck.get(probe.command[0]) if probe.command else None
        if hung is None:
            ready.append(probe)
        else:
            observer.complain(probe, f"{hung.program}: no answer for {now - hung.since:.0f} s")
    observer.run(ready)
    facts: dict[str, Any] = foreign_json.read("{" + ",".join(observer.facts) + "}")
    problems: dict[str, str] = foreign_json.read("{" + ",".join(observer.problems) + "}")
    return facts, {**problems, **dict.fromkeys(unknown, "no such fact")}


def seen(name: str, facts: Mapping[str, Any], problems: Mapping[str, str], settings: Settings) -> NodeFacts:
    """What checks may know of the node; its `error` says why none can run."""
    if not isinstance(facts.get("gpu.count"), int):
        why = problems.get("gpu") or problems.get("gpu.count") or "no answer"
        return NodeFacts(name, facts, {}, {}, f"its PCI devices could not be read: {why}")
    described = description.describe(facts, skus.by_pci_id())
    try:
        return node_facts_of(name, facts, problems, described, settings.variables)
    except GpuprovError as error:
        return NodeFacts(name, facts, {}, {}, f"{error.what} → {error.fix}")


def judged(name: str, measured: Measured, settings: Settings, own: Sequence[Finding] = ()) -> NodeHealth:
    """The node's health by this run alone. `own`: findings of the program about itself. Pure."""
    node = seen(name, measured.facts, measured.problems, settings)
    results: dict[str, CheckResult] = {}
    if not node.error:
        limits = settings.limits_for(node.check_node.sku, node.lanes)
        for check in settings.checks:
            raw = measured.raws.get(check) or Raw(name, check)
            results[check] = node_judge.judge_check(node, raw, limits)
    health = node_judge.judge_node(node, results, settings.checks)
    found = [*own, *_of_another(node, settings)]
    if not found:
        return health
    verdict = worst(one.verdict for one in found)
    checks = (*health.checks, CheckResult(ID, verdict, tuple(found), (), 0.0))
    return replace(health, checks=checks, verdict=worst([health.verdict, verdict]))


def _of_another(node: NodeFacts, settings: Settings) -> list[Finding]:
    """Settings that were written for other GPUs: their limits and expectations are not this node's."""
    sku = node.gpuprov_node.get("gpu", {}).get("sku") if node.gpuprov_node else None
    if not settings.sku or node.error or sku == settings.sku:
        return []
    message = f"its settings were written for {settings.sku}, and its GPUs are {sku or 'of no known SKU'}"
    return [Finding(ID, Verdict.ERROR, "node", message, "settings", sku, action="fix configuration")]
