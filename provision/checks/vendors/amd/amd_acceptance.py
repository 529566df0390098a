"""Steps of AMD's acceptance guide beyond other checks: power, memory patterns, GEMMs, STREAM.

RVS's modules iet and mem run on every node; rocBLAS, BabelStream and AGFHC's last result count if installed.
docs/amd-acceptance.md lists each step of the guide with the check that covers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.judge import (
    PEERS,
    Finding,
    Verdict,
    below_peers,
    by_threshold,
    finding_on,
    unmeasured,
)
from provision.checks.kernel import kernel_incidents
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd import acceptance_extras, devices, rvs_power_memory, sensors, smi, telemetry
from provision.errors import ParseError

ID = "amd_acceptance"
SUMMARY = (
    "AMD's acceptance guide: power reached, memory patterns; rocBLAS, BabelStream, AGFHC where installed"
)
FINDS = (
    "what AMD's acceptance guide asks beyond the other checks: GPUs that do not reach their power, or "
    "whose memory does not hold what was written; rocBLAS, BabelStream and AGFHC's last result where "
    "installed"
)
NEEDS: tuple[str, ...] = ("rvs", "amd-smi")
FACTS: tuple[str, ...] = devices.FACTS

_TITLES = {
    "power": "the highest power under load",
    "memory_stress": "memory bandwidth of RVS's stress test",
    **{f"gemm_{kind}": f"rocBLAS {kind.upper()} rate" for kind in ("fp32", "bf16", "int8")},
    **{f"stream_{one}": f"BabelStream {one}" for one in ("copy", "mul", "add", "triad", "dot")},
}
_LACKING = {
    "absent": "not installed, so not measured",
    "unnumbered": "no GPU's unique number is known, so not measured",
}
_TOLERANCE = 0.10  # below the other GPUs
_FULL = 0.99  # of the default power limit


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    if devices.partitioned(node):
        return []
    return [telemetry.before(), *rvs_power_memory.commands(node), *acceptance_extras.commands(node)]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return each GPU's power limit and measured rates, or only `partition`. Raises ParseError."""
    if modes := devices.partitioned(node):
        return [Measurement("partition", modes, "")]
    return [
        *_limits(node, outputs),
        *rvs_power_memory.parse(node, outputs),
        *acceptance_extras.parse(node, outputs),
    ]


def _limits(node: CheckNode, outputs: Mapping[str, Output]) -> Iterator[Measurement]:
    """Yield the power limits; a guest does not know its own."""
    try:
        static = smi.entries(outputs[telemetry.BEFORE])
        names = sensors.by_device(static, kernel_incidents.devices(node))
    except (KeyError, ParseError):
        return
    for entry in static:
        if (device := names.get(int(entry["gpu"]))) is not None:
            yield from sensors.of_limits(entry, device)


def judge(
    node: CheckNode,  # noqa: ARG001 - the contract
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    values = {(one.metric, one.device): one.value for one in measurements}
    if modes := values.get(("partition", "node")):
        return devices.left_out(ID, modes)
    findings = list(_judge_memory(measurements))
    for metric in _TITLES:
        rates = {one.device: one for one in measurements if one.metric == metric}
        lowered = {d for d in rates if metric == "power" and _not_judged(values, d)}
        findings += _judge_rates(metric, rates, lowered, thresholds.get(f"{ID}.{metric}"))
    findings += [
        unmeasured(ID, str(one.value), action="investigate")
        for one in measurements
        if one.metric == "unreadable"
    ]
    for metric, why in _LACKING.items():
        if names := sorted({str(one.value) for one in measurements if one.metric == metric}):
            findings.append(Finding(ID, Verdict.SKIP, "node", f"{why}: {', '.join(names)}", metric))
    return findings + list(_judge_agfhc(values))


def _not_judged(values: Mapping[tuple[str, str], Any], device: str) -> bool:
    """Return whether a GPU's power cannot be judged.

    Its power limit was lowered or is unknown (as a guest's), or it reports no power (MI250's second die).
    """
    usual = values.get(("power_default", device))
    lowered = usual is None or values.get(("power_limit", device), usual) < _FULL * usual
    return lowered or not values["power", device]


def _judge_memory(measurements: Sequence[Measurement]) -> Iterator[Finding]:
    tested = [one for one in measurements if one.metric == "memory_errors"]
    for one in tested:
        if one.value:
            message = f"memory does not hold what was written: RVS counts {one.value} errors"
            yield finding_on(ID, Verdict.FAIL, one, message, "= 0 errors", "RVS, module mem", "replace part")
    if not any(one.value for one in tested):
        message = f"the memory of all {len(tested)} GPUs holds RVS's eleven patterns (128 MiB of each)"
        yield Finding(ID, Verdict.PASS, "node", message, "memory_errors", 0, "errors", "= 0 errors")


def _judge_rates(
    metric: str, rates: Mapping[str, Measurement], left_out: set[str], limit: Threshold | None
) -> list[Finding]:
    """Judge the rates by the limit (fail) and against each other (warn)."""
    judged = {device: one for device, one in rates.items() if device not in left_out}
    findings: list[Finding] = []
    if left_out:
        said = (
            f"{_TITLES[metric]} is not judged of {', '.join(sorted(left_out))}: "
            "its limit of power is lowered or unknown, or it shows no power"
        )
        findings.append(Finding(ID, Verdict.SKIP, "node", said, metric))
    behind = below_peers({device: float(str(one.value)) for device, one in judged.items()}, _TOLERANCE)
    for device, one in judged.items():
        if limit is not None and float(str(one.value)) < limit.limit:
            findings.append(by_threshold(ID, _TITLES[metric], one, limit, action="investigate"))
        elif device in behind:
            middle, short = behind[device]
            said = f"{_TITLES[metric]} is {one.value:g} {one.unit}, {short:.0%} below its peers' {middle:g}"
            floor = f"≥ {(1 - _TOLERANCE) * middle:.0f} {one.unit}"
            findings.append(finding_on(ID, Verdict.WARN, one, said, floor, PEERS, "investigate"))
    if judged and not any(one.verdict in (Verdict.FAIL, Verdict.WARN) for one in findings):
        worst = min(judged.values(), key=lambda one: float(str(one.value)))
        lowest = Measurement(metric, worst.value, worst.unit)
        what = f"{_TITLES[metric]}: the lowest of {len(judged)}, {worst.device}'s,"
        findings.append(by_threshold(ID, what, lowest, limit, action="none"))
    return findings


def _judge_agfhc(values: Mapping[tuple[str, str], Any]) -> Iterator[Finding]:
    """Judge AGFHC's last result; one from before the last boot may concern parts replaced since."""
    result, when = values.get(("agfhc", "node")), values.get(("agfhc_when", "node"))
    if result is None:
        return
    message = f"AGFHC's last result ({when}): {result}"
    if result == "PASS":
        yield Finding(ID, Verdict.PASS, "node", message, "agfhc", result)
    elif result == "never run":
        yield Finding(ID, Verdict.SKIP, "node", "AGFHC is installed and has no result", "agfhc")
    else:
        certain = when == "since boot" and values["agfhc_failed", "node"]
        verdict = Verdict.FAIL if certain else Verdict.WARN
        yield Finding(ID, verdict, "node", message, "agfhc", result, action="investigate")
