"""Cache of renderings, each computed once for all nodes, or kinds of machine, with equal inputs.

Ten thousand nodes with the same variables are one computation, though each has its own address. The inputs
are recorded: a computation that read these names and got these values would read the same again.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
_ABSENT = "\0absent"  # a text that no variable has, unlike null


class RenderCache(Generic[Result]):
    """Cache with `get(variables, extra, compute)`, where `compute` adds each name it reads to a set.

    A name with dots is a value in nested mappings, "" is everything (see Tracked). Values must not be changed
    in place, because nodes share them, and shared values are read only once."""

    def __init__(self) -> None:
        self._by_names: dict[tuple[str, ...], dict[Hashable, Result]] = {}
        self._last: dict[str, tuple[Any, Hashable]] = {}

    def get(
        self,
        variables: Mapping[str, Any],
        extra: Hashable,
        compute: Callable[[set[str]], Result],
        read: set[str] | None = None,
    ) -> Result:
        """Return the cached result for equal values of the names that were read, else a new one.
        Those names are added to `read`, for a result that consists of several."""
        variables = _flat(variables)
        # The names read depend on the values (a false `when` reads no further), so each earlier set is tried.
        for names, results in self._by_names.items():
            key = self._key(variables, names, extra)
            if key in results:
                result = results[key]
                break
        else:
            reads: set[str] = set()
            result = compute(reads)
            names = tuple(sorted(reads))
            self._by_names.setdefault(names, {})[self._key(variables, names, extra)] = result
        if read is not None:
            read.update(names)
        return result

    def _key(self, variables: Mapping[str, Any], names: tuple[str, ...], extra: Hashable) -> Hashable:
        get = variables.get
        # Names of variables have no dots; this short cut runs for each of them on every node.
        values = [
            get(name, _ABSENT) if name and "." not in name else _value(variables, name) for name in names
        ]
        return (
            extra,
            *[
                value if type(value) is str else self._frozen(name, value)
                for name, value in zip(names, values, strict=True)
            ],
        )

    def _frozen(self, name: str, value: Any) -> Hashable:
        """Freeze a value once; `groups` alone, with all names on every node, would cost seconds otherwise."""
        # Compared by identity; the stored reference keeps the value alive, so no other object gets its id.
        last = self._last.get(name)
        if last is None or last[0] is not value:
            last = self._last[name] = (value, frozen(value))
        return last[1]


def _flat(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge a chain of dictionaries, because a hundred lookups in a chain cost ten times as much."""
    if not isinstance(variables, ChainMap):
        return variables
    merged: dict[str, Any] = {}
    for each in reversed(variables.maps):  # the first map of a chain wins, so it comes last
        merged.update(each)
    return merged


def _value(variables: Mapping[str, Any], name: str) -> Any:
    value: Any = variables
    for key in filter(None, name.split(".")):  # "" has no keys: it is the whole mapping
        if not isinstance(value, Mapping) or key not in value:
            return _ABSENT
        value = value[key]
    return value


def frozen(value: Any) -> Hashable:
    """Return a hashable stand-in that is equal for equal values of equal types (1, true and 1.0 differ)."""
    if isinstance(value, str):
        return value
    return (type(value).__name__, json.dumps(value, sort_keys=True, default=repr))


class Tracked(Mapping[str, Any]):
    """View of nested mappings that adds the name of each value that is read to `reads`.
    A mapping that is read as a whole is such a value.

    >>> view = Tracked({"os": {"id": "debian", "arch": "x86_64"}}, set())
    >>> view["os"]["id"], view.reads
    ('debian', {'os.id'})
    """

    def __init__(self, of: Mapping[str, Any], reads: set[str], name: str = "") -> None:
        self._of = of
        self._name = name
        self.reads = reads

    def __getitem__(self, key: str) -> Any:
        name = f"{self._name}.{key}" if self._name else key
        value = self._of.get(key)
        if isinstance(value, Mapping):
            return Tracked(value, self.reads, name)  # no read is recorded until a value in it is used
        self.reads.add(name)  # before a KeyError: that a key was missing is a value, too
        return self._of[key]

    def __iter__(self) -> Iterator[str]:
        self.reads.add(self._name)
        return iter(self._of)

    def __len__(self) -> int:
        self.reads.add(self._name)
        return len(self._of)
