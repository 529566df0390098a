"""Parser of nvbandwidth's output, JSON (`-j`) or text, into matrices.

Pitfalls: values are strings, a cell without a path is "N/A", an error may be next to the test cases or within
one, and the exit status is 0 nevertheless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provision import foreign_json
from provision.checks.check import Output, last_words
from provision.checks.judge import Finding, Verdict
from provision.errors import ParseError

Row = tuple[float | None, ...]


@dataclass(frozen=True)
class Matrix:
    """One test case: `rows[i][j]` in GB/s, None without a path; `columns_send`: data flows column → row.

    A waived test case, which the machine does not support, has no rows.
    """

    name: str
    rows: tuple[Row, ...]
    columns_send: bool
    waived: bool = False
    in_gigabytes: bool = True  # its description ends with the unit: `… bandwidth (GB/s)`


_CORRUPT = re.compile(r"Invalid value when checking the pattern")


# CU_ASSERT and NVML_ASSERT of older versions write this to standard error and exit with 1; newer ones include
# it in the answer (error_handling.h, RecordError).
_ASSERTED = re.compile(r"^(?:\[(?:CUDA_ERROR_|cudaError)\w+\]|NVML_ERROR: \[).{1,180}", re.MULTILINE)


def printed(output: Output) -> str:
    """Return nvbandwidth's output; raise ParseError if it is truncated, empty, or ended by a CUDA error."""
    if output.truncated:
        raise ParseError("nvbandwidth: the output was cut at its size limit", "run the check again")
    if output.rc and (asserted := _ASSERTED.search(output.stderr)):
        raise ParseError(
            f"nvbandwidth: {asserted[0].strip()}", "look at the kernel log and at fabric manager"
        )
    if not output.stdout.strip():
        raise ParseError(f"nvbandwidth printed nothing: {last_words(output)}", "run the check again")
    return output.stdout


def corrupted(text: str) -> str:
    """Return the test case with a corrupted copy, or an empty string.

    nvbandwidth compares every copy with its pattern and prints ` Invalid value when checking the pattern at
    0x735f80000000`, or `<0x…>` in older versions, on standard output (its memcpy.cpp and kernels.cu).
    """
    match = _CORRUPT.search(text)
    if match is None:
        return ""
    names = re.findall(r"^Running (\S+)\.$|\"name\"\s*:\s*\"(\w+)\"", text[: match.start()], re.MULTILINE)
    return next((one or other for one, other in reversed(names)), "a copy")


def corruption(check: str, case: str) -> Finding:
    """Build the finding for a corrupted copy."""
    message = f"data was corrupted in {case}: nvbandwidth read back other bytes than it had copied"
    return Finding(
        check, Verdict.FAIL, "node", message, "corrupt", case, limit="no wrong byte", action="investigate"
    )


def parse(text: str, wanted: tuple[str, ...]) -> dict[str, Matrix]:
    """Return the `wanted` test cases, with the better rate of each cell if a test ran twice.

    Raises ParseError if a test case is missing or failed.
    """
    begin = re.search(r"^\{", text, re.MULTILINE)
    matrices = _from_json(text[begin.start() :]) if begin else _from_text(text, wanted)
    missing = [name for name in wanted if name not in matrices]
    if missing:
        raise ParseError(f"nvbandwidth did not report {', '.join(missing)}", "run the check again")
    if foreign := [name for name in wanted if not matrices[name].in_gigabytes]:
        raise ParseError(
            f"nvbandwidth reports {', '.join(foreign)} in another unit than GB/s", "report the new format"
        )
    return {name: matrices[name] for name in wanted}


def _sends_back(description: str) -> bool:
    """Return whether columns send, as in `GPU(row) <- GPU(column)`; `->` and `<->` start at the row."""
    return "<-" in description and "<->" not in description


def _in_gigabytes(description: str) -> bool:
    return description.rstrip().endswith("(GB/s)")


def _cell(text: Any, name: str) -> float | None:
    if text == "N/A":
        return None
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ParseError(f"nvbandwidth: {name}: {str(text)[:40]!r} is not a bandwidth", "run the check again")
    return value


def _from_json(text: str) -> dict[str, Matrix]:
    try:
        document, _ = foreign_json.first(text, unique=True)
        body = document["nvbandwidth"]
        if body.get("error"):
            words = " ".join(str(body["error"]).split())[:200]
            raise ParseError(f"nvbandwidth: {words}", "look at the kernel log and at fabric manager")
        return _by_name(_case(case) for case in body["testcases"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"[:200]
        raise ParseError(
            f"nvbandwidth: its JSON was not understood: {problem}", "run the check again"
        ) from error


def _by_name(matrices: Iterable[Matrix]) -> dict[str, Matrix]:
    merged: dict[str, Matrix] = {}
    for matrix in matrices:
        previous = merged.get(matrix.name, matrix)
        if [len(row) for row in previous.rows] != [len(row) for row in matrix.rows]:
            raise ParseError(
                f"nvbandwidth: {matrix.name} was run twice, with other GPUs", "run the check again"
            )
        rows = [
            tuple(max((one, other), key=lambda rate: rate or 0.0) for one, other in zip(*two, strict=True))
            for two in zip(previous.rows, matrix.rows, strict=True)
        ]
        merged[matrix.name] = replace(matrix, rows=tuple(rows))
    return merged


def _case(case: Mapping[str, Any]) -> Matrix:
    name, status = str(case["name"]), str(case["status"])
    if status == "Waived":
        return Matrix(name, (), False, waived=True)
    if status != "Passed":
        words = " ".join(str(case.get("error") or case.get("output") or "no reason given").split())[:200]
        raise ParseError(f"nvbandwidth: {name} ended with {status}: {words}", "look at the kernel log")
    description = str(case["bandwidth_description"])
    rows = tuple(tuple(_cell(value, name) for value in row) for row in case["bandwidth_matrix"])
    return Matrix(name, rows, _sends_back(description), in_gigabytes=_in_gigabytes(description))


_RUNNING = re.compile(r"^Running (\S+)\.$")
_ROW = re.compile(r"^\s*(\d{1,4})((?:\s+(?:[\d.]+|N/A))+)$")
_HEADER = re.compile(r"^\s*\d+(?:\s+\d+)*$")


def _from_text(text: str, wanted: tuple[str, ...]) -> dict[str, Matrix]:
    ran: list[Matrix] = []
    waived = 0
    lines = iter(text.splitlines())
    for line in lines:
        if line.strip().lower().startswith("waived"):
            waived += 1
        elif re.match(r"\s*(\[?error|ERROR|CUDA_ERROR)", line, re.IGNORECASE):
            raise ParseError(f"nvbandwidth: {line.strip()[:200]}", "look at the kernel log")
        elif match := _RUNNING.match(line):
            name = match[1]
            block = []
            for inner in lines:
                block.append(inner)
                if inner.startswith("SUM ") or inner.strip().lower().startswith("waived"):
                    break
            ran.append(_text_case(name, block))
    by_name = _by_name(ran)
    # Old versions print only "Waived:" without a name: they mean the test cases that did not run.
    missing = [name for name in wanted if name not in by_name]
    if len(missing) <= waived:
        by_name.update({name: Matrix(name, (), False, waived=True) for name in missing})
    return by_name


def _text_case(name: str, block: list[str]) -> Matrix:
    last = block[-1] if block else ""
    if last.strip().lower().startswith("waived"):
        return Matrix(name, (), False, waived=True)
    if not last.startswith(f"SUM {name} ") or len(block) < 4:
        raise ParseError(f"nvbandwidth: {name} has no end", "run the check again")
    width = len(block[1].split()) if _HEADER.match(block[1]) else 0
    rows: list[Row] = []
    for line in block[2:-1]:
        match = _ROW.match(line)
        if match is None:
            if line.strip():
                raise ParseError(
                    f"nvbandwidth: {name}: not understood: {line.strip()[:80]!r}", "run the check again"
                )
            continue
        row = tuple(_cell(cell, name) for cell in match[2].split())
        if int(match[1]) != len(rows) or len(row) != width:
            raise ParseError(
                f"nvbandwidth: {name}: row {match[1]} does not fit its header", "run the check again"
            )
        rows.append(row)
    return Matrix(name, tuple(rows), _sends_back(block[0]), in_gigabytes=_in_gigabytes(block[0]))
