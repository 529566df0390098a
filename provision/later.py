"""Lazily loaded report rows, because a fleet has far more measurements than a report shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Who can read rows again."""

    def rows(self, node: int, check: int) -> tuple[T_co, ...]:
        """Those of one check of one node, both by their places in the report."""

    def mentions(self, node: int, metric: str) -> bool:
        """Whether any row of this node is of this metric; cheaper than reading them."""


class Later(Sequence[T]):
    """The rows of one check on one node, equal to the tuple of them. `wrong`: those that are no pass, which
    every report tells, and which are therefore at hand."""

    __slots__ = ("_check", "_node", "_source", "wrong")

    def __init__(self, source: Source[T], node: int, check: int, wrong: tuple[T, ...] = ()) -> None:
        self._source, self._node, self._check, self.wrong = source, node, check, wrong

    def all(self) -> tuple[T, ...]:
        """The rows."""
        return self._source.rows(self._node, self._check)

    def mentions(self, metric: str) -> bool:
        """Whether any row of the node, of this check or another, is of this metric."""
        return self._source.mentions(self._node, metric)

    def __len__(self) -> int:
        return len(self.all())

    def __iter__(self) -> Iterator[T]:
        return iter(self.all())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.all()[index]

    def __eq__(self, other: Any) -> bool:
        return self.all() == tuple(other) if isinstance(other, tuple | Later) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.all())

    def __repr__(self) -> str:
        return repr(self.all())
