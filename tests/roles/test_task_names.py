"""Names of tasks, held as text: they are what `up`, AWX and callbacks print when a task fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provision.paths import PLAYBOOKS, ROLES

FILE = Path(__file__).with_name("task_names.txt")
RENEW = "python tests/roles/test_task_names.py"
PRONOUN = re.compile(r"(it|them|that|those|this|these|one|what|which|others?|all|anew|there|cannot),?")


def named() -> dict[str, list[str]]:
    """Task file → names of its plays, blocks, tasks and handlers, from top to bottom."""
    files = [*PLAYBOOKS.glob("*.yml"), *ROLES.glob("*/tasks/*.yml"), *ROLES.glob("*/handlers/*.yml")]
    names = re.compile(r"^ *- name: (.+?)(?: #.*)?$", re.MULTILINE)
    return {str(f.relative_to(ROLES.parent)): names.findall(f.read_text("utf-8")) for f in sorted(files)}


def reviewed_text() -> str:
    return "\n".join("\n  ".join([file, *names]) + "\n" for file, names in named().items())


def has_a_noun(name: str) -> bool:
    """Whether words follow the verb: of a name with a pronoun, one of at least five letters besides it."""
    words = name.split()[1:]
    rest = [word for word in words if not PRONOUN.fullmatch(word)]
    return bool(rest) if rest == words else any(re.search("[a-z_-]{5,}", word) for word in rest)


def test_names_of_tasks_are_the_ones_that_were_reviewed() -> None:
    expected = FILE.read_text("utf-8")
    assert reviewed_text() == expected, f"names of tasks have changed; read them, then renew {FILE}: {RENEW}"


def test_every_name_of_a_task_has_a_noun() -> None:
    assert [name for names in named().values() for name in names if not has_a_noun(name)] == []


@pytest.mark.parametrize("name", ["Explain", "Take it out", "Refuse what cannot work", "Start it anew"])
def test_a_name_without_a_noun_is_found(name: str) -> None:
    assert not has_a_noun(name)


if __name__ == "__main__":
    FILE.write_text(reviewed_text(), encoding="utf-8")
