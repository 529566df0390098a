"""One collective over all GPUs of a node, as a check: what every nccl_* check of one node shares.

Judged at the largest size alone: the "Avg bus bandwidth" that the tools print averages small messages in. A
limit holds for one collective, one number of GPUs and one algorithm: NVLink SHARP adds inside the switch, and
its bus bandwidth passes the wire's speed, which no ring can. NCCL is asked which algorithm it took.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.judge import Finding, Verdict, by_threshold, unmeasured
from provision.checks.thresholds import Threshold, for_sku
from provision.errors import ParseError

_GIB = 2**30
_LARGEST = 16  # GiB; operators' limits (azurehpc-health-checks) are given at this size
# Checking results needs a third buffer beside the send and receive buffers; NCCL and CUDA want room as well.
_BUFFERS = 3
_SHARE_OF_MEMORY = 0.75

# NCCL prints its choices into the middle of nccl-tests' rows unless it is given another stream. /dev/stderr
# leaves no file on the node.
_ASK_ALGORITHM = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "TUNING",
    "NCCL_DEBUG_FILE": "/dev/stderr",
}

# `AllReduce: 17179869184 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..23}`; before 2.24 as numbers:
# `17179869184 Bytes -> Algo 4 proto 2 time 48210.0` (NVIDIA/nccl, src/enqueue.cc, src/include/nccl_common.h)
_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\w+) proto \w+")
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")

# Both rates are rounded to hundredths where they are small, and to three digits where they are large.
_ROUNDING = 0.01


def _asked_bytes(argv: Sequence[str], flag: str) -> int:
    """A size on our own command line, 512M or 16G, in bytes; 0 when it is not there."""
    at = list(argv).index(flag) + 1 if flag in argv else len(argv)
    match = re.fullmatch(r"(\d+)([MG])", argv[at]) if at < len(argv) else None
    return int(match[1]) << {"M": 20, "G": 30}[match[2]] if match else 0


@dataclass(frozen=True)
class Collective:
    """One collective and its program. `share`: bus bandwidth is algorithm bandwidth times share times
    (n-1)/n, the part of the data each GPU must send (nccl-tests, doc/PERFORMANCE.md). `env`: what NCCL is
    told besides.
    """

    id: str
    program: str
    words: str
    share: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)

    def commands(self, node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG002
        """The program over all GPUs, at the two largest sizes that fit."""
        program = str(node.variables.get(f"validation_tools_{self.program}_path", f"/usr/bin/{self.program}"))
        memory = for_sku(node.sku).get("gpu_inventory.memory_total")
        largest = largest_size(memory.limit if memory else None)
        smallest = f"{largest // 2}G" if largest > 1 else "512M"
        argv = (program, "-b", smallest, "-e", f"{largest}G", "-f", "2", "-g", str(node.gpu_count))
        return [
            Command(
                self.program,
                # -w has had different defaults; -c 1 checks the result.
                (*argv, "-n", "20", "-w", "5", "-c", "1"),
                300.0,
                env={**BUS_ORDER, **_ASK_ALGORITHM, **self.env},
            )
        ]

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """The largest size of the table → `busbw` in GB/s, `size` in bytes, `ranks`; `wrong` elements over
        all sizes; `algorithm` when NCCL said which it took.

        Raises ParseError.
        """
        output = completed(outputs, self.program)
        if output.truncated:
            raise ParseError("nccl-tests: the output was cut at its size limit", "run the check again")
        if not output.stdout.strip():
            raise ParseError(f"{self.program} printed nothing: {last_words(output)}", "run the check again")
        result = parse(output.stdout, output.stderr)
        self._check_identity(node, result)
        self._check_sizes(output, result)
        largest = max(result.rows, key=lambda row: row.size)
        checked = [row.wrong for row in result.rows if row.wrong is not None]
        # The program ends with 0 when all went well (nccl-tests, src/common.cu); wrong sums are told below.
        if output.rc and not any(checked):
            said = failure(f"{output.stdout}\n{output.stderr}") or last_words(output)
            raise ParseError(
                f"{self.program} ended with status {output.rc}: {said}",
                "look at the kernel log and at fabric manager",
            )
        found = [
            Measurement("busbw", largest.busbw, "GB/s"),
            Measurement("size", largest.size, "bytes"),
            Measurement("ranks", result.ranks, "GPUs"),
        ]
        if len(checked) == len(result.rows):
            found.append(Measurement("wrong", sum(checked), "elements"))
        if result.version:
            found.append(Measurement("nccl_version", result.version, ""))
        if algorithm := chosen_algorithm(output.stderr):
            found.append(Measurement("algorithm", algorithm, ""))
        return found

    def _check_identity(self, node: CheckNode, result: Result) -> None:
        """Refuse another collective's table, and one of other GPUs: its numbers mean something else."""
        # A renamed program (all_reduce_perf_mpi) may still be the right one.
        if result.program.endswith("_perf") and result.program != self.program:
            raise ParseError(
                f"{self.program} reports that it is {result.program}",
                f"set validation_tools_{self.program}_path to the right program",
            )
        if result.ranks != node.gpu_count:
            raise ParseError(
                f"{self.program} ran on {result.ranks} GPUs, the node has {node.gpu_count}",
                "CUDA does not see all GPUs: look at the gpu_inventory check",
            )
        factor = self.share * (node.gpu_count - 1) / node.gpu_count
        for row in result.rows:
            if abs(row.busbw - row.algbw * factor) > _ROUNDING * (2 + row.algbw):
                raise ParseError(
                    f"{self.program}: bus bandwidth {row.busbw:g} does not follow from algorithm bandwidth "
                    f"{row.algbw:g} on {node.gpu_count} GPUs",
                    "report the new format",
                )

    def _check_sizes(self, output: Output, result: Result) -> None:
        """Refuse a table without one of the sizes that were asked for: the row that is missing may be the bad
        one.
        """
        smallest, largest = _asked_bytes(output.argv, "-b"), _asked_bytes(output.argv, "-e")
        if not smallest or not largest:
            return
        sizes = [row.size for row in result.rows]
        # Sizes are rounded down to what the GPUs can share evenly.
        if len(sizes) != (largest // smallest).bit_length() or not 0.99 * largest <= max(sizes) <= largest:
            raise ParseError(
                f"{self.program} was started for sizes from {smallest} to {largest} bytes and reports "
                f"{', '.join(map(str, sizes))}"[:300],
                "run the check again",
            )

    def judge(
        self, node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        """Wrong elements fail whatever the speed; the speed is judged by the limit of what NCCL did."""
        values = {m.metric: m for m in measurements}
        findings = self.judge_results(values)
        if node.gpu_count < 2:
            # With one rank nothing is sent, and the tool prints a bus bandwidth of 0.
            reason = "one GPU: there is no group to measure"
            return [*findings, Finding(self.id, Verdict.SKIP, "node", reason, "busbw")]
        size = int(values["size"].value) / _GIB
        what = f"{self.words} bus bandwidth over {node.gpu_count} GPUs at {size:g} GiB"
        algorithm = str(values["algorithm"].value) if "algorithm" in values else ""
        if algorithm:
            what += f" ({algorithm.upper()})"
        plain = thresholds.get(f"{self.id}.busbw_{node.gpu_count}gpu")
        ring = thresholds.get(f"{self.id}.busbw_ring_{node.gpu_count}gpu")
        if ring is None or not algorithm or algorithm.startswith("nvls"):
            return [*findings, by_threshold(self.id, what, values["busbw"], plain, action="investigate")]
        return [*findings, self._without_nvls(what, values["busbw"], ring)]

    def _without_nvls(self, what: str, busbw: Measurement, ring: Threshold) -> Finding:
        """A ring where the limits expect NVLink SHARP: up to a third is being given away."""
        finding = by_threshold(self.id, what, busbw, ring, action="investigate")
        if finding.verdict is not Verdict.PASS:
            return finding
        said = (
            f"{what} is {busbw.value:g} {busbw.unit}: right for a ring, but NVLink SHARP was not used; look "
            "for NCCL_NVLS_ENABLE and NCCL_ALGO in /etc/nccl.conf, and at fabric manager"
        )
        return replace(
            finding, verdict=Verdict.WARN, message=said, metric="algorithm", action="fix configuration"
        )

    def judge_results(self, values: Mapping[str, Measurement]) -> list[Finding]:
        """What is to be said of the results' correctness: nothing when all were checked and right."""
        if "wrong" not in values:
            said = f"{self.program} did not check its results"
            return [unmeasured(self.id, said, action="fix configuration")]
        count = int(values["wrong"].value)
        if not count:
            return []
        said = f"{self.words} gave {count} wrong elements: silent data corruption"
        limit, by = "= 0 elements", "nccl-tests compares every result"
        found = Finding(
            self.id, Verdict.FAIL, "node", said, "wrong", count, "elements", limit, by, "investigate"
        )
        return [found]


def largest_size(memory_mib: float | None) -> int:
    """The largest message in GiB that fits a GPU: 16 on 80 GB, 8 on 48 GB; 1 when the memory is not known."""
    if memory_mib is None:
        return 1
    size = _LARGEST
    while size > 1 and size * _BUFFERS * 1024 > memory_mib * _SHARE_OF_MEMORY:
        size //= 2
    return size


def chosen_algorithm(text: str) -> str:
    """What NCCL says it took for the largest message: `nvls`, `ring`, … Empty when it did not say.

    >>> chosen_algorithm("n:1:2 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo 1 proto 2 time 9.4")
    'ring'
    """
    choices = [(int(size), word) for size, word in _CHOICE.findall(text)]
    if not choices:
        return ""
    word: str = max(choices)[1]
    if not word.isdigit():
        return word.lower()
    return _ALGORITHMS[int(word)] if int(word) < len(_ALGORITHMS) else ""


# --- what the nccl-tests programs print: rows by column name. Columns differ between versions (`error`
# became `#wrong`, `root` was added, `-I 1` adds more): rows are read by their header. NCCL writes warnings
# into the same stream, in the middle of the table.


@dataclass(frozen=True)
class Row:
    """One message size: bytes, bus and algorithm bandwidth in GB/s (of the worse of out-of-place and
    in-place), wrong elements.

    `wrong` is None when results were not checked (`-c 0`).
    """

    size: int
    busbw: float
    algbw: float
    wrong: int | None


@dataclass(frozen=True)
class Result:
    """A whole run: its rows, how many ranks took part, and the NCCL version and the program's own name where
    they are printed.
    """

    rows: tuple[Row, ...]
    ranks: int
    version: str
    program: str = ""


# No `.*` in front: it would take minutes on a long line without an end.
_FAILURE = re.compile(r"(?:Test (?:NCCL|CUDA) failure|Test failure|NCCL failure).*")
# Where CUDA shows fewer GPUs than -g wants; the failure on standard output does not say it (common.cu).
_TOO_FEW = re.compile(r"^Invalid number of GPUs: \d{1,6} requested but only \d{1,6} were found", re.MULTILINE)
_RANK = re.compile(r"^#\s+Rank\s+\d+\s", re.MULTILINE)
_VERSION = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+\.\d+)")
_OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (?:OK|FAILED)\s*$", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s+: [\d.]+", re.MULTILINE)
_PROGRAM = re.compile(r"^# Collective test starting: (\S+)$", re.MULTILINE)
_DATA = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")


def parse(text: str, stderr: str = "") -> Result:
    """A run of one nccl-tests program. Raises ParseError when it failed, was cut, or is not understood."""
    if too_few := _TOO_FEW.search(stderr):
        raise ParseError(
            f"nccl-tests: {too_few[0]}", "CUDA does not see all GPUs: look at the gpu_inventory check"
        )
    # Wrong sums end the program with a failure too, but after its whole table: those are a result.
    if (words := failure(text)) and not _OUT_OF_BOUNDS.search(text):
        raise ParseError(f"nccl-tests: {words}", "look at the kernel log and at fabric manager")
    return _from_table(text)


def failure(text: str) -> str:
    """The first failure that the program prints; empty when it prints none."""
    match = _FAILURE.search(text)
    return match[0].strip()[:200] if match else ""


def without_environment(text: str) -> str:
    """The text with the `env` of a `-J` document emptied: it is the whole environment of the process, secrets
    too.
    """
    begin = text.find("{")
    if '"env"' not in text or begin < 0:
        return text
    try:
        document, end = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return re.sub(
            r'"env"\s*:\s*\[.*', '"env": [] (cut here: the rest was not JSON)', text, flags=re.DOTALL
        )
    if isinstance(document, dict) and "env" in document:
        document["env"] = []
        return text[:begin] + json.dumps(document) + text[end:]
    return text


def _from_table(text: str) -> Result:
    columns: list[str] = []
    units: list[str] = []
    rows = []
    for line in text.splitlines():
        if line.startswith("#"):
            words = line[1:].split()
            if words[:2] == ["size", "count"]:
                columns, units = words, []
            elif words[:1] == ["(B)"]:
                units = words
        elif _DATA.match(line):
            _known_units(columns, units)
            rows.append(_table_row(columns, line.split()))
    bounds, average = _OUT_OF_BOUNDS.search(text), _AVERAGE.search(text)
    if bounds is None or average is None:
        last = text.strip().splitlines()[-1][:120] if text.strip() else "nothing printed"
        raise ParseError(f"nccl-tests: the output stops before its end: {last}", "run the check again")
    if not rows:
        raise ParseError("nccl-tests: the table has no rows", "run the check again")
    if int(bounds[1]) and not any(row.wrong for row in rows):
        rows[-1] = replace(rows[-1], wrong=int(bounds[1]))
    version, program = _VERSION.search(text), _PROGRAM.search(text)
    return Result(
        tuple(rows),
        len(_RANK.findall(text)),
        next((v for v in version.groups() if v), "") if version else "",
        program[1] if program else "",
    )


def _known_units(columns: list[str], units: list[str]) -> None:
    """The line of units below the header has no cell for a column without unit, so they are counted."""
    wanted = {"(us)": ("time",), "(GB/s)": ("algbw", "busbw")}
    measured = [unit for unit in units if unit not in ("(B)", "(elements)")]
    known = all(
        measured.count(unit) == sum(columns.count(name) for name in names) for unit, names in wanted.items()
    )
    if not known or set(measured) - set(wanted):
        said = " ".join(units)[:120] or "none"
        raise ParseError(
            f"nccl-tests: the table's units are not (us) and (GB/s): {said}", "report the new format"
        )


def _values(columns: list[str], cells: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """A row's `size count type` and, with their columns, its numbers from the first `time` on.

    Old versions leave `redop` and `root` blank where a collective has none; what follows them never is.
    """
    if "time" not in columns:
        raise ParseError("nccl-tests: the table has no time column", "report the new format")
    first = columns.index("time")
    numbers = len(columns) - first
    given = cells[: max(0, len(cells) - numbers)]
    if columns[:3] != ["size", "count", "type"] or not 3 <= len(given) <= first:
        raise ParseError(f"nccl-tests: {len(cells)} cells in {len(columns)} columns", "report the new format")
    return given[:3], list(zip(columns[first:], cells[-numbers:]))


def _table_row(columns: list[str], cells: list[str]) -> Row:
    """The out-of-place and the in-place run have the same column names, one after the other."""
    head, numbers = _values(columns, cells)

    def values(*names: str) -> list[str]:
        return [cell for column, cell in numbers if column in names]

    checked = [word for word in values("#wrong", "error") if word != "N/A"]
    try:
        rates = _rates(values("busbw"), values("algbw"))
        if any(not float(word) >= 0 for word in values("time")):
            raise ValueError("no time")
        # Old versions print the largest error as a float in this column; a count is what we judge.
        wrong = sum(int(float(word)) for word in checked) if checked else None
        return Row(int(head[0]), *min(rates), wrong)
    except (ValueError, OverflowError) as error:
        raise ParseError(
            f"nccl-tests: row not understood: {' '.join(cells)[:120]}", "run the check again"
        ) from error


def _rates(busbws: list[Any], algbws: list[Any]) -> list[tuple[float, float]]:
    """(bus, algorithm) bandwidth of each run. Raises ValueError on what is no rate."""
    if not busbws or len(busbws) != len(algbws):
        raise ParseError("nccl-tests: the table has no busbw and algbw columns", "report the new format")
    rates = [(float(bus), float(alg)) for bus, alg in zip(busbws, algbws)]
    if not all(0 <= rate < math.inf for pair in rates for rate in pair):
        raise ValueError("not a rate")
    return rates
