"""What the bandwidth programs of perftest (ib_write_bw, ib_read_bw, …) print → bandwidth by message size.

Their unit is in the table's header: Gb/s (10^9 bits) with --report_gbits, else MiB/s, which old versions
write MB/sec. Server and client of a loopback may share a stream: header and rows then stand there twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from provision.checks.check import CheckNode
from provision.errors import ParseError

SIZE = 8388608  # bytes; azurehpc-health-checks measures at this size, and its limits hold for it
QUEUE_PAIRS = 4
_ITERATIONS = 1000  # of each queue pair: 34 GB, most of a second on a 400 Gb/s port


def argv(node: CheckNode, device: str, port: str, number: int) -> tuple[str, ...]:
    """ib_write_bw as a server on this RDMA device and its port, at TCP port `number`; a client's has the
    server's address behind it."""
    program = str(node.variables.get("validation_tools_ib_write_bw_path", "/usr/bin/ib_write_bw"))
    asked = ("-d", device, "-i", port, "-p", str(number), "-s", str(SIZE), "-q", str(QUEUE_PAIRS))
    return (program, *asked, "-n", str(_ITERATIONS), "-F", "--report_gbits", "--perform_warm_up")


def seconds(rate: float) -> float:
    """How long the transfer of `argv` takes at this rate in Gb/s."""
    return SIZE * 8 * QUEUE_PAIRS * _ITERATIONS / (rate * 1e9)


@dataclass(frozen=True)
class Result:
    """One run: `average` Gb/s by message size in bytes (the lower of two rows of one size), queue pairs."""

    device: str
    queue_pairs: int
    average: dict[int, float]


_COLUMN = re.compile(r"#\w+|(?:BW|MsgRate)(?: \w+)*\[[^\]]*\]|CPU_Util\[[^\]]*\]")
_AVERAGE = re.compile(r"BW average\[([^\]]*)\]")
_GBITS = {"Gb/sec": 1.0, "MiB/sec": 2**20 * 8 / 1e9, "MB/sec": 2**20 * 8 / 1e9}
_RULE = re.compile(r"^\s*-{20,}\s*$")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
_DEVICE = re.compile(r"\bDevice\s*: (\S+)")
_QUEUE_PAIRS = re.compile(r"Number of qps\s*: (\d+)")


def parse(text: str) -> Result:
    """A whole run of one program. Raises ParseError when it failed, was cut, or is not understood."""
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if line.lstrip().startswith("#bytes")]
    device, pairs = set(_DEVICE.findall(text)), set(_QUEUE_PAIRS.findall(text))
    if not heads or len(device) != 1 or len(pairs) != 1:
        words = next((line.strip() for line in reversed(lines) if line.strip()), "nothing printed")
        raise ParseError(f"perftest: no result: {words[:160]}", "run the check again")
    factor, columns = _columns(lines[at] for at in heads)
    average: dict[int, float] = {}
    ended = False
    for line in lines[heads[0] :]:
        if _ROW.match(line):
            size, rate = _row(line, columns)
            average[size] = min(rate * factor, average.get(size, math.inf))
            ended = False
        elif _RULE.match(line):
            ended = bool(average)
    if not ended:
        raise ParseError("perftest: the output stops before its end", "run the check again")
    return Result(device.pop(), int(pairs.pop()), average)


def _columns(heads: Iterable[str]) -> tuple[float, list[str]]:
    """The factor to Gb/s, and the table's columns."""
    found = {tuple(_COLUMN.findall(head)) for head in heads}
    columns = found.pop()
    units = [match[1] for column in columns if (match := _AVERAGE.fullmatch(column))]
    if found or len(units) != 1 or units[0] not in _GBITS:
        raise ParseError(f"perftest: header not understood: {' '.join(columns)[:120]}", "report the format")
    return _GBITS[units[0]], ["average" if _AVERAGE.fullmatch(column) else column for column in columns]


def _row(line: str, columns: list[str]) -> tuple[int, float]:
    cells = line.split()
    try:
        if len(cells) != len(columns):
            raise ValueError("another number of cells")
        rate = float(cells[columns.index("average")])
        if not 0 <= rate < math.inf:
            raise ValueError("not a rate")
        return int(cells[0]), rate
    except ValueError as error:
        raise ParseError(
            f"perftest: row not understood: {line.strip()[:120]}", "run the check again"
        ) from error
