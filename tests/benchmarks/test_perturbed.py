"""Perturbed tool outputs from a generator independent of the checks: no wrong result passes.
Misjudged outputs are exactly those listed in docs/detection.md. The numbers are fixed, so that a failed run
can be repeated: `python -m benchmarks.detection --perturbed N`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.detection import perturb, perturb_lines, perturb_report, perturb_rows, perturb_trial
from benchmarks.detection.perturb_model import ERROR, HARMLESS, NAMED, Answer, Change, table
from provision.checks.judge import Finding, Verdict

HERE = Path(__file__).parents[1]
DOCUMENT = HERE.parent / "docs/detection.md"
SAMPLE = HERE / "fixtures/gpu_inventory/h100-v13.xml"
FEW = 300


def asked_in_document() -> int:
    """Return the number of outputs behind the document's figures."""
    match = re.search(r"--perturbed (\d+)`", DOCUMENT.read_text("utf-8"))
    assert match is not None
    return int(match[1])


def shown(outcomes: Sequence[Any], what: str) -> str:
    """List the outputs with this property, for a person who has to reproduce them."""
    return "\n".join(
        f"{one['surface']} {one['number']} ({one['node']}) {one['name']}: {one['verdict']} {one['findings']}"
        for one in outcomes
        if one[what]
    )


@pytest.mark.timeout(300)
def test_nothing_wrong_passes_and_every_miss_is_listed() -> None:
    asked = perturb_trial.chosen(FEW)
    found = perturb_trial.outcomes(asked, jobs=1)
    assert len(found) == len(asked)
    assert 0.97 * FEW < len(found) < 1.03 * FEW
    for what in ("wrong_pass", "crash", "alarm"):
        assert not shown(found, what), f"{what}:\n{shown(found, what)}"
    known = perturb_report.listed(DOCUMENT.read_text("utf-8"))
    assert perturb_report.misses(found) == [miss for miss in known if miss[1:3] in asked]


@pytest.mark.parametrize("rows", [4, 9])
def test_a_sample_is_changed_only_where_enough_are_left(rows: int) -> None:
    """Another change of the same output may have removed most rows of a GPU."""
    (row,) = [one for one in table()["telemetry"] if one.name == "held down in one sample"]
    head = "timestamp, index, clocks_event_reasons.active\n"
    text = head + "".join(f"2026/09/21 13:33:{at:02}.000, 0, 0x0\n" for at in range(rows))
    change = perturb_rows.cells(Random(1), Answer(text, 0, ("0000:01:00.0",)), row)  # noqa: S311
    assert (change is None) == (rows == 4)


@pytest.mark.parametrize(
    ("name", "cells", "changes"),
    [
        ("a little warmer", ["61", "62"], True),
        ("a little warmer", ["61", "[Unknown Error]"], False),
        ("a reading with an error", ["61"] * 4, True),
        ("a reading with an error", ["61"] * 3, False),
    ],
)
def test_what_another_change_left_behind_is_no_end(name: str, cells: Sequence[str], changes: bool) -> None:
    (row,) = [one for one in table()["telemetry"] if one.name == name]
    text = "index, temperature.gpu\n" + "".join(f"0, {cell}\n" for cell in cells)
    change = perturb_rows.cells(Random(1), Answer(text, 0, ("0000:01:00.0",)), row)  # noqa: S311
    assert (change is not None) == changes


@pytest.mark.parametrize(("cell", "changes"), [("48.10", True), ("---", False)])
def test_a_rate_that_another_change_took_is_not_slowed(cell: str, changes: bool) -> None:
    row = next(one for one in table()["ib_write_bw"] if "slow" in one.more)
    answer = Answer(f" 65536      5000    48.20    {cell}    0.09\n", 0)
    assert (perturb_lines.perftest(Random(1), answer, row) is not None) == changes  # noqa: S311


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_document_shows_what_all_of_them_gave() -> None:
    count = asked_in_document()
    assert count >= 5000
    found = perturb_trial.outcomes(perturb_trial.chosen(count), jobs=2)
    assert not shown(found, "wrong_pass")
    assert not shown(found, "crash")
    used = {(one["surface"], name) for one in found for name in one["name"].split(" + ")}
    rows = {(surface, row.name) for surface, own in table().items() for row in own}
    assert rows - used == set(), "these rows of the table change nothing that a healthy node prints"
    section = DOCUMENT.read_text("utf-8").partition(perturb_report.BEGIN)[2].partition(perturb_report.END)[0]
    fresh = perturb_report.lines(found, perturb_report.head(count, len(found)))
    assert section.strip() == "\n".join(fresh).strip()


def test_the_documents_figures_are_of_this_generator() -> None:
    assert perturb_report.head(5200, 5200).rpartition(" ")[2] in DOCUMENT.read_text("utf-8"), (
        "the generator was changed: python -m benchmarks.detection --perturbed 5200 --write docs/detection.md"
    )


def test_the_generator_knows_nothing_of_gpuprov() -> None:
    names = ", ".join(f"benchmarks.detection.{name}" for name in perturb.GENERATOR)
    code = f"import sys, {names}; print([name for name in sys.modules if name.startswith('provision')])"
    root = HERE.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_same_number_is_the_same_output_in_any_process() -> None:
    code = (
        "import hashlib, pathlib\n"
        "from benchmarks.detection import perturb\n"
        "from benchmarks.detection.perturb_model import Answer\n"
        f"healthy = Answer(pathlib.Path({str(SAMPLE)!r}).read_text(), 0, ('0000:1b:00.0',) * 8)\n"
        "drawn = [perturb.draw('smi_xml', number, healthy) for number in range(40)]\n"
        "text = ''.join(one.name + one.answer.text for one in drawn)\n"
        "print(hashlib.sha256(text.encode()).hexdigest(), len({one.answer.text for one in drawn}))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=HERE.parent,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert int(said.pop().split()[1]) >= 30, "each number is another output"


def test_every_row_has_a_label_a_source_and_somebody_who_does_it() -> None:
    assert set(table()) == set(perturb_trial.SURFACES) == set(perturb_report.WORDS)
    rows = [row for surface in table().values() for row in surface]
    assert {row.op for row in rows} == set(perturb.OPS), "an op without a row, or a row without its op"
    assert all(len(row.source) > 5 and row.label in (NAMED, ERROR, HARMLESS) for row in rows)
    for surface, own in table().items():
        labels = {row.label for row in own}
        # A node returns the new kernel log lines completely or not at all, so an ERROR row is impossible.
        wanted = {NAMED, HARMLESS} if surface == "kernel_delta" else {NAMED, ERROR, HARMLESS}
        assert labels >= wanted, f"{surface} is not tried for {labels}"


def fault(label: str, device: str) -> perturb.Perturbed:
    row = next(row for row in table()["smi_xml"] if row.label == label)
    change = Change(Answer("", 0), (device,), "")
    return perturb.Perturbed("smi_xml", 0, Answer("", 0), ((row, change),))


@pytest.mark.parametrize(
    ("label", "said", "wrong"),
    [
        (NAMED, [("fail", "gpu3")], ""),
        (NAMED, [("error", "gpu3")], ""),
        (NAMED, [], "wrong pass"),
        (NAMED, [("error", "node")], "error, cause not named"),
        (NAMED, [("warn", "gpu4")], "not named"),
        (NAMED, [("fail", "gpu3"), ("fail", "gpu4")], "wrong blame"),
        (ERROR, [("error", "node")], ""),
        (ERROR, [], "wrong pass"),
        (ERROR, [("fail", "gpu4")], "wrong blame"),
        (HARMLESS, [], ""),
        (HARMLESS, [("warn", "node")], "false alarm"),
    ],
)
def test_what_counts_as_wrong(label: str, said: list[tuple[str, str]], wrong: str) -> None:
    findings = [
        Finding("gpu_inventory", Verdict(verdict), device, "words", action="investigate")
        for verdict, device in said
    ]
    worst = max((f.verdict for f in findings), key=lambda verdict: verdict.badness, default=Verdict.PASS)
    outcome = perturb_trial.scored(fault(label, "gpu3"), "node", worst.value, findings)
    assert perturb_report.kind(outcome) == wrong
