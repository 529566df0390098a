"""Draws a perturbed output: one to three changes of a healthy one, labelled by perturb_table.yml.

The same surface, number and healthy text give the same output, in any process and on any machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.detection import (
    perturb_files,
    perturb_json,
    perturb_lines,
    perturb_rows,
    perturb_text,
    perturb_xml,
)
from benchmarks.detection.perturb_model import TABLE, Answer, Change, Op, Row, table

OPS: dict[str, Op] = {
    **perturb_text.OPS, **perturb_xml.OPS, **perturb_rows.OPS, **perturb_lines.OPS, **perturb_json.OPS,
    **perturb_files.OPS,
}  # fmt: skip


GENERATOR = (
    "perturb", "perturb_files", "perturb_json", "perturb_lines", "perturb_model", "perturb_rows",
    "perturb_text", "perturb_xml",
)  # fmt: skip


@dataclass(frozen=True)
class Perturbed:
    """A perturbed output and the applied changes, in order."""

    surface: str
    number: int
    answer: Answer
    done: tuple[tuple[Row, Change], ...]

    @property
    def name(self) -> str:
        return " + ".join(row.name for row, _ in self.done)


def digest() -> str:
    """Return a digest of the generator; a different one draws other outputs, so its figures differ, too."""
    here = Path(__file__).parent
    own = [TABLE, *(here / f"{name}.py" for name in GENERATOR)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in own)).hexdigest()[:12]


def generator(*words: object) -> Random:
    """Return a random generator seeded by these words, identical on every machine."""
    return Random("/".join(str(word) for word in words))  # noqa: S311 - nothing here is a secret


def draw(surface: str, number: int, healthy: Answer, only: str = "") -> Perturbed:
    """Draw the output with this number; `only`: a single change, by that row of the table."""
    rng = generator("perturbed", surface, number)
    rows = [row for row in table()[surface] if row.name == only or not only]
    wanted = 1 if only else rng.choices((1, 2, 3), (6, 3, 1))[0]
    rows = [row for row in rows if wanted == 1 or not row.alone]
    rng.shuffle(rows)
    final: Row | None = None  # a change that destroys the output comes last
    answer, done, spots = healthy, list[tuple[Row, Change]](), set[str]()
    for row in rows:
        if len(done) + (final is not None) == wanted:
            break
        if row.last:
            final = final or row
            continue
        change = OPS[row.op](rng, answer, row)
        if change is not None and change.spot not in spots and change.answer != answer:
            spots.add(change.spot)
            answer = change.answer
            done.append((row, change))
    if final is not None and (change := OPS[final.op](rng, answer, final)) is not None:
        answer = change.answer
        done.append((final, change))
    assert done, f"no row of {surface} {only} has anything to change"
    return Perturbed(surface, number, answer, tuple(done))
