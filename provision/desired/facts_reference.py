"""What is known of a fact: its meaning (docs/facts.md), and which expectations and comparisons use it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from provision import paths, yamlfile
from provision.desired.compared import compared_facts
from provision.desired.role import Promise, all_roles
from provision.errors import GpuprovError

_PLACEHOLDER = re.compile(r"(?<![A-Za-z_])[A-Z]{2,}(?![A-Za-z])")  # NAME in package.NAME.version
_TEMPLATE = re.compile(r"\{\{.*?\}\}")


@dataclass(frozen=True)
class Fact:
    """One row's fact: its name with placeholders in capitals, the meaning and form of its value, and whether
    it is observed on every node or only on request."""

    name: str
    meaning: str
    always: bool

    @functools.cached_property
    def form(self) -> re.Pattern[str]:
        """Which names it stands for."""
        literals = map(re.escape, _PLACEHOLDER.split(self.name))
        return re.compile(".+".join(literals))


def all_facts() -> dict[str, Fact]:
    """Every fact of docs/facts.md by name, in its order."""
    text = yamlfile.read_text(paths.DOCS / "facts.md", GpuprovError)
    base, _, requested = text.partition("## Facts on request")
    found: dict[str, Fact] = {}
    for part, always in ((base, True), (requested.partition("\n## ")[0], False)):
        for cell, meaning in re.findall(r"^\| ([^|]*`[^|]*) \| (.*) \|$", part, re.MULTILINE):
            found |= {name: Fact(name, meaning, always) for name in _names(cell)}
    return found


def _names(cell: str) -> Iterator[str]:
    """`file.PATH.exists`, `.mode` are file.PATH.exists and file.PATH.mode."""
    last = ""
    for name in re.findall(r"`([^`]+)`", cell):
        if name.startswith("{"):
            continue  # what may stand in any name
        last = f"{last.rpartition('.')[0]}{name}" if name.startswith(".") else name
        yield last


def find(name: str) -> Fact | None:
    """The fact of this name, or of its form: `package.nvidia-driver.version` is package.NAME.version."""
    facts = all_facts()
    if name in facts:
        return facts[name]
    fitting = [fact for fact in facts.values() if fact.form.fullmatch(name)]
    return max(fitting, key=lambda fact: len(_PLACEHOLDER.sub("", fact.name)), default=None)


def expectations_of(fact: Fact, name: str) -> Iterator[tuple[str, Promise]]:
    """(role, item of its expect.yml) of every expectation about facts of that name."""
    for role in all_roles().values():
        for promise in role.promises:
            literals = list(map(re.escape, _TEMPLATE.split(promise.fact)))
            itself = re.fullmatch(".+".join(literals), name)
            its_kind = name == fact.name and fact.form.fullmatch(_TEMPLATE.sub("x", promise.fact))
            if any(literals) and (itself or its_kind):
                yield role.name, promise


def _shown(value: Any) -> str:
    """On one line, as YAML has it."""
    return " ".join((value if isinstance(value, str) else json.dumps(value)).split())


def explained(name: str, readers: tuple[str, ...]) -> Iterator[str]:
    """The lines of `gpuprov docs NAME` for a fact; `readers` are the checks that read it."""
    fact = find(name)
    if fact is None:
        raise KeyError(name)
    yield name if name == fact.name else f"{name} ({fact.name})"
    yield ""
    yield fact.meaning
    yield ""
    asked = "on every node that is looked at" if fact.always else "where an expectation or a check needs it"
    yield f"observed    {asked}"
    if readers:
        yield f"checks      {', '.join(readers)}"
    for compared in compared_facts().values():
        if name in (compared.fact, compared.source):
            yield f"compared    between nodes of a kind as {compared.fact}: {compared.why}"
    expected = list(expectations_of(fact, name))
    yield f"expected    {'by these roles' if expected else 'by no role'}"
    for role, promise in expected:
        yield f"  {role}: {promise.fact} {promise.operator} {_shown(promise.value)}"
        yield f"    {promise.why}"
    yield ""
    yield "more: gpuprov docs facts"
