"""Parser of perftest's tables, and of bandwidth by message size (ib_write_bw, ib_read_bw, …).

Their unit is in the table's header: Gb/s (10^9 bits) with --report_gbits, else MiB/s, which old versions call
MB/sec. Server and client of a loopback may share a stream, which then has header and rows twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from provision.checks.check import CheckNode
from provision.errors import ParseError

SIZE = 8388608  # bytes; the size of azurehpc-health-checks' measurements and limits
QUEUE_PAIRS = 4
_ITERATIONS = 1000  # of each queue pair: 34 GB, most of a second on a 400 Gb/s port
# For a driver in software, perftest's own size and 26 MB in all: on a busy CPU, rxe ends a message of 2,048
# packets with an error (Failed status 9).
SMALL = 65536
_FEW = 100


def argv(node: CheckNode, device: str, port: str, number: int, *, software: bool = False) -> tuple[str, ...]:
    """Return the command line of an ib_write_bw server; a client's appends the server's address.

    `number`: TCP port. `software`: a CPU, not a card, does the work, which would take hours at full size."""
    program = str(node.variables.get("validation_tools_ib_write_bw_path", "/usr/bin/ib_write_bw"))
    where = ("-d", device, "-i", port, "-p", str(number))
    size, iterations = (SMALL, _FEW) if software else (SIZE, _ITERATIONS)
    load = ("-s", str(size), "-q", str(QUEUE_PAIRS), "-n", str(iterations))
    warm = () if software else ("--perform_warm_up",)
    return (program, *where, *load, "-F", "--report_gbits", *warm)


def size_asked(words: Sequence[str]) -> int:
    """Return the message size that an `argv` requests."""
    return SMALL if ("-s", str(SMALL)) in pairwise(words) else SIZE


def seconds(rate: float) -> float:
    """Return the duration in seconds of a card's `argv` at this rate in Gb/s."""
    return SIZE * 8 * QUEUE_PAIRS * _ITERATIONS / (rate * 1e9)


@dataclass(frozen=True)
class Result:
    """One run: queue pairs, and `average` Gb/s by message size in bytes (the lower of equal sizes)."""

    device: str
    queue_pairs: int
    average: dict[int, float]


@dataclass(frozen=True)
class Table:
    """The table of one run: columns, index `at` of the wanted column, and each row's cells."""

    device: str
    queue_pairs: int
    columns: tuple[str, ...]
    at: int
    rows: tuple[tuple[str, ...], ...]


_COLUMN = re.compile(r"#\w+|(?:BW|MsgRate)(?: \w{1,20}){0,4}\[[^\[\]]*\]|CPU_Util\[[^\[\]]*\]")
_GBITS = {"Gb/sec": 1.0, "MiB/sec": 2**20 * 8 / 1e9, "MB/sec": 2**20 * 8 / 1e9}
_AVERAGE = re.compile(rf"BW average\[(?:{'|'.join(_GBITS)})\]")
_RULE = re.compile(r"^\s*-{20,}\s*$")
_ROW = re.compile(r"^\s*\d+\s+\d+\s")
_DEVICE = re.compile(r"\bDevice\s*: (\S+)")
_QUEUE_PAIRS = re.compile(r"Number of qps\s*: (\d{1,9})")


def parse(text: str) -> Result:
    """Parse a bandwidth program's whole run; raise ParseError if it failed, was cut, or is malformed."""
    parsed = table(text, _COLUMN, _AVERAGE)
    unit = parsed.columns[parsed.at].partition("[")[2].rstrip("]")
    average: dict[int, float] = {}
    for row in parsed.rows:
        size, rate = size_of(row), number(row, parsed.at, least=0.0) * _GBITS[unit]
        average[size] = min(rate, average.get(size, math.inf))
    return Result(parsed.device, parsed.queue_pairs, average)


def table(text: str, column: re.Pattern[str], wanted: re.Pattern[str]) -> Table:
    """Parse the table of a whole run; raise ParseError if it failed, was cut, or is malformed.

    `column` matches each column's name in the header, `wanted` the name of the column to read."""
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if line.lstrip().startswith("#bytes")]
    device, pairs = set(_DEVICE.findall(text)), set(_QUEUE_PAIRS.findall(text))
    if not heads or len(device) != 1 or len(pairs) != 1:
        words = next((line.strip() for line in reversed(lines) if line.strip()), "nothing printed")
        raise ParseError(f"perftest: no result: {words[:160]}", "run the check again")
    headers = {tuple(column.findall(lines[at])) for at in heads}
    columns = headers.pop()
    matching = [at for at, name in enumerate(columns) if wanted.fullmatch(name)]
    if headers or len(matching) != 1:
        what = f"perftest: header not understood: {' '.join(columns)[:120]}"
        raise ParseError(what, "report the format")
    rows: list[tuple[str, ...]] = []
    ended = False
    for line in lines[heads[0] :]:
        if _ROW.match(line):
            rows.append(tuple(line.split()))
            if len(rows[-1]) != len(columns):
                raise _unknown_row(rows[-1])
            ended = False
        elif _RULE.match(line):
            ended = bool(rows)
    if not ended:
        raise ParseError("perftest: the output stops before its end", "run the check again")
    return Table(device.pop(), int(pairs.pop()), columns, matching[0], tuple(rows))


def size_of(row: Sequence[str]) -> int:
    """Return the message size of a row in bytes; raise ParseError if it is not a number."""
    return int(number(row, 0, least=0.0))


def number(row: Sequence[str], at: int, *, least: float) -> float:
    """Return the number in one cell of a row; raise ParseError if it is malformed or below `least`."""
    try:
        value = float(row[at])
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise _unknown_row(row)
    return value


def _unknown_row(row: Iterable[str]) -> ParseError:
    return ParseError(f"perftest: row not understood: {' '.join(row)[:120]}", "run the check again")
