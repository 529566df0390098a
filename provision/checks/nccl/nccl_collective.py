"""One collective over all GPUs of a node, as a check: what every nccl_* check of one node shares.

Judged at the largest size alone: the "Avg bus bandwidth" that the tools print averages small messages in. A
limit holds for one collective, one number of GPUs and one algorithm: NVLink SHARP adds inside the switch, and
its bus bandwidth passes the wire's speed, which no ring can. NCCL is asked which algorithm it took.
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
_CHOICE = re.compile(r"(?<!\d)(\d{1,20}) Bytes -> Algo (\w{1,40}) proto \w")
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
    told besides. `results`: what it computes.
    """

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
        """The program over all GPUs, at the two largest sizes that fit."""
        program = str(node.variables.get(self._variable(), f"/usr/bin/{self.program}"))
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
        output = completed(outputs, self.program, self.suite.install)
        if output.truncated:
            said = f"{self.suite.name}: the output was cut at its size limit"
            raise ParseError(said, "run the check again")
        if not output.stdout.strip():
            raise ParseError(f"{self.program} printed nothing: {last_words(output)}", "run the check again")
        result = parse(output.stdout, output.stderr, self.suite)
        self._check_identity(node, result)
        self._check_sizes(output, result)
        largest = max(result.rows, key=lambda row: row.size)
        checked = [row.wrong for row in result.rows if row.wrong is not None]
        # The program ends with 0 when all went well (nccl-tests, src/common.cu); wrong sums are told below.
        if output.rc and not any(checked):
            said = failure(f"{output.stdout}\n{output.stderr}") or last_words(output)
            raise ParseError(f"{self.program} ended with status {output.rc}: {said}", self.suite.look)
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
        """A ring where the limits expect NVLink SHARP: up to a third is being given away."""
        finding = by_threshold(self.ID, what, busbw, ring, action="investigate")
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
            return [unmeasured(self.ID, said, action="fix configuration")]
        count = int(values["wrong"].value)
        if not count:
            return []
        said = f"{self.words} gave {count} wrong elements: silent data corruption"
        limit, by = "= 0 elements", f"{self.suite.name} compares every result"
        found = Finding(
            self.ID, Verdict.FAIL, "node", said, "wrong", count, "elements", limit, by, "investigate"
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
