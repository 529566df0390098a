"""Compact storage for the facts of many nodes, most of which are equal across a fleet."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from typing import Any

_BASES = 32  # kinds of nodes; facts of further kinds are stored in full


class SharedFacts(Mapping[str, Any]):
    """One node's facts, stored as differences from the first node of its kind."""

    __slots__ = ("base", "own")

    def __init__(self, base: dict[str, Any], own: dict[str, Any]) -> None:
        self.base = base
        self.own = own

    def __getitem__(self, name: str) -> Any:
        return self.own[name] if name in self.own else self.base[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.own[name] if name in self.own else self.base.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.base

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)

    def keys(self) -> KeysView[str]:
        return self.base.keys()

    def items(self) -> ItemsView[str, Any]:
        return {**self.base, **self.own}.items()

    def __repr__(self) -> str:
        return repr({**self.base, **self.own})


class Pool:
    """Shared storage of facts, which must not be modified after they are added."""

    def __init__(self) -> None:
        self._bases: list[dict[str, Any]] = []
        self._texts: dict[str, str] = {}
        self._longer: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def of(
        self, facts: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> Mapping[str, Any]:
        """Return the facts, sharing equal values with earlier nodes.
        `check` is called with the new values before they are stored; its exceptions propagate."""
        for base in self._bases:
            if base.keys() == facts.keys():
                # Most values are texts, which equal only texts; a call for each would take most of the time.
                own = {
                    name: value
                    for name, value in facts.items()
                    if not (value == base[name] if type(value) is str else _same(value, base[name]))
                }
                check(own)
                return SharedFacts(base, {name: self._text(value) for name, value in own.items()})
        check(facts)
        kept = {name: self._text(value) for name, value in facts.items()}
        if len(self._bases) < _BASES:
            self._bases.append(kept)
        return kept

    def of_with(self, facts: Mapping[str, Any], name: str, value: Any) -> Mapping[str, Any]:
        """Return the facts plus a new one, `name`."""
        if not isinstance(facts, SharedFacts) or name in facts:
            return self.of({**facts, name: value})
        if id(facts.base) not in self._longer:
            self._longer[id(facts.base)] = (facts.base, {**facts.base, name: value})
        base = self._longer[id(facts.base)][1]
        return SharedFacts(base, facts.own if _same(base[name], value) else {**facts.own, name: value})

    def _text(self, value: Any) -> Any:
        return self._texts.setdefault(value, value) if isinstance(value, str) else value


def _same(one: Any, other: Any) -> bool:
    """Return whether values are deeply equal including their types; in Python, 1 == True."""
    if type(one) is not type(other) or one != other:
        return False
    return not isinstance(one, list | dict) or repr(one) == repr(other)
