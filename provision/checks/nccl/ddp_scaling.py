"""A training step on each GPU alone, on all, and on all while they add up their gradients (PyTorch's DDP).

It finds the GPU that every other test acquits: fast by itself, and slow while it computes and communicates at
once, as all training does. Run only where a Python with torch is; nothing installs one.

All GPUs end a common step together. So the straggler is told by when each had computed its own gradients,
which waits for nobody. What runs on the node, and what it prints: provision/node/ddp_scaling.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output, completed
from provision.checks.gpu import mig_mode
from provision.checks.judge import Finding, Verdict, below_peers, by_threshold, unmeasured
from provision.checks.nccl import ddp_output
from provision.checks.thresholds import Threshold
from provision.errors import ParseError
from provision.paths import NODE

SUMMARY = "training on one GPU and on all with PyTorch: a GPU slow only while it computes and communicates"
NEEDS: tuple[str, ...] = ("python3 with torch", "nvidia-smi")

ID = "ddp_scaling"

_SECONDS = 3  # of each phase; the program's own default

# A synchronous job runs at the speed of its slowest GPU (see gpu_burn). SuperBench's matmul with all-reduce
# overlap repeats within 2.12 % (97.88 %, ATC'24): 10 % is five times that.
PEER_WARN = 0.10
PEER_FAIL = 0.20


@cache
def _program() -> str:
    """The text that is run on the node."""
    return (NODE / "ddp_scaling.py").read_text(encoding="utf-8")


def _python(node: CheckNode) -> str:
    """The Python that was named; empty: none was. Raises ParseError on what is no absolute path."""
    python = node.variables.get("validation_tools_torch_python") or ""
    if not isinstance(python, str) or (python and not python.startswith("/")):
        raise ParseError(
            f"validation_tools_torch_python is {python!r}", "give the absolute path of a Python with torch"
        )
    return python


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    try:
        python = _python(node) or "python3"
    except ParseError:
        return []  # `parse` says so
    if node.gpu_count < 2:
        return []
    argv = (python, "-I", "-c", _program(), "--ranks", str(node.gpu_count))
    # Four phases and a third of one for each GPU; loading torch and joining the ranks takes as long again.
    load = _SECONDS * (4 + node.gpu_count / 3)
    # CUDA numbers GPUs by speed unless told otherwise; gpu3 is to be nvidia-smi's GPU 3 everywhere.
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return [mig_mode.command(), Command("torch", argv, load + 240.0, env=env, load=load)]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Of each GPU in steps/s: `alone`, and how fast it computes its gradients, `compute` without and
    `overlapped` with communication; what it `kept` of the former in %. Of the node: the median of that,
    `step` in ms, `efficiency` and `series_share` in %.

    Without torch only `absent`, with a partitioned GPU only `mig`, with one GPU nothing. Raises ParseError.
    """
    named = _python(node)
    if node.gpu_count < 2:
        return []
    if partitioned := mig_mode.measure(node, outputs):
        return partitioned
    output = outputs.get("torch")
    if output is not None and output.not_started and named:
        raise ParseError(
            f"validation_tools_torch_python did not start: {output.not_started}", "name a Python with torch"
        )
    output = completed(outputs, "torch")
    run = ddp_output.read(output, node.gpu_count)
    if run.absent:
        return [Measurement("absent", run.absent, "")]
    return [
        Measurement("torch_version", run.torch, ""),
        Measurement("nccl_version", run.nccl, ""),
        *_measured(run.phases),
    ]


def _measured(phases: ddp_output.Phases) -> list[Measurement]:
    found = []
    for metric, phase, name in (
        ("alone", "alone", "step_ms"),
        ("compute", "together", "compute_ms"),
        ("overlapped", "overlapped", "compute_ms"),
    ):
        for index, milliseconds in enumerate(phases[phase][name]):
            found.append(Measurement(metric, round(1000 / milliseconds, 3), "steps/s", f"gpu{index}"))
    shares = [
        100 * without / beside
        for without, beside in zip(
            phases["together"]["compute_ms"], phases["overlapped"]["compute_ms"], strict=True
        )
    ]
    found += [Measurement("kept", round(share, 1), "%", f"gpu{index}") for index, share in enumerate(shares)]
    step = statistics.median(phases["ddp"]["step_ms"])
    # One after the other: the slowest GPU computes, then all add up. Beyond 100 % overlapping is a loss.
    series = max(phases["together"]["step_ms"]) + statistics.median(phases["all_reduce"]["step_ms"])
    alone = statistics.median(phases["alone"]["step_ms"])
    return [
        *found,
        Measurement("kept", round(statistics.median(shares), 1), "%"),
        Measurement("step", round(step, 3), "ms"),
        Measurement("series_share", round(100 * step / series, 1), "%"),
        # rate(all) / (n * rate(1)), each GPU doing as much as the one did
        Measurement("efficiency", round(100 * alone / step, 1), "%"),
    ]


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    """A GPU behind its peers while it communicates; and a node whose GPUs all keep too little."""
    partitioned = [m.device for m in measurements if m.metric == "mig"]
    if partitioned:
        reason = f"MIG is on ({', '.join(partitioned)}): torch sees slices in the place of GPUs"
        return [Finding(ID, Verdict.SKIP, "node", reason, "kept")]
    if node.gpu_count < 2:
        reason = "one GPU: there is nothing to scale to"
        return [Finding(ID, Verdict.SKIP, "node", reason, "kept")]
    values = {m.metric: m for m in measurements if m.device == "node"}
    if "absent" in values:
        return [_absent(node, str(values["absent"].value))]
    rates: dict[str, dict[str, float]] = {}
    for m in measurements:
        if m.device != "node":
            rates.setdefault(m.metric, {})[m.device] = float(m.value)
    stragglers = _stragglers(rates["overlapped"], rates["compute"])
    return [*stragglers, *_judge_kept(rates["kept"], values, thresholds, {f.device for f in stragglers})]


def _judge_kept(
    kept: Mapping[str, float],
    values: Mapping[str, Measurement],
    thresholds: Mapping[str, Threshold],
    named: Collection[str],
) -> list[Finding]:
    """What the GPUs keep of their rate: of the node their median, and those of which there are too few to
    compare.
    """
    limit = thresholds.get(f"{ID}.kept")
    what = (
        f"{len(kept)} GPUs train at {values['efficiency'].value:g} % of {len(kept)} times one GPU's rate; "
        "the share of their computing rate that they keep while gradients are added up (median)"
    )
    whole = by_threshold(ID, what, values["kept"], limit, action="investigate")
    if whole.verdict is not Verdict.PASS or limit is None:
        return [whole]
    low = [device for device, share in kept.items() if share < limit.limit and device not in named]
    what = "the share of its computing rate that it keeps while gradients are added up"
    each = [Measurement("kept", kept[device], "%", device) for device in low]
    return [whole, *(by_threshold(ID, what, one, limit, action="investigate") for one in each)]


def _absent(node: CheckNode, why: str) -> Finding:
    """Torch that is nowhere does not apply; torch that was promised and is not there is a mistake."""
    if _python(node):
        message = f"validation_tools_torch_python: {why}"
        return unmeasured(ID, message, action="fix configuration")
    reason = f"{why}; name a Python that has it in validation_tools_torch_python"
    return Finding(ID, Verdict.SKIP, "node", reason, "kept")


def _stragglers(overlapped: Mapping[str, float], compute: Mapping[str, float]) -> list[Finding]:
    findings = []
    slow_anyway = below_peers(compute, PEER_WARN)
    for device, (middle, shortfall) in below_peers(overlapped, PEER_WARN).items():
        also = (
            f"without communication it is {slow_anyway[device][1]:.0%} below them as well"
            if device in slow_anyway
            else f"without communication it keeps up ({compute[device]:.4g} steps/s)"
        )
        findings.append(
            Finding(
                ID,
                Verdict.FAIL if shortfall > PEER_FAIL else Verdict.WARN,
                device,
                f"computes {overlapped[device]:.4g} training steps/s while gradients are added up, "
                f"{shortfall:.0%} below the {middle:.4g} of its peers; {also}",
                "overlapped",
                overlapped[device],
                "steps/s",
                f"≥ {(1 - PEER_WARN) * middle:.4g} steps/s",
                "median of the other GPUs of the node",
                "investigate",
            )
        )
    return findings
