"""GPU settings changed on request, verified by the check that judges them, and restored."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.health import CheckResult
from provision.errors import GpuprovError
from provision.validate.selftest import foreign, signals
from provision.validate.selftest.machine import SelftestError
from provision.validate.selftest.measure import Bench
from provision.validate.selftest.provocations import NotPossibleError, quoted, refuse_incomparable, slow
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, PROVEN, Provoked

PLACE = "changes"
_FIELDS = ("power.limit", "power.min_limit", "persistence_mode", "compute_mode", "clocks.max.sm", "clocks.sm")
_COMPUTE = {"Default": "DEFAULT", "Exclusive_Process": "EXCLUSIVE_PROCESS", "Prohibited": "PROHIBITED"}
_SECONDS = 60.0  # time limit of one call of a driver's program
_BURN = 30
_RISES = 20.0  # seconds for a GPU under load to exceed the clock it was locked at


@dataclass(frozen=True)
class Change:
    """One setting of one GPU: arguments to change and restore it, and the declared old value."""

    name: str
    field: str  # one of _FIELDS; empty if it cannot be read back
    value: str  # the new value, as read back
    there: Sequence[str]
    back: Sequence[str]
    declared: Mapping[str, Any]
    metric: str = ""


class Smi:
    """Reader and setter of GPU settings through nvidia-smi; amd.py has AMD's."""

    def read(self, gpu: int) -> dict[str, str]:
        """Return the current settings of one GPU. Raises SelftestError."""
        return read(gpu)

    def planned(self, now: Mapping[str, str]) -> Iterator[Change | tuple[str, str]]:
        """Yield the changes this GPU allows, and (name, reason) for each it does not allow."""
        return planned(now)

    def line(self, gpu: int, words: Sequence[str]) -> str:
        """Return the command line as a person types it."""
        return f"nvidia-smi -i {gpu} {' '.join(words)}"

    def call(self, gpu: int, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Call the program with these arguments. Raises SelftestError if it does not answer."""
        return _smi(gpu, *words)


NVIDIA = Smi()


def read(gpu: int) -> dict[str, str]:
    """Return the current settings of one GPU. Raises SelftestError."""
    done = _smi(gpu, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(_FIELDS):
        raise SelftestError(f"the settings of gpu{gpu} could not be read: {done.stdout.strip()[:200]}")
    return dict(zip(_FIELDS, values, strict=True))


def planned(now: Mapping[str, str]) -> Iterator[Change | tuple[str, str]]:
    """Yield the changes this GPU allows, and (name, reason) for each it does not allow."""
    yield _power(now)
    clock = _number(now["clocks.max.sm"])
    if clock is None or _number(now["clocks.sm"]) is None:
        yield "clock lock", f"its clock is {now['clocks.sm']}, the highest {now['clocks.max.sm']}"
    else:
        half = str(int(clock) // 2)
        yield Change("clock lock", "", half, ("-lgc", f"{half},{half}"), ("-rgc",), {})
    yield _persistence(now)
    mode = now["compute_mode"]
    if mode not in _COMPUTE:
        yield "compute mode", f"it is {mode}"
        return
    other = "Default" if mode != "Default" else "Exclusive_Process"
    declared = {"gpu_settings_compute_mode": mode.lower()}
    there, back = ("-c", _COMPUTE[other]), ("-c", _COMPUTE[mode])
    yield Change("compute mode", "compute_mode", other, there, back, declared, "compute_mode")


def _power(now: Mapping[str, str]) -> Change | tuple[str, str]:
    limit, least = _number(now["power.limit"]), _number(now["power.min_limit"])
    if limit is None or least is None:
        return (
            "power limit",
            f"it is {now['power.limit']}, the lowest allowed {now['power.min_limit']}",
        )
    lower = math.ceil(max(least, 0.8 * limit))  # whole watts: a driver may reject fractions
    if lower >= 0.98 * limit:
        return "power limit", f"it is {limit:g} W already, the lowest allowed is {least:g} W"
    there, back = ("-pl", f"{lower}"), ("-pl", f"{limit:g}")
    declared = {"gpu_settings_power_limit": limit}
    return Change("power limit", "power.limit", f"{lower:.2f}", there, back, declared, "power_limit")


def _persistence(now: Mapping[str, str]) -> Change | tuple[str, str]:
    name, mode = "persistence mode", now["persistence_mode"]
    if mode not in ("Enabled", "Disabled"):
        return name, f"it is {mode}"
    kept = mode == "Enabled"
    there, back = ("-pm", "0" if kept else "1"), ("-pm", "1" if kept else "0")
    other, declared = "Disabled" if kept else "Enabled", {"nvidia_driver_persistence": kept}
    return Change(name, "persistence_mode", other, there, back, declared, "persistence")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def change(
    bench: Bench, one: Change, gpu: int, leftover: Callable[[str], None], smi: Smi = NVIDIA
) -> Provoked:
    """Make a change, verify that the check names it, restore it; `leftover` receives what stays changed."""
    began, before = time.monotonic(), smi.read(gpu)
    words = (
        one.name,
        f"{smi.line(gpu, one.there)}, then {' '.join(one.back)}",
        f"gpu{gpu}, by {'gpu_inventory' if one.metric else 'gpu_burn'}",
    )
    if not one.metric and not (burn := bench.tools["gpu_burn"]).path:
        return Provoked(*words, NOT_POSSIBLE, why=f"gpu_burn is not installed: {burn.how}")
    try:
        if not one.metric:
            refuse_incomparable(bench, gpu)
    except NotPossibleError as error:
        return Provoked(*words, NOT_POSSIBLE, why=error.what)
    except GpuprovError as error:
        return Provoked(*words, NOT_PROVEN, why=error.what)
    refused = ""
    try:
        if refused := _refused(one, gpu, smi):
            return Provoked(*words, NOT_POSSIBLE, why=refused)
        named, text = _named(bench, one, gpu)
    finally:
        with signals.held_back():
            # A refused change of a setting that cannot be read back has changed nothing.
            trouble = "" if refused and not one.field else _put_back(bench, one, gpu, before, smi)
            left = [(one.name, trouble, one.back)] if trouble else []
            left += _forgotten(gpu, before) if one.field == "persistence_mode" else []
            for name, why_left, back in left:
                leftover(f"{name} of gpu{gpu}: {why_left}; run: {smi.line(gpu, back)}")
    why = "; ".join(why_left for _, why_left, _ in left) or ("" if named else "the check did not name it")
    state = NOT_PROVEN if why else PROVEN
    return Provoked(*words, state, named=text, why=why, seconds=round(time.monotonic() - began, 1))


def _refused(one: Change, gpu: int, smi: Smi) -> str:
    """Make the change; return why it failed, or ""."""
    tool, result = smi.line(gpu, ()).partition(" ")[0], smi.call(gpu, one.there)
    if result.returncode:
        return f"{tool} refused it: {result.stdout.strip()[:200]}"
    now = smi.read(gpu)[one.field] if one.field else one.value
    return "" if now == one.value else f"{tool} accepted it, but the GPU still reports {now}"


def _named(bench: Bench, one: Change, gpu: int) -> tuple[bool, str]:
    """Return whether the check that judges the setting names this GPU, and the quoted findings."""
    place = f"{PLACE}/{one.name.replace(' ', '_')}"
    if not one.metric:
        seconds = min(int(bench.options["burn_seconds"]), _BURN)
        return slow(bench.run("gpu_burn", bench.commands("gpu_burn", burn_seconds=seconds), place)[1], gpu)
    declared = bench.with_variables(**one.declared)
    result: CheckResult = declared.run("gpu_inventory", declared.commands("gpu_inventory"), place)[1]
    findings = [finding for finding in result.wrong if finding.metric == one.metric]
    return f"gpu{gpu}" in {finding.device for finding in findings}, quoted(findings)


def _put_back(bench: Bench, one: Change, gpu: int, before: Mapping[str, str], smi: Smi) -> str:
    """Restore the setting and read it back; return "" if it is as before, else the reason. Never raises."""
    try:
        result = smi.call(gpu, one.back)
        if one.field:
            now = smi.read(gpu)[one.field]
            return "" if now == before[one.field] else f"it is {now}, it was {before[one.field]}"
        if result.returncode:
            tool = smi.line(gpu, ()).partition(" ")[0]
            return f"{tool} refused to put it back: {result.stdout.strip()[:200]}"
        return _rises(bench, gpu, float(one.value))
    except GpuprovError as error:
        return f"the restored value could not be read: {error.what}"


def _forgotten(gpu: int, before: Mapping[str, str]) -> list[tuple[str, str, Sequence[str]]]:
    """Restore the power limit and compute mode, which an idle GPU loses without persistence mode.

    Returns (name, reason, nvidia-smi's arguments) for each setting that is still wrong."""
    settings: list[tuple[str, str, Sequence[str]]] = []
    if limit := _number(before["power.limit"]):
        settings.append(("power limit", "power.limit", ("-pl", f"{limit:g}")))
    if mode := _COMPUTE.get(before["compute_mode"]):
        settings.append(("compute mode", "compute_mode", ("-c", mode)))
    left = []
    for name, setting, back in settings:
        try:
            if read(gpu)[setting] != before[setting]:
                _smi(gpu, *back)
                if (now := read(gpu)[setting]) != before[setting]:
                    left.append((name, f"it is {now}, it was {before[setting]}", back))
        except GpuprovError as error:
            left.append((name, f"the restored value could not be read: {error.what}", back))
    return left


def _rises(bench: Bench, gpu: int, held: float) -> str:
    """Check that a clock lock is gone: under load a free GPU exceeds it; no query shows the lock."""
    folder = str(bench.node.variables.get("validation_tools_gpu_burn_dir", "/usr/share/gpu-burn"))
    until = time.monotonic() + _RISES
    with foreign.load(gpu, bench.tools["gpu_burn"], folder):
        while time.monotonic() < until:
            if (_number(read(gpu)["clocks.sm"]) or 0.0) > 1.1 * held:
                return ""
            time.sleep(0.5)
    return f"its clock stays at {held:g} MHz under load"


def _smi(gpu: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Call nvidia-smi for one GPU. Raises SelftestError if it does not answer."""
    return told("nvidia-smi", "nvidia-smi", "-i", str(gpu), *words)


def told(program: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Call a driver's program, named `program` in errors. Raises SelftestError if it does not answer."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C must not kill the program that restores a setting
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SelftestError(f"{program} did not answer: {error}", "look at dmesg") from error
