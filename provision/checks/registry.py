"""The checks by id: those of the table, and users' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar, cast

from provision.checks.check import Check
from provision.checks.table import BUILT_IN, STAGES, Entry

T = TypeVar("T")


class Checks(Mapping[str, T]):
    """Checks by id, in the order they run: ours, then users' own, which are looked for when somebody asks for
    more than one of ours by its id.
    """

    def __init__(self, ours: Iterable[Entry], own: Callable[[], dict[str, Entry]] = dict) -> None:
        self._ours = {one.id: one for one in ours}
        self._find = own

    @cached_property
    def own(self) -> dict[str, Entry]:
        """The checks that users installed. Raises OwnCheckError."""
        return self._find()

    @property
    def entries(self) -> dict[str, Entry]:
        """Each check's line of the table. None of ours is imported for it."""
        return self._ours | self.own

    def __getitem__(self, name: str) -> T:
        return cast("T", (self._ours.get(name) or self.own[name]).load())

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self.own

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _own() -> dict[str, Entry]:
    from provision.checks import own  # a command that needs no own check does not pay for it

    return own.found()


CHECKS: Checks[Check] = Checks([one for one in BUILT_IN if one.stage in STAGES], _own)
PAIRS: Checks[Any] = Checks([one for one in BUILT_IN if one.stage not in STAGES])  # of several nodes
