"""What provision/node/ddp_scaling.py printed → its numbers, or ParseError with what was not understood."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.check import Output, last_words
from provision.errors import ParseError

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

_COMMON = ("overlapped", "ddp")  # where all ranks end a step together


@dataclass(frozen=True)
class Run:
    """One run of the program. `absent`: why there was nothing to run; then there are no phases."""

    absent: str = ""
    torch: str = ""
    nccl: str = ""
    phases: Phases = field(default_factory=dict)


def read(output: Output, ranks: int) -> Run:
    """The output of a program that came to its end. Raises ParseError on anything not recognised."""
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
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ParseError(
            f"torch printed {line[:100]!r} instead of a result; its last words: {last_words(output)}",
            "run that Python by hand: it prints something of its own",
        )
    return found


def _refuse_errors(lines: Sequence[Mapping[str, Any]]) -> None:
    """What the ranks themselves said went wrong: one sentence, naming the GPU where it was one alone."""
    for line in lines:
        errors = line.get("errors")
        if errors is None:
            continue
        if not isinstance(errors, dict) or not errors:
            raise ParseError("torch: its errors were not understood", "run the check again")
        rank, said = next(iter(errors.items()))
        who = f"gpu{rank}" if len(errors) == 1 else f"{len(errors)} ranks, gpu{rank} first"
        raise ParseError(
            f"training failed on {who}: {said}"[:300], "look at the gpu_inventory check and the kernel log"
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
    """Phase → name → a value of each rank. Raises ParseError unless all are there, in order and sound."""
    names = [str(line.get("phase", "end" if line == {"end": "complete"} else "?")) for line in lines]
    if names != [*_PHASES, "end"]:
        raise ParseError(
            f"torch reported {', '.join(names)[:100] or 'no phase'}, not {', '.join(_PHASES)} and its end",
            "run the check again",
        )
    phases = {str(line["phase"]): line for line in lines[:-1]}
    for phase, wanted in _PHASES.items():
        line = phases[phase]
        if line.keys() != {"phase", "steps", *wanted} or not all(
            _numbers(line[name], ranks) for name in ("steps", *wanted)
        ):
            raise ParseError(f"torch: its line on {phase} was not understood", "run the check again")
        if "compute_ms" in wanted and any(
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
    """Whether these are `count` positive numbers."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and 0 < value < 1e9 for value in values)
    )
