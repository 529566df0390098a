"""Tables of measurements: metrics by devices, and a matrix for measurements between two devices (pure)."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.checks.check import Measurement
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, number
from provision.node_names import natural
from provision.text import one_line, quantity

_PAIR = re.compile(r"^(.*\D|)(\d+)->(.*\D|)(\d+)$")
_LARGEST = 72  # devices along a matrix: a GB200 NVL72 domain; more is a list
# Share of the matrix's median → shade; each also shows its number. Below the first: the worst shade.
_SHADES = (0.5, 0.8, 0.9, 0.97, 1.03)


@dataclass(frozen=True)
class Cell:
    """One value as shown. `verdict` is that of a finding which names this very measurement, else None."""

    text: str
    shade: int | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Table:
    """`heads` are the columns after the first; a row is its name and a cell per head (None: not measured)."""

    title: str
    unit: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    matrix: bool = False


def tables(check: CheckResult) -> list[Table]:
    """All measurements of a check: a matrix per metric between pairs, then one table of the rest."""
    marked = blamed(check.findings)
    pairs: dict[tuple[str, str], list[Measurement]] = {}
    rest: list[Measurement] = []
    for row in check.measurements:
        if _PAIR.match(row.device):
            pairs.setdefault((row.metric, row.unit), []).append(row)
        else:
            rest.append(row)
    found = []
    for (metric, unit), rows in pairs.items():
        table = _matrix(metric, unit, rows, marked)
        if table is None:
            rest += rows
        else:
            found.append(table)
    return [*found, *([_plain(rest, marked)] if rest else [])]


def blamed(findings: Iterable[Finding]) -> dict[tuple[str, str], Verdict]:
    """(metric, device) → verdict of what is no pass; a finding on the pair gpu2-gpu6 is one on both of its
    directions."""
    found: dict[tuple[str, str], Verdict] = {}
    for finding in findings:
        if finding.verdict is Verdict.PASS:
            continue
        devices = [finding.device]
        if "->" not in finding.device and finding.device.count("-") == 1:
            one, other = finding.device.split("-")
            devices += [f"{one}->{other}", f"{other}->{one}"]
        for device in devices:
            found[finding.metric, device] = finding.verdict
    return found


def _matrix(
    metric: str, unit: str, rows: Sequence[Measurement], marked: dict[tuple[str, str], Verdict]
) -> Table | None:
    values = {tuple(row.device.split("->", 1)): row for row in rows}
    names = sorted({name for pair in values for name in pair}, key=natural)
    if len(names) > _LARGEST:
        return None
    numbers = [
        v for pair, row in values.items() if pair[0] != pair[1] and (v := number(row.value)) is not None
    ]
    middle = statistics.median(numbers) if numbers else 0.0
    faster_is_better = unit.endswith("/s")

    def cell(source: str, target: str) -> Cell | None:
        row = values.get((source, target))
        if row is None:
            return None
        shade = None if source == target else _shade(number(row.value), middle, faster_is_better)
        return Cell(quantity(row.value), shade, marked.get((metric, row.device)))

    cells = tuple((one_line(a, 40), tuple(cell(a, b) for b in names)) for a in names)
    return Table(
        one_line(metric, 80), one_line(unit, 40), tuple(one_line(name, 40) for name in names), cells, True
    )


def _shade(value: float | None, middle: float, faster_is_better: bool) -> int | None:
    """0 (far worse than the median) to 5 (better); None for what has no better and worse."""
    if value is None or middle <= 0 or value != value:
        return None
    share = value / middle if faster_is_better else middle / value if value > 0 else 0.0
    return sum(share >= step for step in _SHADES)


def _plain(rows: Sequence[Measurement], marked: dict[tuple[str, str], Verdict]) -> Table:
    devices = sorted({row.device for row in rows}, key=lambda name: (name != "node", natural(name)))
    metrics = dict.fromkeys((row.metric, row.unit) for row in rows)
    values = {(row.metric, row.unit, row.device): row for row in rows}

    def cell(metric: str, unit: str, device: str) -> Cell | None:
        row = values.get((metric, unit, device))
        return None if row is None else Cell(quantity(row.value), None, marked.get((metric, device)))

    return Table(
        "",
        "",
        tuple(one_line(device, 40) for device in devices),
        tuple(
            (
                f"{one_line(metric, 80)} {one_line(unit, 40)}".strip(),
                tuple(cell(metric, unit, d) for d in devices),
            )
            for metric, unit in metrics
        ),
    )
