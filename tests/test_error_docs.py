"""docs/errors.md: every quoted message still exists in the program or in a role."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from provision import paths

PAGE = (paths.DOCS / "errors.md").read_text("utf-8")
# `…` stands for a value, both in the page and here.
QUOTED = re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)
VALUES = re.compile(r"%(?:\.?\d*)?[srdg]|\{\d?[^{} ]*\}")  # for % and format() in modules for old Pythons


def flat(text: str) -> str:
    return re.sub(r"…(?:\s*…)+", "…", " ".join(text.split())).strip("… ")


def of_python(text: str) -> Iterator[str]:
    """Yield the strings of Python source; in f-strings each value becomes `…`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield VALUES.sub("…", node.value)


def of_role(text: str) -> Iterator[str]:
    """Yield a role's text twice: with expressions replaced by `…`, and unchanged for strings inside them."""
    yield re.sub(r"\{\{.*?\}\}", "…", text, flags=re.DOTALL)
    yield text


@cache
def said() -> tuple[str, ...]:
    sources = [path for path in paths.PACKAGE.rglob("*.py") if not {"lab", "_packed"} & set(path.parts)]
    texts = [each for path in sources for each in of_python(path.read_text("utf-8"))]
    tasks = sorted(paths.ROLES.glob("*/tasks/*.yml"))
    texts += [each for path in tasks for each in of_role(path.read_text("utf-8"))]
    return tuple(map(flat, texts))


def test_the_page_has_the_likeliest_errors() -> None:
    assert len(QUOTED) >= 20
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_still_said(quoted: str) -> None:
    assert len(flat(quoted)) > 10, "too short to find"
    assert any(flat(quoted) in text for text in said())


@pytest.mark.parametrize(
    "quoted", ["the host key of … was eaten", "… refused user …; tasted …", "DKMS would not build"]
)
def test_a_message_that_nobody_says_would_be_noticed(quoted: str) -> None:
    assert not any(flat(quoted) in text for text in said())


def test_each_has_a_cause_and_a_fix() -> None:
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        _, _, text = section.partition("\n")
        assert len(text.split("\n## ")[0].split()) >= 10, section
