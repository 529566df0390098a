"""Makes the one text that runs on a node out of provision/node/observe/: its own description is there."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection

from provision import paths

_BEFORE = ("files", "probe", "system")
_AFTER = ("answer",)
_OURS = re.compile(
    r"^from provision\.node\.observe\.(?P<file>\w+) import (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE
)


def families() -> frozenset[str]:
    """The families of facts there are: the first words of their names."""
    files = (paths.NODE / "observe").glob("*.py")
    return frozenset(file.stem for file in files) - {"__init__", *_BEFORE, *_AFTER}


def text_for(facts: Collection[str]) -> str:
    """The program that knows these facts, without the call of its `main`.

    Only what is needed is sent: to compile a program costs a node more than to run it."""
    return _text(frozenset(fact.partition(".")[0] for fact in facts) & families())


@functools.lru_cache(maxsize=64)
def _text(wanted: frozenset[str]) -> str:
    needed = wanted.union(*map(_families_of, wanted))
    parts = [_OURS.sub("", _source(name)) for name in (*_BEFORE, *sorted(needed), *_AFTER)]
    return "\n\n".join(parts)


def _families_of(name: str) -> frozenset[str]:
    """The other families a family's file is built on."""
    named = frozenset(found["file"] for found in _OURS.finditer(_source(name))) & families()
    return named.union(*map(_families_of, named))


def _source(name: str) -> str:
    return (paths.NODE / "observe" / f"{name}.py").read_text(encoding="utf-8")
