"""Counts phrases of unidiomatic English in docstrings, comments and task names.

python -m tests.support.prose > tests/prose_ceilings.yml    # set the ceilings to the present counts
python -m tests.support.prose FOLDER    # list each marked first line, comment and task name of that folder

The list is rough: a marked phrase may be right where it stands. docs/writing.md has the rules behind it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = ROOT / "tests" / "prose_ceilings.yml"
HEAD = """\
# Marked phrases by tree and kind (tests/support/prose.py). The numbers only fall. After a rewrite:
# python -m tests.support.prose > tests/prose_ceilings.yml
"""
TREES = ("provision", "lab", "roles", "scripts", "benchmarks", "tests")
KINDS = ("first lines", "sentences", "comments", "task names")

MARKED = (
    # data that speaks
    r"told",
    r"(?:tell|say)s? of",
    r"said",
    r"asked|asks",
    # a noun phrase without its noun
    r"what (?:is|was|it|they|he|a|the|such|of|came|one|no|node|can)",
    r"those (?:of|that|who|in)",
    r"whose",
    r"(?:it|this|that) is (?:that|what|who)",
    r"of (?:ours|theirs|its own)",
    r"other ones|another one",
    # nobody in particular
    r"nobody|somebody|whoever",
    # negative or roundabout
    r"is none",
    r"(?:is not|no\b.{1,30}) any more",
    r"(?:has|are|is) to be",
    r"as it (?:is|was|came|stands)",
    r"is there",
    # "where" for a condition
    r"where (?:it|there|that|they)",
    # out of use
    r"anew|beside|but for|in one go|in words|the same of",
)
MARK = re.compile(rf"\b(?:{'|'.join(MARKED)})\b", re.IGNORECASE)
PRONOUN = re.compile(
    r"\b(?:it|them|that|those|this|these|one|what|which|others?|all|anew|there)\b", re.IGNORECASE
)
NOUN = re.compile(r"\b[a-z_-]{5,}\b")
# Far faster than the tokenizer of Python, and the same for code that parses.
STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*''',
    re.DOTALL,
)
NOT_PROSE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|!|---)")
TASK = re.compile(r"\s*- name: (.+)")


@dataclass(frozen=True)
class Text:
    """One piece of prose in a source file."""

    kind: str
    file: Path
    line: int
    text: str

    @property
    def is_marked(self) -> bool:
        if self.kind != "task names":
            return MARK.search(self.text) is not None
        after_verb = self.text.partition(" ")[2]
        return PRONOUN.search(self.text) is not None and not NOUN.search(PRONOUN.sub("", after_verb))


def texts(tree: Path) -> Iterator[Text]:
    """Yield all prose below a folder."""
    for file in sorted((*tree.rglob("*.py"), *tree.rglob("tasks/**/*.yml"))):
        if "_packed" in file.parts or not file.is_file():
            continue
        if file.suffix == ".py":
            yield from of_python(file)
        else:
            lines = file.read_text(encoding="utf-8").splitlines()
            names = ((number, TASK.match(line)) for number, line in enumerate(lines, start=1))
            yield from (Text("task names", file, number, match[1]) for number, match in names if match)


def of_python(file: Path) -> Iterator[Text]:
    """Yield the docstrings and comments of a module."""
    source = file.read_text(encoding="utf-8", errors="replace")
    try:
        module = ast.parse(source)
    except SyntaxError:  # a fixture
        return
    for item in ast.walk(module):
        if isinstance(item, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(item) or ""
            line = getattr(item, "lineno", 1)
            if docstring:
                yield Text("first lines", file, line, docstring.splitlines()[0])
            for sentence in re.split(r"(?<=[.:])\s+", " ".join(docstring.split())):
                yield Text("sentences", file, line, sentence)
    for token in STRING_OR_COMMENT.finditer(source):
        if token[0].startswith("#") and not NOT_PROSE.match(token[0]):
            line = source.count("\n", 0, token.start()) + 1
            yield Text("comments", file, line, token[0].strip("# "))


def counts() -> dict[str, dict[str, int]]:
    """Return the number of marked texts by tree and kind; a kind that a tree lacks is left out."""
    counted: dict[str, dict[str, int]] = {}
    for tree in TREES:
        found = list(texts(ROOT / tree))
        kinds = [kind for kind in KINDS if any(text.kind == kind for text in found)]
        counted[tree] = {kind: sum(text.is_marked for text in found if text.kind == kind) for kind in kinds}
    return counted


def ceilings() -> dict[str, dict[str, int]]:
    """Return the ceilings of tests/prose_ceilings.yml."""
    loaded: dict[str, dict[str, int]] = yaml.safe_load(CEILINGS.read_text(encoding="utf-8"))
    return loaded


def main() -> None:
    if len(sys.argv) == 1:
        counted = counts()  # before the first byte replaces the file
        sys.stdout.write(HEAD + yaml.safe_dump(counted, sort_keys=False))
        return
    for text in texts(Path(sys.argv[1])):
        if text.is_marked and text.kind != "sentences":
            print(f"{text.file}:{text.line}: {text.text}")  # noqa: T201


if __name__ == "__main__":
    main()
