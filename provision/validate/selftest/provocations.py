"""Harmless conditions of a real machine that the checks must name, each created, verified and ended."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from provision.errors import GpuprovError
from provision.validate.selftest import foreign
from provision.validate.selftest.foreign import Foreign
from provision.validate.selftest.measure import Bench
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, PROVEN, Provoked

PLACE = "provocations"
_BURN = 30  # seconds; enough for a steady rate
_CUT = 2.0  # seconds; a deadline that is too short on purpose
_SHOWN = 3  # number of quoted findings
_PID = re.compile(r"\(pid (\d+), (\d+) MiB\)")
_PEERS = 4  # GPUs; provision.checks.judge.below_peers needs three peers to single out a slow one
_NOWHERE = "/nonexistent/nvbandwidth"


class NotPossibleError(GpuprovError):
    """The condition cannot be created on this machine."""


@dataclass(frozen=True)
class Condition:
    """One condition in the report's words; `make` creates it and returns (named, the quoted findings)."""

    name: str
    done: str
    expected: str
    make: Callable[[Bench, int], tuple[bool, str]]
    needs: tuple[str, ...] = ()


def all_of() -> Iterator[Condition]:
    """Yield the conditions in the order they are created."""
    yield Condition(
        "a foreign process on a GPU",
        "another program opens gpu{gpu}, and gpu_inventory runs",
        "the process, by its PID, on gpu{gpu} and on no other GPU",
        _process,
    )
    yield Condition(
        "memory taken by another program",
        "another program takes memory of gpu{gpu}, and gpu_inventory runs",
        "at least as many MiB as were taken, on gpu{gpu}",
        _memory,
    )
    yield Condition(
        "a competing load slows one GPU",
        "a second gpu_burn works on gpu{gpu} while the check gpu_burn runs on all",
        "gpu{gpu} as slow or in trouble, and no other GPU",
        _competition,
        ("gpu_burn",),
    )
    yield Condition(
        "a tool that is missing",
        f"validation_tools_nvbandwidth_path names {_NOWHERE}, and memory_bandwidth runs",
        "`error`, with the path of the program that is not installed",
        _missing_tool,
        ("nvidia-smi",),
    )
    yield Condition(
        "a deadline that is too short",
        f"gpu_burn is to burn for 10 minutes with a deadline of {_CUT:g} s",
        f"`error`, with the program and the {_CUT:g} s",
        _short_deadline,
        ("gpu_burn",),
    )


def provoke(bench: Bench, condition: Condition, gpu: int) -> Provoked:
    """Create one condition, which is over when this returns or raises."""
    began = time.monotonic()
    words = (condition.name, condition.done.format(gpu=gpu), condition.expected.format(gpu=gpu))
    if lacking := [bench.tools[name] for name in condition.needs if not bench.tools[name].path]:
        return Provoked(*words, NOT_POSSIBLE, why=f"{lacking[0].name} is not installed: {lacking[0].how}")
    try:
        named, text = condition.make(bench, gpu)
    except NotPossibleError as error:
        return Provoked(*words, NOT_POSSIBLE, why=error.what)
    except GpuprovError as error:  # the hardware allows the condition, but creating it failed
        return Provoked(*words, NOT_PROVEN, why="; ".join(filter(None, (error.what, error.fix))))
    why = "" if named else "the check did not name it"
    seconds = round(time.monotonic() - began, 1)
    return Provoked(*words, PROVEN if named else NOT_PROVEN, named=text, why=why, seconds=seconds)


def quoted(findings: Iterable[Finding]) -> str:
    """Join findings as the report quotes them."""
    lines = [f"{one.verdict.value} {one.check} {one.device}: {one.message}" for one in findings]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more if lines else "nothing"


def _run(bench: Bench, check: str, name: str, **options: int) -> CheckResult:
    _, result = bench.run(check, bench.commands(check, **options), f"{PLACE}/{name}")
    return result


def _process(bench: Bench, gpu: int) -> tuple[bool, str]:
    with _held(bench, gpu) as other:
        findings, own = in_use(bench, "foreign_process"), other.pids
    pids = [int(pid) for one in findings for pid, _ in _PID.findall(str(one.value))]
    right = {one.device for one in findings} == {f"gpu{gpu}"}
    return right and bool(set(pids) & own), _of(other, findings)


def _memory(bench: Bench, gpu: int) -> tuple[bool, str]:
    with _held(bench, gpu) as other:
        findings = in_use(bench, "memory_taken")
    taken = sum(
        int(mib) for one in findings if one.device == f"gpu{gpu}" for _, mib in _PID.findall(str(one.value))
    )
    return taken >= other.mib > 0, _of(other, findings)


def _held(bench: Bench, gpu: int) -> AbstractContextManager[Foreign]:
    return foreign.memory(gpu, bench.tools["gpu_burn"], _burn_folder(bench))


def _of(other: Foreign, found: list[Finding]) -> str:
    return f"{quoted(found)} [the program was {other.what}]"


def in_use(bench: Bench, name: str) -> list[Finding]:
    """Return gpu_inventory's findings about programs on GPUs, run for the condition of this name."""
    return [one for one in _run(bench, "gpu_inventory", name).wrong if one.metric == "processes"]


def _competition(bench: Bench, gpu: int) -> tuple[bool, str]:
    refuse_incomparable(bench, gpu)
    with foreign.load(gpu, bench.tools["gpu_burn"], _burn_folder(bench)):
        return slow(burned(bench, "competing_load"), gpu)


def burned(bench: Bench, name: str) -> CheckResult:
    """Run gpu_burn for the condition of this name."""
    seconds = min(int(bench.options["burn_seconds"]), _BURN)
    return _run(bench, "gpu_burn", name, burn_seconds=seconds)


def refuse_incomparable(bench: Bench, gpu: int) -> None:
    """Raise if a burn could not show that this GPU, the last one, is slowed on purpose."""
    if gpu + 1 < _PEERS and "gpu_burn.rate" not in bench.node.limits():
        raise NotPossibleError(f"gpu_burn compares a GPU with its peers: that takes {_PEERS} GPUs")
    if f"gpu{gpu}" in bench.accused:
        raise GpuprovError(f"the check gpu_burn reports a fault of gpu{gpu} as it is")


def slow(result: CheckResult, gpu: int) -> tuple[bool, str]:
    """Return whether a burn accuses this GPU alone, and the quoted findings."""
    accused = [one for one in result.wrong if one.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.ERROR)]
    devices = {one.device for one in accused if one.device.startswith("gpu")}
    return devices == {f"gpu{gpu}"}, quoted(accused)


def _missing_tool(bench: Bench, gpu: int) -> tuple[bool, str]:  # noqa: ARG001 - a condition of the machine
    without = bench.with_variables(validation_tools_nvbandwidth_path=_NOWHERE)
    result = _run(without, "memory_bandwidth", "missing_tool")
    if result.verdict is Verdict.SKIP:  # with MIG on, before the tool is needed
        raise NotPossibleError(
            f"memory_bandwidth measures nothing on this machine: {result.findings[0].message}"
        )
    named = any(f"{_NOWHERE} is not installed" in one.message for one in result.wrong)
    return named and result.verdict is Verdict.ERROR, quoted(result.wrong)


def _short_deadline(bench: Bench, gpu: int) -> tuple[bool, str]:  # noqa: ARG001 - a condition of the machine
    commands = [replace(one, deadline=_CUT) for one in bench.commands("gpu_burn", burn_seconds=600)]
    _, result = bench.run("gpu_burn", commands, f"{PLACE}/short_deadline")
    expected = f"did not end within {_CUT:.0f} s"
    return result.verdict is Verdict.ERROR and any(expected in one.message for one in result.wrong), quoted(
        result.wrong
    )


def _burn_folder(bench: Bench) -> str:
    return str(bench.node.variables.get("validation_tools_gpu_burn_dir", "/usr/share/gpu-burn"))
