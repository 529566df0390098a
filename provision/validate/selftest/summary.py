"""The closing text of a selftest in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provision.terminal import printable
from provision.text import one_line, spelled
from provision.validate.selftest.page import headline
from provision.validate.selftest.result import (
    NOT_POSSIBLE,
    NOT_PROVEN,
    NOT_TRIED,
    Checked,
    Provoked,
    Result,
    document,
)


def summary(found: Result, output: Path) -> str:
    return printable("\n".join(_lines(found, output)), limit=20_000) + "\n"


def _lines(found: Result, output: Path) -> Iterator[str]:
    yield headline(document(found))
    gpus = f"{found.gpu_count} GPUs ({found.sku or 'unknown SKU'})"
    yield f"  {gpus} · driver {found.driver or 'unknown'} · {found.os} · kernel {found.kernel}"
    yield f"  took {spelled(int(found.seconds))}"
    if found.stopped:
        yield f"  stopped: {one_line(found.stopped, 400)}"
    rows: list[Checked | Provoked] = [*found.checks, *found.provocations, *found.changes]
    for state in (NOT_PROVEN, NOT_POSSIBLE, NOT_TRIED):
        if short := [row for row in rows if row.state == state]:
            yield state
        for row in short:
            yield f"  {row.check if isinstance(row, Checked) else row.name}: {one_line(row.why, 200)}"
    wrong = [
        (one.check, each)
        for one in found.checks
        for each in one.findings
        if each["verdict"] in ("fail", "warn")
    ]
    if wrong:
        yield "found"
    for check, finding in wrong:
        said = one_line(finding["message"], 200)
        yield f"  {finding['verdict']} {check} {finding['device']}: {said}"
    for leftover in found.leftovers:
        yield f"NOT PUT BACK  {one_line(leftover, 400)}"
    if found.shapes or found.shapes_why:
        same = sum(one.same for one in found.shapes)
        shapes = f"{same} of {len(found.shapes)} outputs as the simulator prints them"
        yield f"shapes   {shapes if found.shapes else found.shapes_why}"
    yield f"page     {output / 'selftest.html'}"
    yield f"json     {output / 'selftest.json'}"
    yield f"archive  {output / found.archive}{' (partial)' if found.interrupted else ''}"
