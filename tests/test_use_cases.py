"""At least one test really runs each use case of the command line; tests/use_cases.yml lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from provision import cli
from provision.commands.parser import Parser

TESTS = Path(__file__).resolve().parent
LIST = yaml.safe_load((TESTS / "use_cases.yml").read_text(encoding="utf-8"))
CASES = {(verb, case): test for verb, cases in LIST["use_cases"].items() for case, test in cases.items()}
MISSING = {key: test for key, test in CASES.items() if test.startswith("missing:")}
# Marks of a replaced part of the product. (Environment and current folder belong to the operator.)
FAKES = re.compile(r"\bsetattr\(|\bsetitem\(sys\.modules|\bimport mock\b|\bmock\.|\bMagicMock\b|\bvalidate=")
IMPORTS = re.compile(r"^\s*from (tests[\w.]*) import ([\w, ]+)", re.M)


def parsers() -> dict[str, Parser]:
    return cli.build_parser().verbs


def derived(verb: str, parser: Parser) -> Iterator[str]:
    """Yield a verb's use cases from its parser; the usual subverb's use cases count as the verb's own.
    Options of the lab's verbs are excluded, because the lab is another distribution."""
    if not parser.verbs:
        yield ""
        yield from options(verb, parser)
    for subverb, child in parser.verbs.items():
        before = "" if subverb == parser.usual else subverb
        yield before
        for case in options(verb, child) if verb != "lab" else ():
            yield f"{before} {case}".strip()


def options(verb: str, parser: Parser) -> Iterator[str]:
    settings = {"--help", *LIST["settings"]["all"], *LIST["settings"].get(verb, ())}
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if names and not settings.intersection(names):
            choices = list(action.choices or ()) or list(getattr(action.type, "known", ()))
            yield from [f"{names[0]} {choice}" for choice in choices] or [names[0]]


DERIVED = {(verb, case) for verb, parser in parsers().items() for case in derived(verb, parser)}


def test_verbs_and_options_have_an_entry_each() -> None:
    assert parsers().keys() == cli.COMMANDS.keys()
    free = {key for key in CASES if key[1].startswith("(")}
    assert sorted(DERIVED - CASES.keys()) == [], "add each to tests/use_cases.yml"
    assert sorted(CASES.keys() - free - DERIVED) == [], "there is no such verb, option or choice any longer"


def test_the_number_of_use_cases_without_a_test_falls() -> None:
    listed = "\n".join(f"gpuprov {verb} {case}: {why}" for (verb, case), why in MISSING.items())
    print(listed)  # noqa: T201 - shown by pytest -s, and on failure
    assert len(MISSING) == LIST["missing_at_most"], f"set missing_at_most to the lower number\n{listed}"


@cache
def source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@cache
def modules_of(file: Path) -> frozenset[Path]:
    """Return a test's modules: `file`, its conftest.py files, and their imports within tests."""
    folders = [parent for parent in file.parents if TESTS in (parent, *parent.parents)]
    modules: set[Path] = set()
    waiting = [file, *(folder / "conftest.py" for folder in folders)]
    while waiting:
        path = waiting.pop()
        if path in modules or not path.is_file():
            continue
        modules.add(path)
        for module, names in IMPORTS.findall(source(path)):
            base = TESTS.parent.joinpath(*module.split("."))
            waiting += [base.with_suffix(".py"), *(base / f"{name.strip()}.py" for name in names.split(","))]
    return frozenset(modules)


@cache
def fakes(file: Path) -> list[str]:
    """Return the modules of a test that replace a part of the product."""
    return sorted(one.relative_to(TESTS).as_posix() for one in modules_of(file) if FAKES.search(source(one)))


def calls(word: str, text: str) -> bool:
    return re.search(rf"""["'\s]{re.escape(word)}["'\s=]""", text) is not None


@pytest.mark.parametrize(("verb", "case"), sorted(CASES.keys() - MISSING.keys()))
def test_it_is_run_for_real(verb: str, case: str) -> None:
    place, _, name = CASES[verb, case].partition("::")
    file = TESTS / place
    assert file.is_file(), f"there is no tests/{place}"
    assert re.search(rf"^def {name}\(", source(file), re.M), f"tests/{place} has no {name}"
    assert fakes(file) == [], "these replace a part of the product"
    helpers = "\n".join(map(source, modules_of(file)))
    assert calls(verb, helpers), f"nothing there calls gpuprov {verb}"
    for word in () if case.startswith("(") else case.split():
        assert calls(word, source(file)), f"nothing in tests/{place} gives {word}"


def test_a_fake_is_found_where_it_is_and_where_it_is_imported() -> None:
    assert fakes(TESTS / "up" / "test_up_run.py") == ["support/up.py", "up/test_up_run.py"]
    assert fakes(TESTS / "up" / "test_health_gate.py") == [
        *("support/machines.py", "support/up.py", "up/test_health_gate.py"),
    ]
    assert fakes(TESTS / "validate" / "test_jobs.py") == ["support/machines.py"]


def test_init_writes_and_overwrites_an_inventory(tmp_path: Path) -> None:
    def init(*words: str) -> int:
        program = [sys.executable, "-P", "-m", "provision.cli", "init", *words]
        return subprocess.run(program, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode

    assert init("--host", "node-a", "--host", "node-b") == 0
    written = (tmp_path / "inventory.yml").read_text(encoding="utf-8")
    assert "node-a" in written
    assert "node-b" in written
    assert init() == 2
    assert init("--force") == 0
    assert "node-a" not in (tmp_path / "inventory.yml").read_text(encoding="utf-8")
