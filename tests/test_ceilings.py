"""The repository stays within its ceilings: lines per part, and the time that CI takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ceilings import LINES, ceiling, seconds_of_ci

ROOT = Path(__file__).resolve().parents[1]


def lines(part: Mapping[str, Any], root: Path = ROOT) -> int:
    """Count the lines of all files that match a pattern of the part."""
    files = {path for pattern in part["counts"] for path in root.glob(pattern)}
    kept = [
        path
        for path in files
        if not path.relative_to(root).as_posix().startswith(tuple(part.get("without", ())))
    ]
    return sum(path.read_bytes().count(b"\n") for path in kept)


@pytest.mark.parametrize("name", sorted(LINES))
def test_each_part_stays_below_its_ceiling(name: str) -> None:
    counted, limit = lines(LINES[name]), ceiling(LINES[name])
    assert counted <= limit, (
        f"{name} has {counted} lines, {counted - limit} above its ceiling: delete as many, "
        f"or add the reason to `changes` in tests/ceilings.yml"
    )


@pytest.mark.parametrize("name", sorted(LINES))
def test_each_change_of_a_ceiling_has_a_reason(name: str) -> None:
    for change in LINES[name]["changes"]:
        assert len(change["why"].split()) >= 5, f"{name}: by {change['by']} needs a reason in a sentence"


def test_lines_above_a_ceiling_are_found(tmp_path: Path) -> None:
    (tmp_path / "provision" / "lab").mkdir(parents=True)
    (tmp_path / "provision" / "one.py").write_text("a\nb\n")
    (tmp_path / "provision" / "lab" / "two.py").write_text("a\n" * 50)
    part = {"counts": ["provision/**/*.py"], "without": ["provision/lab/"], "begun_at": 1, "changes": []}
    assert lines(part, tmp_path) == 2 > ceiling(part)
    assert ceiling(part | {"changes": [{"by": 1, "why": "two lines are needed for the pair"}]}) == 2


def test_a_part_that_takes_longer_than_its_ceiling_is_marked() -> None:
    reports = [
        SimpleNamespace(nodeid="tests/lab/test_a.py::test_one", duration=2.0),
        SimpleNamespace(nodeid="tests/lab/test_a.py::test_two", duration=2.0),
        SimpleNamespace(nodeid="tests/test_b.py::test_one", duration=0.1),
        SimpleNamespace(message="a warning"),
    ]
    ceilings = {"lab": {"begun_at": 3, "changes": []}}
    assert seconds_of_ci(reports, ceilings).endswith(": lab 4! (3)")
