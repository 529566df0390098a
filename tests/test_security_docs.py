"""SECURITY.md names a test for each promise, and each named test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def test_every_promise_has_a_test() -> None:
    promised = TEXT.split("## What gpuprov promises", 1)[1].split("\n## ", 1)[0]
    names = re.findall(r"^- \*\*(.+?)\.\*\*", promised, re.MULTILINE)
    rows = dict(re.findall(r"^\| ([A-Z][\w ]+) \| (`tests/.*) \|$", promised, re.MULTILINE))
    assert len(names) >= 8
    assert {*rows} == {*names}


def test_every_named_test_exists() -> None:
    named = NAMED.findall(TEXT)
    assert len(named) > 20
    for path, function in named:
        assert (ROOT / path).is_file(), path
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), function
