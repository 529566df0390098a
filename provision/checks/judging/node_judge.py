"""The checks of one node: commands to run, and the judging of their outputs (pure).

Shared by the controller and the node's own health program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision import bug_file
from provision.checks.check import KERNEL_LOG_DELTA, Check, CheckNode, Command, Measurement, Output, Raw
from provision.checks.gpu import gpu_answers, gpu_inventory
from provision.checks.health import CheckResult, NodeHealth, roll_up
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.judging import registry
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import CHECKS
from provision.checks.kernel import host_lines, kernel_incidents, kernel_log
from provision.checks.nccl.nccl_table import without_environment
from provision.checks.suspects import reconciled
from provision.checks.thresholds import Threshold
from provision.checks.vendor import Answers
from provision.checks.vendors import offered
from provision.desired import vendors
from provision.errors import ParseError
from provision.text import one_line


def commands_for(check: str, node: CheckNode, options: Mapping[str, Any]) -> list[Command]:
    """Return a check's commands within the user's timeout, with a test of the GPUs after a load."""
    chosen = _check(check, node)
    if chosen is None:
        return []
    commands = list(chosen.commands(node, options))
    if commands and node.gpu_count and gpu_answers.loads(chosen.NEEDS):
        commands.append(_answers(node).command())  # last: a GPU may be lost under load
    return within(commands, options.get("timeout"))


def _check(check: str, node: CheckNode) -> Check | None:
    """Return the check's implementation for this node's GPUs, or None if unsupported."""
    return CHECKS.of_vendor(check, node.gpuprov_node["gpu"].get("vendor"))


def _answers(node: CheckNode) -> Answers:
    """Return the test of whether this node's GPUs still respond after a load."""
    return offered(node.gpuprov_node["gpu"].get("vendor")).answers()


def within(commands: Iterable[Command], timeout: float | None) -> list[Command]:
    """Cap each command's deadline at its load plus the user's `timeout` seconds."""
    if timeout is None:
        return list(commands)
    # The load is the test itself, so `timeout` limits only the time around it.
    return [replace(one, deadline=min(one.deadline, one.load + float(timeout))) for one in commands]


def raw_from_answer(
    node: str, check: str, answer: Mapping[str, Any], boot_id_before: str, asked: Sequence[str] = ()
) -> Raw:
    """Parse the untrusted answer of gpuprov_run; `error` if it is malformed or lacks a requested output."""
    try:
        outputs = tuple(_output(output) for output in answer["outputs"])
        boot_id = str(answer.get("boot_id", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Raw(
            node, check, error=f"the node's answer was not understood: {type(error).__name__}: {error}"
        )
    seconds = sum(output.seconds for output in _of_the_test(outputs))
    lacking = [name for name in asked if name not in {output.name for output in outputs}]
    message = f"the node's answer lacks the output of {', '.join(lacking)}" if lacking else ""
    return Raw(node, check, outputs, seconds, boot_id, boot_id_before, message)


def _of_the_test(outputs: Iterable[Output]) -> list[Output]:
    """Return the outputs of the test itself, without background programs and monitors."""
    return [one for one in outputs if not one.beside and one.name not in (KERNEL_LOG_DELTA, gpu_answers.NAME)]


def _output(answer: Mapping[str, Any]) -> Output:
    rc = answer["rc"]
    return Output(
        name=str(answer["name"]),
        argv=tuple(str(word) for word in answer["argv"]),
        rc=None if rc is None else int(rc),
        # The JSON of nccl-tests lists its whole environment, including secrets.
        stdout=without_environment(str(answer["stdout"])),
        stderr=str(answer["stderr"]),
        seconds=float(answer["seconds"]),
        timed_out=bool(answer["timed_out"]),
        truncated=bool(answer["truncated"]),
        not_started=str(answer["not_started"]),
        beside=str(answer.get("beside", "")),
    )


def judge_check(node: NodeFacts, raw: Raw, limits: Mapping[str, Threshold]) -> CheckResult:
    """Parse and judge one check on one node; never raises, whatever the node sent."""
    if node.without_gpus:
        skipped = Finding(raw.check, Verdict.SKIP, "node", "declared to have no GPU, and has none")
        return _result(raw.check, [skipped], [], raw)
    check = _check(raw.check, node.check_node)
    if check is None:
        skipped = Finding(raw.check, Verdict.SKIP, "node", vendors.not_measured(node.gpuprov_node))
        return _result(raw.check, [skipped], [], raw)
    measurements: list[Measurement] = []
    try:
        if raw.error:
            raise ParseError(raw.error)
        measurements = _parsed(check, node.check_node, raw)
        findings = check.judge(node.check_node, measurements, limits)
    except ParseError as error:
        what = "; ".join(part for part in (error.what, error.fix) if part)
        findings = [unmeasured(raw.check, what, action=_remedy(raw, error.fix), evidence=_evidence(raw))]
    except Exception as error:  # one node's odd output must not lose the others' report
        failed = one_line(repr(error), 200)
        what = f"gpuprov failed on this output ({failed}): {bug_file.report(error)} and {raw.path}"
        findings = [unmeasured(raw.check, what, action="investigate")]
    # Also after an error, since a GPU that was lost under the load may have caused it.
    answers = next((output for output in raw.outputs if output.name == gpu_answers.NAME), None)
    findings = _answers(node.check_node).judge(
        raw.check, answers, kernel_incidents.devices(node.check_node), findings
    )
    findings += _kernel_findings(node, raw, findings)  # after the others, which it does not repeat
    if raw.boot_id and raw.boot_id_before and raw.boot_id != raw.boot_id_before:
        findings.append(unmeasured(raw.check, "the node rebooted during the run", action="investigate"))
    return _result(raw.check, findings, measurements, raw)


# Errors of Python's int() and float() for thousands of digits, NaN and Infinity.
_UNUSABLE = ("integer string conversion", "too large to convert to float", "cannot convert float")


def _parsed(check: Check, node: CheckNode, raw: Raw) -> list[Measurement]:
    """Parse the outputs of a check; raise ParseError, also for a number out of range."""
    try:
        return check.parse(node, {output.name: output for output in raw.outputs})
    except (ValueError, OverflowError) as error:
        if not any(words in str(error) for words in _UNUSABLE):
            raise
        raise ParseError(f"a number that cannot be used: {error}", "run the check again") from error


def _kernel_findings(node: NodeFacts, raw: Raw, known: Sequence[Finding]) -> list[Finding]:
    """Judge kernel messages logged during the check, about GPUs and the host, each fault only once."""
    output = next((output for output in raw.outputs if output.name == KERNEL_LOG_DELTA), None)
    if output is None:
        return []
    if output.not_started:
        return [unmeasured(raw.check, output.not_started, action="fix configuration")]
    gpus = kernel_incidents.devices(node.check_node)
    # Not splitlines: a carriage return or U+2028 in a program's name must not begin a forged message.
    lines = output.stdout.split("\n")
    events = kernel_log.events(lines)
    events = kernel_incidents.named(kernel_incidents.of_its_gpus(node.check_node, events), gpus)
    domain = kernel_incidents.spans_nodes(node.check_node)
    findings = kernel_incidents.judge(raw.check, events, own_test=True, others=known, domain=domain)
    of_host = host_lines.events(kernel_log.texts(lines))
    findings += host_lines.judge(raw.check, node.check_node, of_host, during=True)
    if output.truncated:
        what = "the kernel wrote more than its buffer holds during this test: errors may be lost"
        findings.append(unmeasured(raw.check, what, action="investigate"))
    already_reported = {(finding.metric, finding.device) for finding in known if finding.metric}
    return [finding for finding in findings if (finding.metric, finding.device) not in already_reported]


def _remedy(raw: Raw, fix: str | None) -> str:
    """Return the action for a check that could not be measured. `fix`: the advice of its ParseError."""
    outputs = _of_the_test(raw.outputs)
    if any(output.not_started for output in outputs):
        return "fix configuration"
    # If a log or another check has the cause, running this check again shows nothing new.
    has_other_source = "look at " in (fix or "") or "look for " in (fix or "")
    return "investigate" if has_other_source or any(output.timed_out for output in outputs) else "run again"


def _evidence(raw: Raw) -> list[str]:
    """Return the last lines of output, for a reader who wonders which text was not recognised."""
    outputs = _of_the_test(raw.outputs)
    if any(output.not_started for output in outputs):
        return []  # the output of the other programs does not explain that
    lines = [line for output in outputs for line in f"{output.stdout}\n{output.stderr}".splitlines()]
    return [line.strip()[:200] for line in lines if line.strip()][-3:]


def _result(
    check: str, findings: Sequence[Finding], measurements: Sequence[Measurement], raw: Raw | None
) -> CheckResult:
    verdict = worst(finding.verdict for finding in findings)
    path = raw.path if raw and raw.outputs else ""
    return CheckResult(
        check, verdict, tuple(findings), tuple(measurements), raw.seconds if raw else 0.0, path
    )


def judge_node(
    node: NodeFacts, results: Mapping[str, CheckResult], asked: Sequence[str], *, lost: bool = False
) -> NodeHealth:
    """Combine the checks of one node. `lost`: the node stopped responding during the run."""
    if node.missing_gpus:
        message = f"0 of {node.variables['gpuprov_expected_gpus']} GPUs: {node.error}"
        action = "reseat or check cable"
        gone = Finding(gpu_inventory.ID, Verdict.FAIL, "node", message, "driver_gpus", 0, action=action)
        checks = [_result(gpu_inventory.ID, [gone], [], None)]
        return NodeHealth(node.node, Verdict.FAIL, tuple(checks), (), _header(node, ()), node.error)
    if node.error:
        return NodeHealth(node.node, Verdict.ERROR, (), (), _header(node, ()), node.error, node.unreachable)
    asked = registry.of_nodes(asked)
    checks = reconciled([results[name] for name in asked if name in results])
    whole = not lost and len(checks) == len(asked)
    # A check without a result keeps the node from counting as healthy.
    verdict = worst([roll_up(checks), *([] if whole else [Verdict.ERROR])])
    measurements = [m for check in checks if check.check == gpu_inventory.ID for m in check.measurements]
    gpus = tuple(gpu_inventory.identities(measurements))
    error = "stopped answering during the run" if lost else ""
    return NodeHealth(node.node, verdict, tuple(checks), gpus, _header(node, measurements), error, lost)


def _header(node: NodeFacts, measurements: Iterable[Measurement]) -> dict[str, Any]:
    """Return the facts for the header of a node's report."""
    facts = node.facts
    driver = next(
        (m.value for m in measurements if m.metric == "driver_version"), facts.get("driver.loaded_version")
    )
    if not node.gpuprov_node:  # the node could not be observed
        return {}
    return {
        "os": f"{facts.get('os.id', '')} {facts.get('os.version_id', '')}".strip(),
        "kernel": facts.get("kernel.release", ""),
        "driver": driver or "",
        "sku": node.gpuprov_node["gpu"]["sku"] or "",
        "gpus": node.gpuprov_node["gpu"]["count"],
        **({"boot": facts["boot.id"]} if facts.get("boot.id") else {}),
        **({"pcie_width": node.lanes} if node.lanes else {}),
    }
