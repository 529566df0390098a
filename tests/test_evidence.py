"""Every text of a tool that the code compares with is listed in docs/evidence.yml, with its source."""

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
CAPTURES = os.environ.get("GPUPROV_CAPTURES", "")  # recordings outside this repository
KINDS = {"capture", "program", "binary", "source", "document", "thread", "own", "ours"}
FOLDERS = (
    *(
        f"checks/{folder}"
        for folder in (
            "gpu",
            "host",
            "kernel",
            "kernel/vendors",
            "network",
            "nccl",
            "pairs",
            "vendors/amd",
            "vendors/nvidia",
        )
    ),
    *("node/observe", "node/burnin", "node/modules"),
)
FILES = (
    *(f"checks/{name}.py" for name in ("check", "judge", "judging/own", "judging/registry", "judging/table")),
    *("drift/diagnosis.py", "remote/ansible/messages.py", "remote/schedulers/slurm_text.py"),
    *(f"remote/schedulers/kubernetes/{name}.py" for name in ("__init__", "cluster", "objects", "published")),
    *(f"remote/workers/{name}.py" for name in ("causes", "control", "mesh", "units")),
)
READERS = [
    *(path for folder in FOLDERS for path in sorted(PACKAGE.glob(f"{folder}/*.py"))),
    *(PACKAGE / name for name in FILES),
]
ENTRIES: list[dict[str, Any]] = load(DOCS / "evidence.yml")
COMPARING = {
    "startswith", "endswith", "find", "rfind", "index", "rindex", "partition", "rpartition", "split",
    "rsplit", "count", "removeprefix", "removesuffix", "get", "findtext", "findall",
}  # fmt: skip
SEARCHING = {
    "labelled",
    "units_shown",
    "within",
}  # our functions that search their first argument for the others


def constants(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str | bytes):
            yield one.value.decode() if isinstance(one.value, bytes) else one.value


def is_a_tools(text: str) -> bool:
    """Check whether a text is a tool's, because it has a blank, a capital or a special character.

    A single lowercase word may be a name of ours as well as a tool's key or word, so such words are not
    detected here. tests/lab_silicon/test_printed.py covers the keys of dcgmi and nvbandwidth.
    """
    return (
        re.search(r"[A-Z]|[A-Za-z]{3}", text) is not None and re.fullmatch(r"[a-z0-9_./\[\]-]+", text) is None
    )


def operands(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the operands that a comparison in this expression or statement compares with."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in COMPARING or _is_re(node):
            yield from node.args[:1]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SEARCHING:
        yield from node.args[1:]
    elif isinstance(node, ast.Compare):
        yield from (one for one in (node.left, *node.comparators) if not isinstance(one, ast.Call))
    elif isinstance(node, ast.match_case):
        yield node.pattern


def _is_re(node: ast.Call) -> bool:
    called = node.func
    return (
        isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "re"
    )


def compared(path: Path) -> set[str]:
    """Return the patterns and compared texts of a file, except our own names."""
    results: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        texts = {one for operand in operands(node) for one in constants(operand)}
        if isinstance(node, ast.Call) and _is_re(node):
            results |= {one for one in texts if re.search(r"[A-Za-z]{3}", one)}
        else:
            results |= {one for one in texts if is_a_tools(one)}
    return results


def compared_by_name() -> set[str]:
    """Return `file: NAME` of constants with a tool's texts that are compared or iterated over by name."""
    trees = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in READERS}
    used = set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        through = [node.iter] if isinstance(node, ast.For | ast.comprehension) else []
        for one in (inner for operand in (*operands(node), *through) for inner in ast.walk(operand)):
            used |= {one.id} if isinstance(one, ast.Name) else set()
            used |= {one.attr} if isinstance(one, ast.Attribute) else set()
    return {
        f"{file}: {name}"
        for file, tree in trees.items()
        for name, value in _assigned(tree)
        if name in used and not _is_a_pattern(value) and any(map(is_a_tools, constants(value)))
    }


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and not target.id.startswith("__"):
                    yield target.id, node.value


def _is_a_pattern(value: ast.AST) -> bool:
    """Check for a compiled pattern; the search for patterns covers its text."""
    return isinstance(value, ast.Call) and _is_re(value)


_IN_ROLES = (
    r"'([^']+)' (?:not )?in __\w+\.(?:std|content)\w*",
    r"is (?:not )?(?:search|match)\('([^']+)'",
    r"regex_(?:search|findall)\('([^']+)'",
    r"select\('(?:search|match)', '([^']+)'",
    r"__\w+\.std(?:out|err) [!=]= '([^']+)'",
    r"(?m)^  (?:equals|one_of|contains|matches): .*'([^'\n]+)'",
)


def compared_by_role(path: Path) -> set[str]:
    """Return the texts that a role searches for in command output or expects of a fact."""
    text = path.read_text("utf-8")
    return {one for pattern in _IN_ROLES for one in re.findall(pattern, text) if is_a_tools(one)}


def everything_compared() -> dict[str, set[str]]:
    """Return file → texts compared in that file."""
    by_file = {str(path.relative_to(PACKAGE)): compared(path) for path in READERS}
    by_file |= {
        str(path.relative_to(ROOT)): compared_by_role(path)
        for part in ("tasks/*.yml", "vars/*.yml", "expect.yml")
        for path in ROOT.glob(f"roles/*/{part}")
        if path.name != "preflight.yml"  # judges input written by a person
    }
    return {file: texts for file, texts in by_file.items() if texts}


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


def test_every_table_that_is_compared_with_is_listed() -> None:
    known = {table for entry in ENTRIES for table in entry.get("tables", ())}
    assert sorted(compared_by_name() - known) == [], "write in docs/evidence.yml where its texts were seen"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("text.startswith(f'GPU {index}: ')", "GPU "),
        ("text.rfind('</log>')", "</log>"),
        ("line.endswith(' C')", " C"),
        ("cell == 'N/A'", "N/A"),
        ("cell in ('Yes', 'No')", "No"),
        ("re.search('Fatal ' + 'Error', text)", "Fatal "),
    ],
)
def test_a_compared_text_is_found_in_each_form(line: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "reader.py"
    file.write_text(f"import re\n{line}\n", encoding="utf-8")
    assert compared(file) >= {text}


def test_a_text_of_a_case_is_found(tmp_path: Path) -> None:
    file = tmp_path / "reader.py"
    file.write_text("match text:\n    case 'GPU is lost':\n        pass\n", encoding="utf-8")
    assert compared(file) == {"GPU is lost"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["tool"])
def test_an_entry_says_where_its_texts_were_seen(entry: dict[str, Any]) -> None:
    assert entry["evidence"] in KINDS
    assert len(entry["seen"]) > 5
    assert any(entry.get("texts", {}).values()) or entry.get("tables")
    for table in entry.get("tables", ()):
        file, name = table.split(": ")
        tree = ast.parse((PACKAGE / file).read_text("utf-8"))
        names = {known for known, _ in _assigned(tree)}
        assert name in names, table
    for capture in re.findall(r"[\w.*-]+\.(?:txt|xml|csv|log|tsv)\b", entry["seen"]):
        if CAPTURES:
            assert list(Path(CAPTURES).glob(capture)), f"no such capture: {capture}"


def test_what_only_our_simulator_prints_is_shown() -> None:
    page = (DOCS / "detection.md").read_text("utf-8").split("<!-- ours alone: begin -->")[1]
    shown = page.split("<!-- ours alone: end -->")[0].strip()
    rows = [f"| {entry['tool']} | {entry['seen']} |" for entry in ENTRIES if entry["evidence"] == "ours"]
    assert shown == "\n".join(["| text of | what is known |", "|---|---|", *rows])
