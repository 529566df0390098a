"""Lazily read findings and measurements: a large fleet's do not fit in memory as objects, and a report shows
few of them.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

T = TypeVar("T")

_METRICS: dict[frozenset[str], frozenset[str]] = {}  # nodes measure the same: each set is kept once


class LazyRows(Sequence[T]):
    """The rows of one check on one node, equal to the tuple of them: `read(key)` makes them.

    Known without reading: `wrong`, the findings that are no pass, which every report shows; and `metrics`, of
    the measurements.
    """

    __slots__ = ("_key", "_read", "metrics", "wrong")

    def __init__(
        self,
        read: Callable[[Any], tuple[T, ...]],
        key: Any,
        wrong: tuple[T, ...] = (),
        metrics: frozenset[str] = frozenset(),
    ) -> None:
        self._read, self._key, self.wrong = read, key, wrong
        self.metrics = _METRICS.setdefault(metrics, metrics)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyRows, (self._read, self._key, self.wrong, self.metrics)

    def all(self) -> tuple[T, ...]:
        """The rows."""
        return self._read(self._key)

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
        return self.all() == tuple(other) if isinstance(other, tuple | LazyRows) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.all())

    def __repr__(self) -> str:
        return repr(self.all())


def compressed(
    rows: Sequence[T], wrong: tuple[T, ...] = (), metrics: frozenset[str] = frozenset()
) -> LazyRows[T]:
    """These rows in about a tenth of the memory."""
    return LazyRows(_decompressed, zlib.compress(pickle.dumps(tuple(rows), 5), 3), wrong, metrics)


@lru_cache(maxsize=64)  # the checks of a few nodes: reports take a node's rows several times
def _decompressed(data: bytes) -> tuple[Any, ...]:
    found: tuple[Any, ...] = pickle.loads(zlib.decompress(data))  # noqa: S301 - made above, never stored
    return found
