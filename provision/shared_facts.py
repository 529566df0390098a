"""The facts of many nodes in little memory: most nodes of a fleet have most facts in common."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from typing import Any

_BASES = 32  # kinds of nodes; of further ones every fact is kept


class SharedFacts(Mapping[str, Any]):
    """One node's facts: those of the first node of its kind, but for its own."""

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
    """Where facts are kept together. What is put in is not to be changed any more."""

    def __init__(self) -> None:
        self._bases: list[dict[str, Any]] = []
        self._texts: dict[str, str] = {}
        self._longer: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def of(
        self, facts: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> Mapping[str, Any]:
        """The same facts, sharing equal values of earlier nodes. `check` is given those that no earlier node
        had, before they are kept; what it raises is raised."""
        for base in self._bases:
            if base.keys() == facts.keys():
                # Most are texts, to which only texts are equal. A call for each would cost most.
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
        """The same facts and one more, `name`, which they do not have yet."""
        if not isinstance(facts, SharedFacts) or name in facts:
            return self.of({**facts, name: value})
        if id(facts.base) not in self._longer:
            self._longer[id(facts.base)] = (facts.base, {**facts.base, name: value})
        base = self._longer[id(facts.base)][1]
        return SharedFacts(base, facts.own if _same(base[name], value) else {**facts.own, name: value})

    def _text(self, value: Any) -> Any:
        return self._texts.setdefault(value, value) if isinstance(value, str) else value


def _same(one: Any, other: Any) -> bool:
    """Equal in type and value, all the way down: in Python alone, 1 and true would be equal."""
    if type(one) is not type(other) or one != other:
        return False
    return not isinstance(one, list | dict) or repr(one) == repr(other)
