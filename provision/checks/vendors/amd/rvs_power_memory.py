"""RVS's modules iet and mem: the power a GPU reaches, and patterns written to its memory (pure).

Pitfalls of mem: its PASS lines name no GPU, so each GPU gets a separate action; a failing test prints no PASS
and nothing in its place; test 1 prints PASS in any case, so errors are counted by the lines of level info. It
tests 128 MiB of each GPU: above 4 GiB its size overflows (rvs_memworker.cpp, alloc_size).

    [RESULT] [1102597.333747] [gpuprov-iet] [GPU:: 28851] Power(W) 127.000000
    [RESULT] [214776.112738] [gpuprov-mem-28851] mem Test 2: Each Memory location is filled ...
    [RESULT] [214776.134798] [gpuprov-mem-28851] mem Test 2 : PASS
    [INFO  ] [214776.134798] [gpuprov-mem-28851] mem Number of errors :3
    [RESULT] [214808.291036] [gpuprov-mem-28851] mem Test 11: elapsedtime = 6390.4 bandwidth = 2003.017090GB/s
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.kernel import kernel_incidents
from provision.checks.thresholds import limits
from provision.checks.vendors.amd import devices
from provision.checks.vendors.amd.gpu_burn import numbers
from provision.errors import ParseError

_GPUS, _CONFIG, _RUN = "rvs_gpus", "rvs_config", "rvs"
_FILE = "/run/gpuprov-amd_acceptance.conf"
_SECONDS = 60

_KEPT = ("Power(W)", "mem Test", "mem  Test", "Number of errors", "[ERROR")

_POWER = re.compile(r"\[gpuprov-iet\] \[GPU:: {1,5}(\d{1,10})\] Power\(W\) (\d{1,6}(?:\.\d{1,9})?)\s*$")
_TEST = re.compile(r"\[gpuprov-mem-(\d{1,10})\] mem {1,2}Test (\d{1,2})(?: ?: ?| )(PASS|)")
_ERRORS = re.compile(r"\[gpuprov-mem-(\d{1,10})\] mem Number of errors :(\d{1,12})\s*$")
_RATE = re.compile(
    r"\[gpuprov-mem-(\d{1,10})\] mem Test 11: elapsed.{1,40} bandwidth = (\d{1,9}\.\d{1,9})GB/s"
)
_LAST = 11


def commands(node: CheckNode) -> Sequence[Command]:
    program = str(node.variables.get("amd_validation_tools_rvs_path", f"{devices.tools(node)}/rvs"))
    data, sku = limits("amd_acceptance"), str(node.sku)
    watts = limits(f"skus/{sku}")["power_w"] if node.sku else 1
    sizes = data["size"]
    work = data["product"].format(sizes.get(sku, sizes["usual"]))
    iet = data["iet"].format(milliseconds=1000 * _SECONDS, watts=watts)
    more = data["by_bandwidth"].get(sku)
    iet += work if more is None else data["bandwidth"] + more
    deadline = 180.0 + 90.0 * node.gpu_count
    return [
        Command(_GPUS, (program, "-g"), 60.0),
        Command(_CONFIG, ("/bin/sh", "-c", data["write"], "write", program, _FILE, iet, data["mem"]), 60.0),
        Command(_RUN, (program, "-c", _FILE, "-d", "3"), deadline, load=_SECONDS, keep=_KEPT),
    ]


@dataclass
class _Gpu:
    powers: list[float] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    errors: int = 0
    rate: float | None = None


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return per GPU `power` (highest, W), `memory_errors`, `memory_stress` (GB/s).

    Raises ParseError, also if a GPU has no complete result."""
    listed, _ = numbers(completed(outputs, _GPUS), kernel_incidents.devices(node))
    output = completed(outputs, _RUN)
    if output.truncated:
        raise ParseError("rvs: the output was cut at its size limit", "run the check again")
    gpus = {number: _Gpu() for number in listed}
    for line in output.stdout.splitlines():
        _replay(line, gpus)
    if cut := [listed[number] for number, one in gpus.items() if _LAST not in one.begun or not one.powers]:
        missing = ", ".join(sorted(cut))
        raise ParseError(
            f"rvs gives no whole result of {missing}: {last_words(output)}", "look at the kernel log"
        )
    return [found for number, one in gpus.items() for found in _measured(listed[number], one)]


def _replay(line: str, gpus: Mapping[str, _Gpu]) -> None:
    """Apply one line; lines of RVS itself and of other levels are ignored."""
    hit = next((match for one in (_POWER, _ERRORS, _RATE, _TEST) if (match := one.search(line))), None)
    if hit is None or (gpu := gpus.get(hit[1])) is None:
        return
    if hit.re is _POWER:
        gpu.powers.append(float(hit[2]))
    elif hit.re is _ERRORS:
        gpu.errors += int(hit[2])
    elif hit.re is _RATE:
        gpu.rate = float(hit[2])
    else:
        (gpu.passed if hit[3] else gpu.begun).add(int(hit[2]))


def _measured(device: str, gpu: _Gpu) -> Iterator[Measurement]:
    yield Measurement("power", max(gpu.powers), "W", device)
    yield Measurement("memory_errors", max(gpu.errors, len(gpu.begun - gpu.passed)), "errors", device)
    if gpu.rate is not None:
        yield Measurement("memory_stress", gpu.rate, "GB/s", device)
