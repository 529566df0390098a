"""Differences between a surface's real shape and the simulator's output, and the accepted ones."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import yaml

from tests.lab_silicon import record_shapes
from tests.lab_silicon.shape import differences
from tests.lab_silicon.surfaces import SURFACES

_real = cache(record_shapes.read)


def compared(name: str, text: str, status: int) -> Counter[str]:
    """Return the differences of this output: `- line` of the real shape, `+ line` of the simulated one."""
    surface, real = SURFACES[name], _real()[name]
    simulated = surface.simulated(text, status)
    return differences(real, _up_to_the_cut(simulated, len(real)) if surface.cut else simulated)


def _up_to_the_cut(simulated: list[str], end: int) -> list[str]:
    """Cut the output where the recording ends, but keep later lines that are unlike all before."""
    return simulated[:end] + [line for line in simulated[end:-1] if line not in simulated[:end]]


@cache
def listed() -> dict[str, Counter[str]]:
    """Return the differences that differences.yml explains; `8 x - line` stands for eight of them."""
    found: dict[str, Counter[str]] = {name: Counter() for name in SURFACES}
    file = Path(__file__).with_name("differences.yml")
    for entry in yaml.safe_load(file.read_text(encoding="utf-8")):
        for name in entry["surfaces"]:
            for line in entry["lines"]:
                times, sign, text = line.partition(" x ")
                found[name][text if sign else line] += int(times) if sign else 1
    return found
