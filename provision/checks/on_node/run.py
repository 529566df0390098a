"""One run on the node: read its facts, run the checks' commands and judge, by the code of `validate`."""

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
from provision.checks.on_node import parts as parts  # modules found by name
from provision.checks.on_node.kernel_since import Remembered
from provision.checks.on_node.processes import Hung
from provision.checks.on_node.settings import Settings
from provision.desired import skus
from provision.errors import GpuprovError
from provision.node import description
from provision.node.modules import gpuprov_run
from provision.node.observe import answer

ID = "node_health"  # check id of the program's own findings
CAP = 8 * 1024 * 1024  # bytes of output per command
_LOOK_SECONDS = 40.0
_PROBE_SECONDS = 8.0
# Longest wait for a command, even if its check allows more: a run must end before the next one starts.
_LONGEST = 25.0


@dataclass(frozen=True)
class Measured:
    """Everything that one run read, not yet judged."""

    facts: Mapping[str, Any]
    problems: Mapping[str, str]
    raws: Mapping[str, Raw]  # by check
    kernel: Remembered | None = None  # position in the kernel log
    silent: tuple[str, ...] = ()  # programs that timed out, in the order of their start


def measure(
    name: str, settings: Settings, known: Remembered | None, hung: Collection[Hung], now: float
) -> Measured:
    """Read the node's facts and run the commands of its checks.

    `known`: kernel log read by earlier runs. `hung`: programs not to start. `now`: seconds since boot."""
    stuck = {one.program: one for one in hung}
    facts, problems = look(registry.facts_for(settings.checks), stuck, now)
    if vendor_facts := registry.facts_of_vendor(settings.checks, _vendor(facts)):
        facts, problems = map(dict.__or__, (facts, problems), look(vendor_facts, stuck, now))
    node = seen(name, facts, problems, settings)
    raws: dict[str, Raw] = {}
    boot_id, kernel = str(facts.get("boot.id") or ""), known
    if not node.error and not node.without_gpus:
        for check in settings.checks:
            commands = node_judge.commands_for(check, node.check_node, {"timeout": _LONGEST})
            since_last = [
                kernel_since.command(one, known) if one.name == kernel_since.NAME else one for one in commands
            ]
            outputs = [_output(one, stuck, now) for one in since_last]
            raw = node_judge.raw_from_answer(
                name,
                check,
                {"outputs": outputs, "boot_id": gpuprov_run.boot_id()},
                boot_id,
                [one.name for one in since_last],
            )
            raws[check], kernel = _with_journal(raw, known, kernel, boot_id)
    return Measured(facts, problems, raws, kernel, tuple(stuck))


def _vendor(facts: Mapping[str, Any]) -> str | None:
    """Return the GPU vendor, or None if it is unknown."""
    if not isinstance(facts.get("gpu.count"), int):
        return None
    vendor: str | None = description.describe(facts, {})["gpu"]["vendor"]
    return vendor


def _output(command: Command, stuck: dict[str, Hung], now: float) -> dict[str, Any]:
    """Run a command and return its Output fields; a program that still hangs is not started again.

    If the program times out, it is added to `stuck`, so that no later command waits for it."""
    request = {
        "name": command.name,
        "argv": list(command.argv),
        "deadline": command.deadline,
        "env": dict(command.env),
        "keep": list(command.keep),
    }
    program = command.argv[0].rpartition("/")[2][:15]  # the kernel keeps 15 characters of a process name
    if program in stuck:
        return {**gpuprov_run.nothing_yet(request), "timed_out": True, "seconds": now - stuck[program].since}
    output: dict[str, Any] = gpuprov_run.run_one(request, CAP)
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
    """Return facts by name, and the reason for each that could not be read; start nothing that hangs."""
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
    """Return the node as checks receive it; its `error` says why none can run."""
    if not isinstance(facts.get("gpu.count"), int):
        why = problems.get("gpu") or problems.get("gpu.count") or "no answer"
        return NodeFacts(name, facts, {}, {}, f"its PCI devices could not be read: {why}")
    described = description.describe(facts, skus.by_pci_id())
    try:
        return node_facts_of(name, facts, problems, described, settings.variables)
    except GpuprovError as error:
        return NodeFacts(name, facts, {}, {}, f"{error.what} → {error.fix}")


def judged(name: str, measured: Measured, settings: Settings, own: Sequence[Finding] = ()) -> NodeHealth:
    """Judge this run alone. `own`: findings of the program about itself. Pure."""
    node = seen(name, measured.facts, measured.problems, settings)
    results: dict[str, CheckResult] = {}
    if not node.error:
        limits = settings.limits_for(node.check_node.sku, node.lanes)
        for check in settings.checks:
            raw = measured.raws.get(check) or Raw(name, check)
            results[check] = node_judge.judge_check(node, raw, limits)
    health = node_judge.judge_node(node, results, settings.checks)
    extra = [*own, *_of_another(node, settings)]
    if not extra:
        return health
    verdict = worst(one.verdict for one in extra)
    checks = (*health.checks, CheckResult(ID, verdict, tuple(extra), (), 0.0))
    return replace(health, checks=checks, verdict=worst([health.verdict, verdict]))


def _of_another(node: NodeFacts, settings: Settings) -> list[Finding]:
    """Report settings written for another SKU; their limits and expectations do not apply here."""
    sku = node.gpuprov_node.get("gpu", {}).get("sku") if node.gpuprov_node else None
    if not settings.sku or node.error or sku == settings.sku:
        return []
    message = f"its settings were written for {settings.sku}, and its GPUs are {sku or 'of no known SKU'}"
    return [Finding(ID, Verdict.ERROR, "node", message, "settings", sku, action="fix configuration")]
