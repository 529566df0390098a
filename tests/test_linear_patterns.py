"""Every regular expression for foreign text runs in linear time.

Otherwise a node could keep the controller busy for hours with one line of blanks. Patterns are collected from
the packages below and tried with texts derived from them: an example of the part before each repetition, then
many copies of a filler."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from provision import cli

ROOT = Path(cli.__file__).resolve().parent
# All other packages read data of gpuprov or its user.
FOREIGN = ("burnin", "checks", "node", "remote", "report", "up", "validate")
MODES = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
FILLERS = (" ", "\n", "\t", "0", "a", ":", "[", "(", "-", "=", ".", ",", '"', "{", "/", "0 ", "a:")
SHORT, LONG = 4000, 16_000  # characters
SLOW = 0.12  # seconds of CPU for LONG; linear patterns need a thousandth

Used = tuple[str, str, int, str]  # file, pattern, flags, method


def _patterns(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, dict):
        yield from (one for pair in value.items() for each in pair for one in _patterns(each))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (one for each in value for one in _patterns(each))


def used(path: Path) -> set[Used]:
    """Return a module's patterns with the methods called on them; `search` if no method is visible."""
    file = path.relative_to(ROOT).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called: dict[str, set[str]] = {}
    patterns: set[Used] = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, mode = node.func.value, node.func.attr
        if mode not in MODES or not isinstance(owner, ast.Name):
            continue
        called.setdefault(owner.id, set()).add(mode)
        first = node.args[0] if node.args else None
        if owner.id == "re" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            flags = [
                one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr.isupper()
            ]
            patterns.add((file, first.value, sum(getattr(re, flag) for flag in set(flags)), mode))
    if "re.compile" in path.read_text(encoding="utf-8"):
        name = ".".join(("provision", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for variable, value in vars(importlib.import_module(name)).items():
            for pattern in _patterns(value):
                for mode in called.get(variable, {"search"}):
                    patterns.add((file, pattern.pattern, pattern.flags, mode))
    return patterns


def example(items: Any, prefixes: set[str], before: str = "") -> str:
    """Return `before` and a matching text; add the text before each repetition to `prefixes`."""
    made = before
    for kind, value in items:
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
            least, most, inner = value
            if most > 20:
                prefixes.add(made)
            once = example(inner, prefixes, made)
            if most > 20:
                prefixes.add(once)
            made += once[len(made) :] * max(least, 1) if most else ""
        elif kind is kinds.SUBPATTERN:
            made = example(value[-1], prefixes, made)
        elif kind is kinds.ATOMIC_GROUP:
            made = example(value, prefixes, made)
        elif kind is kinds.BRANCH:
            ways = [example(way, prefixes, made) for way in value[1]]
            made = ways[0]
        elif kind is kinds.LITERAL:
            made += chr(value)
        elif kind is kinds.IN:
            made += _one_of(value)
        elif kind in (kinds.ANY, kinds.NOT_LITERAL):
            made += "a" if value != ord("a") else "b"
    return made


def _one_of(choices: Any) -> str:
    words = {kinds.CATEGORY_DIGIT: "0", kinds.CATEGORY_SPACE: " ", kinds.CATEGORY_WORD: "a"}
    kind, value = choices[0]
    if kind is kinds.NEGATE:
        without = {chr(one) for what, one in choices[1:] if what is kinds.LITERAL}
        return next(letter for letter in "a0b-;x" if letter not in without)
    if kind is kinds.CATEGORY:
        return words.get(value, "a")
    return chr(value[0] if kind is kinds.RANGE else value)


def seconds(pattern: re.Pattern[str], mode: str, text: str) -> float:
    began = time.process_time()
    if mode == "sub":
        pattern.sub("", text)
    elif mode == "finditer":
        list(pattern.finditer(text))
    else:
        getattr(pattern, mode)(text)
    return time.process_time() - began


def worst(pattern: re.Pattern[str], mode: str) -> tuple[float, str]:
    """Return the longest time for a text of LONG characters, and the beginning of that text."""
    prefixes = {""}
    example(parser.parse(pattern.pattern, pattern.flags), prefixes)
    slowest = (0.0, "")
    for before in sorted(prefixes):
        for filler in (*FILLERS, *([before] if before else [])):
            text = f"{before}{filler * (SHORT // len(filler))}!"
            if seconds(pattern, mode, text) > SLOW / 40:
                text = f"{before}{filler * (LONG // len(filler))}!"
                taken = min(seconds(pattern, mode, text) for _ in range(2))
                slowest = max(slowest, (taken, f"{before}{filler * 3}"))
                if taken > SLOW:
                    return slowest
    return slowest


@pytest.mark.parametrize("package", FOREIGN)
def test_no_pattern_takes_quadratic_time(package: str) -> None:
    slow = []
    tried = 0
    for path in sorted((ROOT / package).rglob("*.py")):
        if "re." not in path.read_text(encoding="utf-8"):
            continue
        for file, pattern, flags, mode in sorted(used(path)):
            tried += 1
            taken, text = worst(re.compile(pattern, flags), mode)
            if taken > SLOW:
                slow.append(f"{file}: {mode} of {pattern[:80]!r}: {taken:.2f} s for {text[:60]!r}…")
    assert tried > 2
    assert slow == []


def test_what_is_quadratic_is_found() -> None:
    assert worst(re.compile(r"\[([^\]]*)\]"), "search")[0] > SLOW
