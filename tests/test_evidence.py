"""Every text of a tool that is compared with stands in docs/evidence.yml, with where it was seen."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.yamlfile import load

PACKAGE = Path(cli.__file__).resolve().parent
ROOT = PACKAGE.parent
DOCS = ROOT / "docs"
CAPTURES = os.environ.get("GPUPROV_CAPTURES", "")  # recordings, which are not part of this repository
KINDS = {"capture", "program", "binary", "source", "document", "thread", "own", "ours"}
READERS = sorted(
    path
    for pattern in ("checks/*.py", "pairs/*.py", "node/observe/*.py", "node/burnin/*.py", "diagnosis.py")
    for path in PACKAGE.glob(pattern)
)
ENTRIES: list[dict[str, Any]] = load(DOCS / "evidence.yml")
COMPARING = {
    "startswith", "endswith", "find", "index", "partition", "rpartition", "split", "count", "removeprefix",
    "get", "findtext", "findall",
}  # fmt: skip


def constants(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str | bytes):
            yield one.value.decode() if isinstance(one.value, bytes) else one.value


def is_a_tools(text: str) -> bool:
    """Names of ours are single words of small letters; what has a blank, a capital or a sign is a tool's."""
    return re.search(r"[A-Za-z]{3}", text) is not None and re.fullmatch(r"[a-z0-9_./\[\]-]+", text) is None


def compared(path: Path) -> set[str]:
    """The patterns of a file, and the texts that it compares with and that are no names of ours."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func
            if isinstance(called.value, ast.Name) and called.value.id == "re":
                found |= {one for one in constants(node.args[0]) if re.search(r"[A-Za-z]{3}", one)}
            elif called.attr in COMPARING:
                found |= {one for argument in node.args[:1] for one in constants(argument) if is_a_tools(one)}
        elif isinstance(node, ast.Compare):
            sides = [one for one in (node.left, *node.comparators) if not isinstance(one, ast.Call)]
            found |= {one for side in sides for one in constants(side) if is_a_tools(one)}
    return found


def compared_by_role(path: Path) -> set[str]:
    """The texts that a role's tasks look for in what a command printed."""
    text = path.read_text("utf-8")
    found = re.findall(r"'([^']+)' (?:not )?in __\w+\.std(?:out|err)", text)
    return {*found, *re.findall(r"\.std(?:out|err)\b[^\n']* is search\('([^']+)'", text)}


def everything_compared() -> dict[str, set[str]]:
    """File → the texts in it."""
    found = {str(path.relative_to(PACKAGE)): compared(path) for path in READERS}
    found |= {
        str(path.relative_to(ROOT)): compared_by_role(path) for path in ROOT.glob("roles/*/tasks/*.yml")
    }
    return {file: texts for file, texts in found.items() if texts}


def listed() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in ENTRIES:
        for file, texts in entry.get("texts", {}).items():
            found.setdefault(file, set()).update(texts)
    return found


def test_every_compared_text_is_listed_with_its_evidence() -> None:
    known = listed()
    missing = {
        f"{file}: {text}"
        for file, texts in everything_compared().items()
        for text in texts - known.get(file, set())
    }
    assert sorted(missing) == [], "write in docs/evidence.yml where each of them was seen"


def test_no_listed_text_is_gone() -> None:
    there = everything_compared()
    gone = {f"{file}: {text}" for file, texts in listed().items() for text in texts - there.get(file, set())}
    assert sorted(gone) == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["tool"])
def test_an_entry_says_where_its_texts_were_seen(entry: dict[str, Any]) -> None:
    assert entry["evidence"] in KINDS
    assert len(entry["seen"]) > 5
    assert any(entry.get("texts", {}).values()) or entry.get("tables")
    for table in entry.get("tables", ()):
        file, name = table.split(": ")
        tree = ast.parse((PACKAGE / file).read_text("utf-8"))
        names = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        assert name in names, table
    for capture in re.findall(r"[\w.*-]+\.(?:txt|xml|csv|log|tsv)\b", entry["seen"]):
        if CAPTURES:
            assert list(Path(CAPTURES).glob(capture)), f"no such capture: {capture}"


def test_what_only_our_simulator_prints_is_shown() -> None:
    page = (DOCS / "detection.md").read_text("utf-8").split("<!-- ours alone: begin -->")[1]
    shown = page.split("<!-- ours alone: end -->")[0].strip()
    rows = [f"| {entry['tool']} | {entry['seen']} |" for entry in ENTRIES if entry["evidence"] == "ours"]
    assert shown == "\n".join(["| text of | what is known |", "|---|---|", *rows])
