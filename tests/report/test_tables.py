"""Measurements as tables: exactly the slow cell of the matrix is shaded and marked."""

from __future__ import annotations

from provision.checks.check import Measurement
from provision.checks.judge import Verdict
from provision.report.tables import tables
from tests.support import samples


def test_a_matrix_shades_and_marks_the_slow_pair_in_both_directions() -> None:
    check = samples.demo().nodes[2].checks[2]
    read, write, rest = tables(check)
    assert (read.title, write.title, write.unit, write.matrix) == ("p2p_read", "p2p_write", "GB/s", True)
    marked = {
        (name, head)
        for name, cells in write.rows
        for head, cell in zip(write.heads, cells, strict=True)
        if cell is not None and cell.verdict is Verdict.FAIL
    }
    assert marked == {("gpu2", "gpu6"), ("gpu6", "gpu2")}
    shades = {cell.shade for _, cells in write.rows for cell in cells if cell is not None}
    assert shades == {0, 4}
    assert all(cells[number] is None for number, (_, cells) in enumerate(write.rows))
    assert not any(cell.verdict for _, cells in read.rows for cell in cells if cell is not None)
    assert [name for name, _ in rest.rows] == ["h2d GB/s", "d2h GB/s"]


def test_for_latency_slower_is_worse() -> None:
    rows = [Measurement("latency", value, "us", f"gpu{a}->gpu{b}") for (a, b), value in LATENCIES.items()]
    (table,) = tables(samples.result("p2p_bandwidth", [samples.SLOW], rows, 1.0))
    assert {cell.text: cell.shade for _, cells in table.rows for cell in cells if cell} == {"1": 4, "3": 0}


LATENCIES = {(0, 1): 1.0, (1, 0): 1.0, (0, 2): 1.0, (2, 0): 1.0, (1, 2): 3.0, (2, 1): 1.0}


def test_a_missing_measurement_is_an_empty_cell_not_a_zero() -> None:
    rows = [
        Measurement("rate", 5.0, "Gflop/s", "gpu0"),
        Measurement("rate", 5.0, "Gflop/s", "gpu10"),
        Measurement("errors", 0, "", "gpu0"),
        Measurement("xids", 0, "", "node"),
    ]
    (table,) = tables(samples.result("gpu_burn", [samples.BURN], rows, 1.0))
    assert table.heads == ("node", "gpu0", "gpu10")
    errors = dict(table.rows)["errors"]
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].text == "0"
    assert errors[2] is None
