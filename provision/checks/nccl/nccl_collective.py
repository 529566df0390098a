"""One collective over all GPUs of a node, as a check: the common part of a node's nccl_* checks.

Only the largest size is judged: the "Avg bus bandwidth" that the tools print includes small messages. A limit
applies to one collective, one number of GPUs and one algorithm: NVLink SHARP adds inside the switch, and its
bus bandwidth exceeds the wire's speed, which no ring can. NCCL logs the algorithm that it used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.judge import Finding, Verdict, by_threshold, unmeasured
from provision.checks.nccl.nccl_table import NCCL_TESTS, Result, Suite, failure, parse, unseen
from provision.checks.thresholds import Threshold, for_sku
from provision.errors import ParseError

_GIB = 2**30
_LARGEST = 16  # GiB; operators' limits (azurehpc-health-checks) are for this size
# Checking results needs a third buffer next to the send and receive buffers; NCCL and CUDA need memory too.
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
_CHOICE = re.compile(r"(?<!\d)(\d{1,20}) Bytes -> Algo (\w{1,40}) proto \w")
_ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")

# Both rates are rounded to hundredths if small, and to three digits if large.
_ROUNDING = 0.01


def _asked_bytes(argv: Sequence[str], flag: str) -> int:
    """Return a size of our own command line (512M, 16G) in bytes; 0 if it is missing."""
    at = list(argv).index(flag) + 1 if flag in argv else len(argv)
    match = re.fullmatch(r"(\d+)([MG])", argv[at]) if at < len(argv) else None
    return int(match[1]) << {"M": 20, "G": 30}[match[2]] if match else 0


@dataclass(frozen=True)
class Collective:
    """One collective and its program; `results`: the computed values. `env`: further variables for NCCL.

    `share`: bus bandwidth is algorithm bandwidth times share times (n-1)/n, the fraction of the data that
    each GPU must send (nccl-tests, doc/PERFORMANCE.md)."""

    ID: str
    program: str
    words: str
    share: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    suite: Suite = NCCL_TESTS
    results: str = "results"
    FINDS: str = ""

    @property
    def SUMMARY(self) -> str:  # noqa: N802 - the contract
        measured = f"{self.words} over all GPUs of the node: bus bandwidth at the largest size"
        return f"{measured}, and right {self.results}"

    @property
    def NEEDS(self) -> tuple[str, ...]:  # noqa: N802 - the contract
        return (self.program,)

    def _variable(self) -> str:
        return f"{self.suite.variable}{self.program}_path"

    def commands(self, node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG002
        """Return the command over all GPUs, at the two largest sizes that fit."""
        program = str(node.variables.get(self._variable(), f"/usr/bin/{self.program}"))
        memory = for_sku(node.sku).get("gpu_inventory.memory_total")
        largest = largest_size(memory.limit if memory else None)
        smallest = f"{largest // 2}G" if largest > 1 else "512M"
        argv = (program, "-b", smallest, "-e", f"{largest}G", "-f", "2", "-g", str(node.gpu_count))
        return [
            Command(
                self.program,
                # The default of -w has changed; -c 1 checks the result.
                (*argv, "-n", "20", "-w", "5", "-c", "1"),
                300.0,
                env={**BUS_ORDER, **_ASK_ALGORITHM, **self.env},
            )
        ]

    def parse(self, node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        """Parse the table's largest size into `busbw` in GB/s, `size` in bytes, `ranks`; raise ParseError.

        `wrong`: wrong elements over all sizes. `algorithm`: if NCCL logged its choice.
        """
        output = completed(outputs, self.program, self.suite.install)
        if output.truncated:
            message = f"{self.suite.name}: the output was cut at its size limit"
            raise ParseError(message, "run the check again")
        if not output.stdout.strip():
            raise ParseError(f"{self.program} printed nothing: {last_words(output)}", "run the check again")
        result = parse(output.stdout, output.stderr, self.suite)
        self._check_identity(node, result)
        self._check_sizes(output, result)
        largest = max(result.rows, key=lambda row: row.size)
        checked = [row.wrong for row in result.rows if row.wrong is not None]
        # The exit status is 0 if all went well (nccl-tests, src/common.cu); wrong sums are reported below.
        if output.rc and not any(checked):
            message = failure(f"{output.stdout}\n{output.stderr}") or last_words(output)
            raise ParseError(f"{self.program} ended with status {output.rc}: {message}", self.suite.look)
        measurements = [
            Measurement("busbw", largest.busbw, "GB/s"),
            Measurement("size", largest.size, "bytes"),
            Measurement("ranks", result.ranks, "GPUs"),
        ]
        if len(checked) == len(result.rows):
            measurements.append(Measurement("wrong", sum(checked), "elements"))
        if result.version:
            measurements.append(Measurement("nccl_version", result.version, ""))
        if algorithm := chosen_algorithm(output.stderr):
            measurements.append(Measurement("algorithm", algorithm, ""))
        return measurements

    def _check_identity(self, node: CheckNode, result: Result) -> None:
        """Refuse another collective's table, and one of other GPUs, because the numbers differ in meaning."""
        # A renamed program (all_reduce_perf_mpi) may still be the right one.
        if result.program.endswith("_perf") and result.program != self.program:
            raise ParseError(
                f"{self.program} reports that it is {result.program}",
                f"set {self._variable()} to the right program",
            )
        if result.ranks != node.gpu_count:
            raise ParseError(
                f"{self.program} ran on {result.ranks} GPUs, the node has {node.gpu_count}",
                unseen(self.suite),
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
        """Refuse a table without one of the requested sizes, because the missing row may be the bad one."""
        smallest, largest = _asked_bytes(output.argv, "-b"), _asked_bytes(output.argv, "-e")
        if not smallest or not largest:
            return
        sizes = [row.size for row in result.rows]
        # Sizes are rounded down to a size that the GPUs can share evenly.
        if len(sizes) != (largest // smallest).bit_length() or not 0.99 * largest <= max(sizes) <= largest:
            raise ParseError(
                f"{self.program} was started for sizes from {smallest} to {largest} bytes and reports "
                f"{', '.join(map(str, sizes))}"[:300],
                "run the check again",
            )

    def judge(
        self, node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        """Fail on wrong elements at any speed, and judge the speed by the limit of the algorithm used."""
        values = {m.metric: m for m in measurements}
        findings = self.judge_results(values)
        if node.gpu_count < 2:
            # With one rank nothing is sent, and the tool prints a bus bandwidth of 0.
            reason = "one GPU: there is no group to measure"
            return [*findings, Finding(self.ID, Verdict.SKIP, "node", reason, "busbw")]
        size = int(values["size"].value) / _GIB
        what = f"{self.words} bus bandwidth over {node.gpu_count} GPUs at {size:g} GiB"
        algorithm = str(values["algorithm"].value) if "algorithm" in values else ""
        if algorithm:
            what += f" ({algorithm.upper()})"
        plain = thresholds.get(f"{self.ID}.busbw_{node.gpu_count}gpu")
        ring = thresholds.get(f"{self.ID}.busbw_ring_{node.gpu_count}gpu")
        if ring is None or not algorithm or algorithm.startswith("nvls"):
            return [*findings, by_threshold(self.ID, what, values["busbw"], plain, action="investigate")]
        return [*findings, self._without_nvls(what, values["busbw"], ring)]

    def _without_nvls(self, what: str, busbw: Measurement, ring: Threshold) -> Finding:
        """Judge a ring where the limits expect NVLink SHARP: the ring loses up to a third of the speed."""
        finding = by_threshold(self.ID, what, busbw, ring, action="investigate")
        if finding.verdict is not Verdict.PASS:
            return finding
        text = (
            f"{what} is {busbw.value:g} {busbw.unit}: right for a ring, but NVLink SHARP was not used; look "
            "for NCCL_NVLS_ENABLE and NCCL_ALGO in /etc/nccl.conf, and at fabric manager"
        )
        return replace(
            finding, verdict=Verdict.WARN, message=text, metric="algorithm", action="fix configuration"
        )

    def judge_results(self, values: Mapping[str, Measurement]) -> list[Finding]:
        """Judge the correctness of the results; return nothing if all were checked and right."""
        if "wrong" not in values:
            text = f"{self.program} did not check its results"
            return [unmeasured(self.ID, text, action="fix configuration")]
        count = int(values["wrong"].value)
        if not count:
            return []
        text = f"{self.words} gave {count} wrong elements: silent data corruption"
        limit, by = "= 0 elements", f"{self.suite.name} compares every result"
        finding = Finding(
            self.ID, Verdict.FAIL, "node", text, "wrong", count, "elements", limit, by, "investigate"
        )
        return [finding]


def largest_size(memory_mib: float | None) -> int:
    """Return the largest message in GiB that fits a GPU: 16 on 80 GB, 8 on 48 GB; 1 if unknown."""
    if memory_mib is None:
        return 1
    size = _LARGEST
    while size > 1 and size * _BUFFERS * 1024 > memory_mib * _SHARE_OF_MEMORY:
        size //= 2
    return size


def chosen_algorithm(text: str) -> str:
    """Return the algorithm that NCCL logged for the largest message: `nvls`, `ring`, …; else "".

    >>> chosen_algorithm("n:1:2 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo 1 proto 2 time 9.4")
    'ring'
    """
    choices = [(int(size), name) for size, name in _CHOICE.findall(text)]
    if not choices:
        return ""
    name: str = max(choices)[1]
    if not name.isdigit():
        return name.lower()
    return _ALGORITHMS[int(name)] if int(name) < len(_ALGORITHMS) else ""
