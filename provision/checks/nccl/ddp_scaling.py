"""Training steps on each GPU alone, on all, and on all while adding up gradients (PyTorch's DDP).

It finds GPUs that pass every other test: fast alone, but slow while they compute and communicate at once, as
all training does. It runs only if there is a Python with torch; gpuprov installs none.

All GPUs end a common step together. So a straggler is identified by the time at which it finished its own
gradients, which depends on no other GPU. provision/node/ddp_scaling.py runs on the node.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from provision import foreign_json
from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.gpu import nvidia_smi
from provision.checks.judge import PEERS, Finding, Verdict, below_peers, by_threshold, finding_on, unmeasured
from provision.checks.thresholds import Threshold
from provision.errors import ParseError
from provision.paths import NODE

SUMMARY = "training on one GPU and on all with PyTorch: a GPU slow only while it computes and communicates"
FINDS = (
    "training on one GPU and on all: a GPU that is slow only while it computes and communicates at once; "
    "skipped without a Python with torch"
)
NEEDS: tuple[str, ...] = ("python3 with torch", "nvidia-smi")

ID = "ddp_scaling"

_SECONDS = 3  # for each phase; the program's own default

# A synchronous job runs at the speed of its slowest GPU (see gpu_burn). SuperBench's matmul with all-reduce
# overlap repeats within 2.12 % (97.88 %, ATC'24): 10 % is five times that.
PEER_WARN = 0.10
PEER_FAIL = 0.20


@cache
def _program() -> str:
    """Return the program to run on the node."""
    return (NODE / "ddp_scaling.py").read_text(encoding="utf-8")


def _python(node: CheckNode) -> str:
    """Return the declared Python, or ""; raise ParseError if it is not an absolute path."""
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
        return []  # `parse` reports it
    if node.gpu_count < 2:
        return []
    argv = (python, "-I", "-c", _program(), "--ranks", str(node.gpu_count))
    # Four phases and a third of one for each GPU; loading torch and joining the ranks takes as long again.
    load = _SECONDS * (4 + node.gpu_count / 3)
    return [nvidia_smi.mig_command(), Command("torch", argv, load + 240.0, env=BUS_ORDER, load=load)]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse the rates of each GPU and the node's efficiency; raise ParseError.

    Per GPU in steps/s: `alone`, `compute` (gradients without communication), `overlapped` (with it); `kept`:
    the latter as a share of `compute` in %. Node: median of `kept`, `step` in ms, `efficiency` and
    `series_share` in %. Without torch only `absent`, with a partitioned GPU only `mig`, with one GPU nothing.
    """
    named = _python(node)
    if node.gpu_count < 2:
        return []
    if partitioned := nvidia_smi.partitioned(node, outputs):
        return partitioned
    output = outputs.get("torch")
    if output is not None and output.not_started and named:
        raise ParseError(
            f"validation_tools_torch_python did not start: {output.not_started}", "name a Python with torch"
        )
    output = completed(outputs, "torch")
    run = read(output, node.gpu_count)
    if run.absent:
        return [Measurement("absent", run.absent, "")]
    return [
        Measurement("torch_version", run.torch, ""),
        Measurement("nccl_version", run.nccl, ""),
        *_measured(run.phases),
    ]


def _measured(phases: Phases) -> list[Measurement]:
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
    # In series: the slowest GPU computes, then all add up. Beyond 100 % overlapping is a loss.
    series = max(phases["together"]["step_ms"]) + statistics.median(phases["all_reduce"]["step_ms"])
    alone = statistics.median(phases["alone"]["step_ms"])
    return [
        *found,
        Measurement("kept", round(statistics.median(shares), 1), "%"),
        Measurement("step", round(step, 3), "ms"),
        Measurement("series_share", round(100 * step / series, 1), "%"),
        # rate(all) / (n * rate(1)), each GPU doing as much as the single one did
        Measurement("efficiency", round(100 * alone / step, 1), "%"),
    ]


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    """Judge GPUs behind their peers while they communicate, and nodes on which all GPUs lose too much."""
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
    """Judge `kept` by its limit, as the node's median and for each GPU not reported yet."""
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
    """Skip without torch; report an error if a declared Python lacks it."""
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
        verdict = Verdict.FAIL if shortfall > PEER_FAIL else Verdict.WARN
        text = (
            f"computes {overlapped[device]:.4g} training steps/s while gradients are added up, "
            f"{shortfall:.0%} below the {middle:.4g} of its peers; {also}"
        )
        measured = Measurement("overlapped", overlapped[device], "steps/s", device)
        limit = f"≥ {(1 - PEER_WARN) * middle:.4g} steps/s"
        findings.append(finding_on(ID, verdict, measured, text, limit, PEERS, "investigate"))
    return findings


# --- parser of the output of provision/node/ddp_scaling.py; raises ParseError on unrecognised text


Phases = Mapping[str, Mapping[str, Sequence[float]]]  # phase → name → a value of each rank

_FORMAT = 1
_PHASES = {
    "alone": ("step_ms", "compute_ms"),
    "together": ("step_ms", "compute_ms"),
    "all_reduce": ("step_ms",),
    "overlapped": ("step_ms", "compute_ms"),
    "ddp": ("step_ms",),
}
_HEADER = {
    **{"ddp_scaling": int, "torch": str, "nccl": str, "backend": str, "ranks": int},
    **{"layers": int, "hidden": int, "rows": int, "gradient_bytes": int},
}

_COMMON = ("overlapped", "ddp")  # phases in which all ranks end a step together


@dataclass(frozen=True)
class Run:
    """One run of the program. `absent`: why it could not run; then there are no phases."""

    absent: str = ""
    torch: str = ""
    nccl: str = ""
    phases: Phases = field(default_factory=dict)


def read(output: Output, ranks: int) -> Run:
    """Parse the output of a program that finished; raise ParseError on anything unrecognised."""
    if output.truncated:
        raise ParseError("torch: the output was cut at its size limit", "run the check again")
    lines = [_object(line, output) for line in output.stdout.splitlines()]
    if not lines:
        raise ParseError(f"torch printed nothing: {last_words(output)}", "run the check again")
    if lines[0].keys() == {"ddp_scaling", "absent"} and lines[0]["ddp_scaling"] == _FORMAT and not lines[1:]:
        return Run(absent=str(lines[0]["absent"])[:200] or "no reason given")
    _refuse_errors(lines)
    header = _header(lines[0], ranks)
    phases = _phases(lines[1:], ranks)
    if output.rc != 0:
        raise ParseError(f"torch ended with status {output.rc}: {last_words(output)}", "run the check again")
    return Run("", header["torch"], header["nccl"], phases)


def _object(line: str, output: Output) -> dict[str, Any]:
    try:
        document = foreign_json.read(line)
    except foreign_json.JsonError:
        document = None
    if not isinstance(document, dict):
        raise ParseError(
            f"torch printed {line[:100]!r} instead of a result; its last words: {last_words(output)}",
            "run that Python by hand: it prints something of its own",
        )
    return document


def _refuse_errors(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise ParseError for errors reported by the ranks, naming the GPU if a single one failed."""
    for line in lines:
        errors = line.get("errors")
        if errors is None:
            continue
        if not isinstance(errors, dict) or not errors:
            raise ParseError("torch: its errors were not understood", "run the check again")
        rank, reason = next(iter(errors.items()))
        who = f"gpu{rank}" if len(errors) == 1 else f"{len(errors)} ranks, gpu{rank} first"
        raise ParseError(
            f"training failed on {who}: {reason}"[:300], "look at the gpu_inventory check and the kernel log"
        )


def _header(line: Mapping[str, Any], ranks: int) -> Mapping[str, Any]:
    if line.keys() != _HEADER.keys() or any(type(line[name]) is not kind for name, kind in _HEADER.items()):
        raise ParseError("torch: the first line of its output was not understood", "run the check again")
    if line["ddp_scaling"] != _FORMAT:
        raise ParseError(f"torch: output of format {line['ddp_scaling']}", "run the check again")
    if line["backend"] != "nccl":
        raise ParseError(f"torch ran on {line['backend']}, not on GPUs", "run the check again")
    if line["ranks"] != ranks:
        raise ParseError(
            f"torch ran on {line['ranks']} GPUs, the node has {ranks}",
            "CUDA does not see all GPUs: look at the gpu_inventory check",
        )
    return line


def _phases(lines: Sequence[Mapping[str, Any]], ranks: int) -> Phases:
    """Return phase → name → a value of each rank; raise ParseError unless all are in order and sound."""
    names = [str(line.get("phase", "end" if line == {"end": "complete"} else "?")) for line in lines]
    if names != [*_PHASES, "end"]:
        raise ParseError(
            f"torch reported {', '.join(names)[:100] or 'no phase'}, not {', '.join(_PHASES)} and its end",
            "run the check again",
        )
    phases = {str(line["phase"]): line for line in lines[:-1]}
    for phase, expected in _PHASES.items():
        line = phases[phase]
        if line.keys() != {"phase", "steps", *expected} or not all(
            _numbers(line[name], ranks) for name in ("steps", *expected)
        ):
            raise ParseError(f"torch: its line on {phase} was not understood", "run the check again")
        if "compute_ms" in expected and any(
            compute > step for compute, step in zip(line["compute_ms"], line["step_ms"], strict=True)
        ):
            raise ParseError(f"torch: a part of a step took longer than the step ({phase})", "run it again")
    if any(max(phases[name]["step_ms"]) > 1.25 * min(phases[name]["step_ms"]) for name in _COMMON):
        raise ParseError(
            "torch: the GPUs disagree on how long a common step took: they did not wait for each other",
            "look whether something else ran on the node, and run the check again",
        )
    return phases


def _numbers(values: Any, count: int) -> bool:
    """Return whether these are `count` positive numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and 0 < value < 1e9 for value in values)
    )
