"""Cache of renderings, shared by all nodes whose relevant variables are equal.

Ten thousand nodes with the same variables are one question, though each has its own address. What matters
is found by watching: a computation that read these names and got these values would read the same again.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
_ABSENT = "\0absent"


class Memo(Generic[Answer]):
    """`get(variables, extra, compute)`: `compute` is given a set to which it adds each name it looks at.

    Values may not be changed in place: nodes share what they have in common, and that is looked at once."""

    def __init__(self) -> None:
        self._by_names: dict[tuple[str, ...], dict[Hashable, Answer]] = {}
        self._last: dict[str, tuple[Any, Hashable]] = {}

    def get(
        self,
        variables: Mapping[str, Any],
        extra: Hashable,
        compute: Callable[[set[str]], Answer],
        mattered: set[str] | None = None,
    ) -> Answer:
        """The remembered answer for equal values of the names that mattered, else a new one. Those names are
        added to `mattered`, for an answer made of several."""
        variables = _flat(variables)
        for names, answers in self._by_names.items():
            key = self._key(variables, names, extra)
            if key in answers:
                answer = answers[key]
                break
        else:
            looked_at: set[str] = set()
            answer = compute(looked_at)
            names = tuple(sorted(looked_at))
            self._by_names.setdefault(names, {})[self._key(variables, names, extra)] = answer
        if mattered is not None:
            mattered.update(names)
        return answer

    def _key(self, variables: Mapping[str, Any], names: tuple[str, ...], extra: Hashable) -> Hashable:
        return (extra, *(self._frozen(name, variables.get(name, _ABSENT)) for name in names))

    def _frozen(self, name: str, value: Any) -> Hashable:
        """`groups` is all nodes' names, on every node: frozen for each, it alone would cost seconds."""
        if isinstance(value, str):
            return value
        last = self._last.get(name)
        if last is None or last[0] is not value:
            last = self._last[name] = (value, frozen(value))
        return last[1]


def _flat(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chain of dictionaries as one: a hundred lookups in a chain cost ten times as much."""
    if type(variables) is not ChainMap:
        return variables
    found: dict[str, Any] = {}
    for each in reversed(variables.maps):
        found.update(each)
    return found


def frozen(value: Any) -> Hashable:
    """A hashable stand-in that is equal for equal values of equal types (1, true and 1.0 are three)."""
    if isinstance(value, str):
        return value
    return (type(value).__name__, json.dumps(value, sort_keys=True, default=repr))
