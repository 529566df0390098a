"""TransferBench, AMD's program for copies: the identity of its GPUs, and its matrices (pure).

Its preset p2p copies from each CPU and GPU to each, one pair at a time or both directions at once, compares
the received data, and prints one matrix. Its preset a2a lets every GPU copy to every other over their links
at the same time: its line RTotal has each GPU's receive rate, then the sum (v1.52 to v1.67).

GPUs have HIP's numbers there, which follow neither the bus nor amd-smi: an MI350X has 75:00.0 as its first
and 05:00.0 as its second. So TransferBench's list of GPUs with PCI addresses is read in the same environment,
and GPUs keep gpuprov's names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from provision.checks.check import CheckNode, Command, Output, completed, last_words
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.vendors.amd.devices import tools
from provision.errors import ParseError
from provision.text import many

NEEDS = ("TransferBench",)
TOPOLOGY = "transferbench_topology"
_WRITE, _READ = "0", "1"  # USE_REMOTE_READ: the source's GPU copies, or the destination's

# A GPU or CPU; a number has at most three digits.
_GPU = re.compile(
    r"^ GPU (\d{2,3}) \|.{1,2000}?\| +([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]) *\|"
)
_BEGIN = re.compile(r"^(Uni|Bi)directional copy peak bandwidth GB/s \[(Local|Remote) read / \w+ write\]")
_HEADER = re.compile(r"^ *SRC(?:\+EXE\\DST|\\EXE\+DST|\\DST)((?: +[CG]PU \d{2,3})+) *$")
_ROW = re.compile(r"^ +([CG]PU \d{2,3}) +(<?->)((?: +(?:N/A|\d{1,9}\.\d{1,4}))+) *$")
_DEVICE = re.compile(r"[CG]PU \d{2,3}")
_END = re.compile(r"^ *Averages \(During (?:UniDir| BiDir)\):")
_COPIES = re.compile(r"\((\d{1,5}) Transfers\)")
_RECEIVED = re.compile(r"^[^\w\n]{0,8}RTotal(?!\w)(.{1,2000})$", re.MULTILINE)
_CORRUPT = re.compile(r"\[ERROR\] (?:Transfer \d+: )?Unexpected (?:output )?mismatch [^\n]{1,160}")
_FAILED = re.compile(r"\[ERROR\][^\n]{1,160}|Encountered HIP error \([^\n]{1,160}")


# GB/s by (source, destination), which are gpuprov's devices or CPUs (`cpu0`). None: N/A.
Matrix = Mapping[tuple[str, str], float | None]


class CorruptionError(Exception):
    """The received data differs from the sent data; the text is TransferBench's line."""


def program(node: CheckNode) -> str:
    usual = f"{tools(node)}/TransferBench"
    return str(node.variables.get("amd_validation_tools_transferbench_path", usual))


def topology(node: CheckNode) -> Command:
    """Return the program without arguments: it prints its usage and lists the devices."""
    return Command(TOPOLOGY, (program(node),), 60.0)


def command(
    node: CheckNode,
    name: str,
    size: str,
    deadline: float,
    *,
    reads: bool,
    processors: bool = True,
    preset: str = "p2p",
    both_ways: bool = False,
) -> Command:
    """Return a preset, by default p2p in one direction at a time; without `processors` only GPUs copy."""
    mode = "2" if both_ways else "1"
    env = {
        **{"P2P_MODE": mode, "USE_REMOTE_READ": _READ if reads else _WRITE, "USE_GPU_DMA": "0"},
        **{"OUTPUT_TO_CSV": "0", "SHOW_ITERATIONS": "0"},
        **({} if processors else {"NUM_CPU_DEVICES": "0"}),
    }
    return Command(name, (program(node), preset, size), deadline, env=env)


def devices(node: CheckNode, outputs: Mapping[str, Output]) -> dict[str, str]:
    """Map TransferBench's names to gpuprov's (`GPU 00` → `gpu3`).

    Raises ParseError, also if it does not list each GPU of the node exactly once."""
    output = completed(outputs, TOPOLOGY)
    listed = [match for line in output.stdout.splitlines() if (match := _GPU.match(line))]
    if output.rc or not listed:
        raise ParseError(f"TransferBench lists no GPUs: {_why(output)}", "gpuprov up; look at gpu_inventory")
    gpus = kernel_incidents.devices(node)
    names = {f"GPU {match[1]}": gpus.get(bus_address(match[2]), "") for match in listed}
    if len(names) != len(listed) or sorted(names.values()) != sorted(gpus.values()):
        seen = ", ".join(match[2] for match in listed)
        raise ParseError(
            f"TransferBench sees the GPUs {seen:.200}, and the node has {node.gpu_count}",
            "look for HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES in root's environment, and at gpu_inventory",
        )
    return names


def _whole(outputs: Mapping[str, Output], name: str) -> str:
    """Return the output of a complete run. Raises ParseError, CorruptionError."""
    output = completed(outputs, name)
    text = f"{output.stdout}\n{output.stderr}"
    if corrupt := _CORRUPT.search(text):
        raise CorruptionError(corrupt[0][len("[ERROR] ") :])
    if output.truncated:
        raise ParseError("TransferBench: the output was cut at its size limit", "run the check again")
    if output.rc or _FAILED.search(text):
        raise ParseError(
            f"TransferBench ended with status {output.rc}: {_why(output)}", "look at the kernel log"
        )
    return output.stdout


def all_to_all(outputs: Mapping[str, Output], name: str, gpus: int) -> float | None:
    """Return the average GB/s of preset a2a; None (no table) if no two GPUs are joined directly.

    Raises ParseError, CorruptionError."""
    text = _whole(outputs, name)
    copies = _COPIES.search(text)
    if copies and int(copies[1]) == 0:
        return None
    received = _RECEIVED.search(text)
    rates = [float(word) for word in re.findall(r"\d{1,9}\.\d{1,4}", received[1])] if received else []
    if len(rates) <= gpus or abs(sum(rates[:gpus]) - rates[gpus]) > 0.01 * rates[gpus]:
        raise ParseError(
            f"TransferBench printed no total for {many(gpus, 'GPU')}: {_why(outputs[name])}",
            "report the new format",
        )
    return round(rates[gpus] / (int(copies[1]) if copies else gpus * (gpus - 1)), 3)


def matrix(
    outputs: Mapping[str, Output],
    name: str,
    names: Mapping[str, str],
    *,
    reads: bool,
    both_ways: bool = False,
) -> Matrix:
    """Return the matrix of one complete run. Raises ParseError, CorruptionError.

    `names`: see `devices`; `reads`: the destination's GPU copied; `both_ways`: sums of both copies.
    """
    lines = iter(_whole(outputs, name).splitlines())
    begin = next((match for line in lines if (match := _BEGIN.match(line))), None)
    if begin is None or (begin[1] == "Bi", begin[2] == "Remote") != (both_ways, reads):
        raise ParseError(
            f"TransferBench printed no such matrix: {_why(outputs[name])}", "report the new format"
        )
    header = _HEADER.match(next(lines, ""))
    if header is None:
        raise ParseError("TransferBench: the header of its matrix is not known", "report the new format")
    columns = _DEVICE.findall(header[1])
    cells: dict[tuple[str, str], float | None] = {}
    rows = []
    for line in lines:
        if _END.match(line):
            break
        if (row := _ROW.match(line)) and (row[2] == "<->") is both_ways:
            rows.append(row[1])
            cells |= _cells(row[1], columns, row[3].split(), names)
    else:
        raise ParseError("TransferBench: the output stops before its end", "run the check again")
    if rows != columns or {word for word in columns if word.startswith("GPU")} != set(names):
        raise ParseError(
            f"TransferBench: a matrix of {len(rows)} by {len(columns)} devices does not fit the node's "
            f"{len(names)} GPUs",
            "run the check again",
        )
    return cells


def _cells(
    source: str, columns: list[str], values: list[str], names: Mapping[str, str]
) -> dict[tuple[str, str], float | None]:
    if len(values) != len(columns):
        raise ParseError(
            f"TransferBench: row {source} has {len(values)} cells, not {len(columns)}", "run the check again"
        )
    return {
        (_named(source, names), _named(column, names)): _rate(value)
        for column, value in zip(columns, values, strict=True)
    }


def _rate(text: str) -> float | None:
    value = None if text == "N/A" else float(text)
    if value is not None and not 0 < value < math.inf:
        raise ParseError(f"TransferBench: {text} is not a bandwidth", "run the check again")
    return value


def _named(word: str, names: Mapping[str, str]) -> str:
    kind, _, number = word.partition(" ")
    return f"cpu{int(number)}" if kind == "CPU" else names.get(word, word)


def _why(output: Output) -> str:
    failed = _FAILED.search(f"{output.stderr}\n{output.stdout}")
    return failed[0] if failed else last_words(output)


def corruption(check: str, said: str) -> Finding:
    """Return the finding of a copy that arrived altered."""
    message = f"a copy arrived corrupted, TransferBench says: {said:.200}"
    limit, by = "= 0 differences", "TransferBench compares what each copy delivered"
    return Finding(check, Verdict.FAIL, "node", message, "corrupt", said[:200], "", limit, by, "investigate")
