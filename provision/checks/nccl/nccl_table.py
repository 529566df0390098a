"""Parser of the tables of nccl-tests, and of rccl-tests, which derive from them (pure).

Columns differ between versions (`error` became `#wrong`, `root` was added, `-I 1` adds more), so rows are
parsed by their header. NCCL writes warnings into the same stream, in the middle of the table.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from provision import foreign_json
from provision.checks.check import INSTALL
from provision.errors import ParseError


@dataclass(frozen=True)
class Suite:
    """A vendor's test programs: common name, GPU runtime, and advice for failure and installation.

    `variable`: prefix of the variables with the programs' paths.
    """

    name: str
    runtime: str
    look: str
    variable: str = "validation_tools_"
    install: str = INSTALL


NCCL_TESTS = Suite("nccl-tests", "CUDA", "look at the kernel log and at fabric manager")


@dataclass(frozen=True)
class Row:
    """One message size: bytes, bus and algorithm bandwidth in GB/s, wrong elements.

    The bandwidth is the worse of out-of-place and in-place. `wrong`: None if results were not checked (`-c
    0`).
    """

    size: int
    busbw: float
    algbw: float
    wrong: int | None


@dataclass(frozen=True)
class Result:
    """A whole run: its rows and ranks, and NCCL's version and the program's own name if printed."""

    rows: tuple[Row, ...]
    ranks: int
    version: str
    program: str = ""


# No `.*` in front: it would take minutes on a long line without an end.
_FAILURE = re.compile(r"(?:Test (?:NCCL|CUDA) failure|Test failure|NCCL failure).*")
# CUDA finds fewer GPUs than -g requests; the failure on standard output lacks this reason (common.cu).
# rccl-tests prints it differently.
_TOO_FEW = re.compile(
    r"^(?:Invalid number of GPUs: \d{1,6} requested but only \d{1,6} were found|\[ERROR\] The number of "
    r"requested GPUs \(\d{1,6}\) is greater than the number of GPUs available \(\d{1,6}\))",
    re.MULTILINE,
)
_RANK = re.compile(r"^#\s+Rank\s+\d+\s", re.MULTILINE)
_VERSION = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+\.\d+)|RCCL version : (\d+\.\d+\.\d+)")
_OUT_OF_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (?:OK|FAILED)\s*$", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s+: [\d.]+", re.MULTILINE)
_PROGRAM = re.compile(r"^# Collective test starting: (\S+)$", re.MULTILINE)
_DATA = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")


def parse(text: str, stderr: str = "", suite: Suite = NCCL_TESTS) -> Result:
    """Parse a run of one such program; raise ParseError if it failed, was cut, or is malformed."""
    try:
        if too_few := _TOO_FEW.search(stderr):
            raise ParseError(too_few[0].removeprefix("[ERROR] "), unseen(suite))
        # Wrong sums end the program with a failure too, but after its whole table: those are a result.
        if (words := failure(text)) and not _OUT_OF_BOUNDS.search(text):
            raise ParseError(words, suite.look)
        return _from_table(text)
    except ParseError as error:
        raise ParseError(f"{suite.name}: {error.what}", error.fix) from None


def unseen(suite: Suite) -> str:
    """Return the advice for a program that found fewer GPUs than the node has."""
    return f"{suite.runtime} does not see all GPUs: look at the gpu_inventory check"


def failure(text: str) -> str:
    """Return the first failure that the program prints, or an empty string."""
    match = _FAILURE.search(text)
    return match[0].strip()[:200] if match else ""


def without_environment(text: str) -> str:
    """Empty the `env` of a `-J` document: it is the process' whole environment, including secrets."""
    begin = text.find("{")
    if '"env"' not in text or begin < 0:
        return text
    try:
        document, end = foreign_json.first(text, begin)
    except foreign_json.JsonError:
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
        raise ParseError(f"the output stops before its end: {last}", "run the check again")
    if not rows:
        raise ParseError("the table has no rows", "run the check again")
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
    """Check the units; a unitless column has no cell in their line, so units are counted."""
    expected = {"(us)": ("time",), "(GB/s)": ("algbw", "busbw")}
    measured = [unit for unit in units if unit not in ("(B)", "(elements)")]
    recognised = all(
        measured.count(unit) == sum(columns.count(name) for name in names) for unit, names in expected.items()
    )
    if not recognised or set(measured) - set(expected):
        printed = " ".join(units)[:120] or "none"
        raise ParseError(f"the table's units are not (us) and (GB/s): {printed}", "report the new format")


def _values(columns: list[str], cells: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split a row into `size count type`, and (column, number) pairs from the first `time` on.

    Old versions leave `redop` and `root` blank if a collective has none; later columns are never blank.
    """
    if "time" not in columns:
        raise ParseError("the table has no time column", "report the new format")
    first = columns.index("time")
    numbers = len(columns) - first
    leading = cells[: max(0, len(cells) - numbers)]
    if columns[:3] != ["size", "count", "type"] or not 3 <= len(leading) <= first:
        raise ParseError(f"{len(cells)} cells in {len(columns)} columns", "report the new format")
    return leading[:3], list(zip(columns[first:], cells[-numbers:]))


def _table_row(columns: list[str], cells: list[str]) -> Row:
    """Parse a row, in which the out-of-place and the in-place run have the same column names."""
    head, numbers = _values(columns, cells)

    def values(*names: str) -> list[str]:
        return [cell for column, cell in numbers if column in names]

    checked = [word for word in values("#wrong", "error") if word != "N/A"]
    try:
        rates = _rates(values("busbw"), values("algbw"))
        if any(not 0 <= float(word) < math.inf for word in values("time")):
            raise ValueError("no time")
        # Old versions print the largest error as a float in this column; a count is judged.
        wrong = sum(int(float(word)) for word in checked) if checked else None
        return Row(int(head[0]), *min(rates), wrong)
    except (ValueError, OverflowError) as error:
        raise ParseError(f"row not understood: {' '.join(cells)[:120]}", "run the check again") from error


def _rates(busbws: list[Any], algbws: list[Any]) -> list[tuple[float, float]]:
    """Return (bus, algorithm) bandwidth of each run; raise ValueError if a value is not a rate."""
    if not busbws or len(busbws) != len(algbws):
        raise ParseError("the table has no busbw and algbw columns", "report the new format")
    rates = [(float(bus), float(alg)) for bus, alg in zip(busbws, algbws)]
    if not all(0 <= rate < math.inf for pair in rates for rate in pair):
        raise ValueError("not a rate")
    return rates
