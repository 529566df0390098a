"""Selftest of AMD GPUs: conditions that checks must name, and lowering and restoring the power limit.

provocations.py and changes.py hold the parts shared by all vendors. amd-smi numbers GPUs in its own order, so
they are matched by PCI address. The arguments for a limit depend on the release: `--power-cap 600` until 7.1,
`--power-cap ppt0 600` in 7.2, `--power-cap 600 ppt0` later. amd-smi always exits 0, so the limit is read
back.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from provision.checks.check import Output
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.vendors.amd import devices, gpu_burn, sensors, smi
from provision.errors import GpuprovError
from provision.validate.selftest import changes, foreign, provocations
from provision.validate.selftest.changes import Change
from provision.validate.selftest.foreign import Foreign
from provision.validate.selftest.machine import SelftestError
from provision.validate.selftest.measure import Bench
from provision.validate.selftest.provocations import Condition, NotPossibleError, quoted

_SECONDS = 60.0  # time limit of `rvs -g`
_MIB = 2048  # allocated by the stand-in for a foreign program
_NOWHERE = "/nonexistent/TransferBench"


class Smi(changes.Smi):
    """amd-smi of the machine under selftest."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """The GPU index used in checks → amd-smi's number. Raises GpuprovError."""
        gpus = kernel_incidents.devices(self.bench.node.check_node)
        by_device = sensors.by_device(self._ask("static", "--bus"), gpus)
        return {int(device[3:]): number for number, device in by_device.items()}

    def read(self, gpu: int) -> dict[str, str]:
        limit = self._ask("static", "-g", str(self._number(gpu)), "--limit")[0]
        limits = {one.metric: one.value for one in sensors.of_limits(limit, f"gpu{gpu}")}
        names = {"power.limit": "power_limit", "power.max_limit": "power_default"}
        shown = {name: f"{limits[metric]:g}" if metric in limits else "N/A" for name, metric in names.items()}
        return {**shown, "named": "yes" if isinstance(smi.within(limit, "limit", "ppt0"), dict) else "no"}

    def planned(self, now: Mapping[str, str]) -> Iterator[Change | tuple[str, str]]:
        limit, most = now["power.limit"], now["power.max_limit"]
        if "N/A" in (limit, most):
            yield "power limit", f"it is {limit}, the highest allowed {most}"
            return
        lower = f"{math.ceil(0.8 * float(limit))}"
        name = ("ppt0",) if now["named"] == "yes" else ()
        there, back = (("--power-cap", *name, watts) for watts in (lower, limit))
        declared = {"amd_gpu_settings_power_limit": float(limit)}
        yield Change("power limit", "power.limit", lower, there, back, declared, "power_limit")

    def line(self, gpu: int, words: Sequence[str]) -> str:
        return f"amd-smi set -g {self._number(gpu)} {' '.join(words)}"

    def call(self, gpu: int, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Set a limit with one release's arguments, or with those of later ones if that had no effect."""
        option, *name, watts = words
        result = self._run("set", "-g", str(self._number(gpu)), *words)
        if name and self.read(gpu)["power.limit"] != watts:
            result = self._run("set", "-g", str(self._number(gpu)), option, watts, *name)
        return result

    def busy(self, gpu: int) -> bool:
        """Return whether the GPU is busy now. Raises GpuprovError."""
        gpus = {self._number(gpu): "it"}
        metric = self._ask("metric", "-g", str(self._number(gpu)), "--usage")
        return any(one.metric == "busy" and one.value for one in sensors.of_metric(metric, gpus))

    def _number(self, gpu: int) -> int:
        if gpu not in self.numbers:
            raise SelftestError(f"amd-smi does not list gpu{gpu}", "look at gpu_inventory")
        return self.numbers[gpu]

    def _ask(self, *words: str) -> list[smi.Entry]:
        """Return the entries of amd-smi's JSON document. Raises ParseError, SelftestError."""
        argv = ("amd-smi", *words, "--json")
        done = self._run(*argv[1:])
        return smi.entries(Output("amd_smi", argv, done.returncode, done.stdout, "", 0.0))

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return changes.told("amd-smi", self.bench.tools["amd-smi"].path, *words)


def last_with_limit(bench: Bench) -> int:
    """Return the last GPU that reports a power limit; in a two-GPU module the second has none."""
    tool, count = Smi(bench), bench.node.check_node.gpu_count
    return next((gpu for gpu in reversed(range(count)) if tool.read(gpu)["power.limit"] != "N/A"), count - 1)


# --- conditions


def conditions() -> Iterator[Condition]:
    """Yield the conditions in the order they are created."""
    shared = {one.name: one for one in provocations.all_of()}
    yield replace(shared["a foreign process on a GPU"], make=_process)
    yield Condition(
        "a competing load slows one GPU",
        "a second rvs works on gpu{gpu} while the check gpu_burn runs on all",
        "gpu{gpu} as slow or in trouble, and no other GPU",
        _competition,
        ("rvs",),
    )
    yield Condition(
        "a GPU that programs do not see",
        "ROCR_VISIBLE_DEVICES hides one GPU from TransferBench, and memory_bandwidth runs",
        "`error`, with the GPUs that TransferBench sees and how many the node has",
        _hidden,
        ("TransferBench",),
    )
    yield Condition(
        "a tool that is missing",
        f"amd_validation_tools_transferbench_path names {_NOWHERE}, and memory_bandwidth runs",
        "`error`, with the path of the program that is not installed",
        _missing_tool,
    )
    yield replace(shared["a deadline that is too short"], needs=("rvs",))


def _process(bench: Bench, gpu: int) -> tuple[bool, str]:
    program = Path(foreign.__file__).with_name("hold_memory.py")
    words = [_address(bench, gpu), str(_MIB), str(foreign.MOST)]
    argv = [sys.executable, "-I", "-S", str(program), *words]
    with foreign.held(argv, _MIB, "libamdhip64.so", _load(bench, gpu), "HIP") as other:
        findings, own = provocations.in_use(bench, "foreign_process"), other.pids
    named = {f"({pid})" for pid in own}
    right = {one.device for one in findings} == {f"gpu{gpu}"}
    seen = any(pid in str(one.value) for one in findings for pid in named)
    return right and seen, f"{quoted(findings)} [the program was {other.what}]"


def _competition(bench: Bench, gpu: int) -> tuple[bool, str]:
    provocations.refuse_incomparable(bench, gpu)
    with _load(bench, gpu):
        return provocations.slow(provocations.burned(bench, "competing_load"), gpu)


def _hidden(bench: Bench, gpu: int) -> tuple[bool, str]:
    commands = bench.commands("memory_bandwidth")
    if not commands or not gpu:
        raise NotPossibleError("memory_bandwidth measures nothing on this machine, or there is one GPU alone")
    shown = {"ROCR_VISIBLE_DEVICES": ",".join(map(str, range(gpu)))}
    hidden = [replace(one, env={**one.env, **shown}) for one in commands]
    _, result = bench.run("memory_bandwidth", hidden, f"{provocations.PLACE}/hidden_gpu")
    expected = f"and the node has {bench.node.check_node.gpu_count}"
    return _is_error(result.verdict, result.wrong, expected)


def _missing_tool(bench: Bench, gpu: int) -> tuple[bool, str]:  # noqa: ARG001 - a condition of the machine
    without = bench.with_variables(amd_validation_tools_transferbench_path=_NOWHERE)
    commands = without.commands("memory_bandwidth")
    _, result = without.run("memory_bandwidth", commands, f"{provocations.PLACE}/missing_tool")
    if result.verdict is Verdict.SKIP:  # with partitioned GPUs, before the tool is needed
        raise NotPossibleError(
            f"memory_bandwidth measures nothing on this machine: {result.findings[0].message}"
        )
    return _is_error(result.verdict, result.wrong, f"{_NOWHERE} is not installed")


def _is_error(verdict: Verdict, wrong: Sequence[Finding], said: str) -> tuple[bool, str]:
    return verdict is Verdict.ERROR and any(said in one.message for one in wrong), quoted(wrong)


def _address(bench: Bench, gpu: int) -> str:
    """Return the PCI address of a GPU, in the form HIP expects."""
    gpus = kernel_incidents.devices(bench.node.check_node)
    for entry in devices.entries(bench.node.check_node):
        address = str(entry["address"])
        if gpus.get(bus_address(address)) == f"gpu{gpu}":
            return address
    raise SelftestError(f"the PCI address of gpu{gpu} is not known", "look at gpu_inventory")


@contextlib.contextmanager
def _load(bench: Bench, gpu: int) -> Iterator[Foreign]:
    """Run rvs on this GPU alone, as the load of a foreign program."""
    rvs, what = bench.tools["rvs"], f"rvs on gpu{gpu} alone"
    if not rvs.path:
        raise foreign.ForeignError("no rvs to load the GPU with", rvs.how)
    with tempfile.NamedTemporaryFile("w", prefix="gpuprov-selftest-", suffix=".conf") as config:
        config.write(gpu_burn.on_one(_rvs_number(rvs.path, bench, gpu), foreign.MOST))
        config.flush()
        argv = [rvs.path, "-c", config.name]
        with foreign.at_work(argv, "/", what, lambda: _seen(Smi(bench), gpu), "amd-smi") as other:
            yield other


def _rvs_number(rvs: str, bench: Bench, gpu: int) -> str:
    """Return rvs's number for this GPU. Raises SelftestError."""
    try:
        done = subprocess.run([rvs, "-g"], capture_output=True, text=True, timeout=_SECONDS, check=False)
        output = Output("rvs_gpus", (rvs, "-g"), done.returncode, done.stdout, done.stderr, 0.0)
        numbers, _ = gpu_burn.numbers(output, kernel_incidents.devices(bench.node.check_node))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SelftestError(f"rvs did not answer: {error}", "look at dmesg") from error
    return next((number for number, device in numbers.items() if device == f"gpu{gpu}"), "")


def _seen(tool: Smi, gpu: int) -> bool:
    """Return whether amd-smi shows the GPU as busy."""
    try:
        return tool.busy(gpu)
    except GpuprovError:
        return False
