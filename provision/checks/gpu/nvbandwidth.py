"""What nvbandwidth prints → matrices: its JSON (`-j`) and its text.

Traps: values are strings, a cell without a path is "N/A", an error may sit beside the test cases or in one of
them, and the exit status is 0 all the same.
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
    """One test case. `rows[i][j]` in GB/s, None where there is no path. `columns_send`: data flows column →
    row.

    A waived test case (the machine cannot do it) has no rows.
    """

    name: str
    rows: tuple[Row, ...]
    columns_send: bool
    waived: bool = False
    in_gigabytes: bool = True  # its description ends with its unit: `… bandwidth (GB/s)`


_CORRUPT = re.compile(r"Invalid value when checking the pattern")


# CU_ASSERT and NVML_ASSERT of older versions write this to standard error and exit with 1; with newer ones it
# is in the answer (error_handling.h, RecordError).
_ASSERTED = re.compile(r"^(?:\[(?:CUDA_ERROR_|cudaError)\w+\]|NVML_ERROR: \[).{1,180}", re.MULTILINE)


def printed(output: Output) -> str:
    """What nvbandwidth wrote on standard output. Raises ParseError when it was cut, is empty, or ended with
    an error of CUDA."""
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
    """The test case whose copy arrived with wrong bytes; empty when none did.

    nvbandwidth compares every copy with its pattern and prints ` Invalid value when checking the pattern at
    0x735f80000000`, or `<0x…>` in older versions, on standard output (its memcpy.cpp and kernels.cu).
    """
    match = _CORRUPT.search(text)
    if match is None:
        return ""
    names = re.findall(r"^Running (\S+)\.$|\"name\"\s*:\s*\"(\w+)\"", text[: match.start()], re.MULTILINE)
    return next((one or other for one, other in reversed(names)), "a copy")


def corruption(check: str, case: str) -> Finding:
    """What a copy that arrived with wrong bytes means."""
    message = f"data was corrupted in {case}: nvbandwidth read back other bytes than it had copied"
    return Finding(
        check, Verdict.FAIL, "node", message, "corrupt", case, limit="no wrong byte", action="investigate"
    )


def parse(text: str, wanted: tuple[str, ...]) -> dict[str, Matrix]:
    """The `wanted` test cases of an nvbandwidth run; of one that was run twice, the better rate of each cell.
    Raises ParseError when one is missing or ended in an error.
    """
    begin = re.search(r"^\{", text, re.MULTILINE)
    found = _from_json(text[begin.start() :]) if begin else _from_text(text, wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ParseError(f"nvbandwidth did not report {', '.join(missing)}", "run the check again")
    if foreign := [name for name in wanted if not found[name].in_gigabytes]:
        raise ParseError(
            f"nvbandwidth reports {', '.join(foreign)} in another unit than GB/s", "report the new format"
        )
    return {name: found[name] for name in wanted}


def _sends_back(description: str) -> bool:
    """`GPU(row) <- GPU(column)`: the column is the source. `->` and `<->` count from the row."""
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
    found: dict[str, Matrix] = {}
    for matrix in matrices:
        known = found.get(matrix.name, matrix)
        if [len(row) for row in known.rows] != [len(row) for row in matrix.rows]:
            raise ParseError(
                f"nvbandwidth: {matrix.name} was run twice, with other GPUs", "run the check again"
            )
        rows = [
            tuple(max((one, other), key=lambda rate: rate or 0.0) for one, other in zip(*two, strict=True))
            for two in zip(known.rows, matrix.rows, strict=True)
        ]
        found[matrix.name] = replace(matrix, rows=tuple(rows))
    return found


def _case(case: Mapping[str, Any]) -> Matrix:
    name, status = str(case["name"]), str(case["status"])
    if status == "Waived":
        return Matrix(name, (), False, waived=True)
    if status != "Passed":
        words = " ".join(str(case.get("error") or case.get("output") or "no reason given").split())[:200]
        raise ParseError(f"nvbandwidth: {name} ended with {status}: {words}", "look at the kernel log")
    said = str(case["bandwidth_description"])
    rows = tuple(tuple(_cell(value, name) for value in row) for row in case["bandwidth_matrix"])
    return Matrix(name, rows, _sends_back(said), in_gigabytes=_in_gigabytes(said))


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
    found = _by_name(ran)
    # Old versions write only "Waived:", without saying which: it must be those that did not run.
    missing = [name for name in wanted if name not in found]
    if len(missing) <= waived:
        found.update({name: Matrix(name, (), False, waived=True) for name in missing})
    return found


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
