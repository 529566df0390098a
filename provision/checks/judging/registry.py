"""Lookup of checks by id, from the table and users' own, and selection of a run's checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, TypeVar, cast

from provision.checks.judging.table import BUILT_IN, OWN, STAGES, Entry
from provision.errors import UsageError

if TYPE_CHECKING:
    from provision.checks.check import Check
    from provision.checks.pairs.judge import CheckBetween

T = TypeVar("T")


class Checks(Mapping[str, T]):
    """Checks by id in run order: built-in checks, then users' own.

    A lookup of a built-in check by id does not load the users' own checks.
    """

    def __init__(self, ours: Iterable[Entry], own: Callable[[], dict[str, Entry]] = dict) -> None:
        self._ours = {one.id: one for one in ours}
        self._find = own

    @cached_property
    def own(self) -> dict[str, Entry]:
        """The users' own checks by id; raises OwnCheckError."""
        return self._find()

    @property
    def entries(self) -> dict[str, Entry]:
        """Each check's line of the table; imports no built-in check."""
        return self._ours | self.own

    def __getitem__(self, name: str) -> T:
        return cast("T", self._entry(name).load())

    def of_vendor(self, name: str, vendor: str | None) -> T | None:
        """Return the check for this vendor's GPUs, or None if there is no implementation."""
        return cast("T | None", self._entry(name).load_for(vendor))

    def of_any(self, name: str) -> list[T]:
        """Return the distinct implementations of a check."""
        from provision.checks import vendors

        loaded = (self.of_vendor(name, vendor) for vendor in vendors.ALL)
        return list({id(one): one for one in loaded if one is not None}.values())  # not all are hashable

    def _entry(self, name: str) -> Entry:
        return self._ours.get(name) or self.own[name]

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self.own

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def _own() -> dict[str, Entry]:
    if not metadata.entry_points(group=OWN):  # a command that needs no own check does not pay for it
        return {}
    from provision.checks.judging import own

    return own.found()


CHECKS: Checks[Check] = Checks([one for one in BUILT_IN if one.stage in STAGES], _own)
PAIRS: Checks[CheckBetween] = Checks([one for one in BUILT_IN if one.stage not in STAGES])  # of several nodes

# --- selection of the checks of a run, in the order they run


def table() -> dict[str, Entry]:
    """Return every check's line of the table in run order: first checks of nodes, then of several nodes."""
    return CHECKS.entries | PAIRS.entries


def select(stage: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the checks to run, in order; `names` overrides `stage`. Raises UsageError if unknown."""
    every = table()
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"unknown check {unknown[0]!r}", f"the checks are {', '.join(every)}")
    stages = STAGES[: STAGES.index(stage) + 1]
    return tuple(name for name, one in every.items() if (name in names if names else one.stage in stages))


def of_nodes(asked: Iterable[str]) -> tuple[str, ...]:
    """Select the checks that test one node at a time."""
    return tuple(name for name in asked if name not in PAIRS)


def facts_for(asked: Iterable[str]) -> frozenset[str]:
    """Return the facts that these checks read, all collected at once before they run."""
    # Facts about another vendor's GPUs are read once the vendor of a node's GPUs is known.
    return _facts(asked, None)


def facts_of_vendor(asked: Iterable[str], vendor: str | None) -> frozenset[str]:
    """Return the further facts that these checks read on nodes with this vendor's GPUs."""
    return _facts(asked := tuple(asked), vendor) - facts_for(asked)


def _facts(asked: Iterable[str], vendor: str | None) -> frozenset[str]:
    checks = ((PAIRS if name in PAIRS else CHECKS).of_vendor(name, vendor) for name in asked)
    return frozenset(fact for check in checks for fact in getattr(check, "FACTS", ()))


def not_built(asked: Iterable[str], vendor: str | None) -> tuple[str, ...]:
    """Return the checks that do not support this vendor's GPUs."""
    requested = dict.fromkeys(asked)
    return tuple(
        name
        for names in (CHECKS, PAIRS)
        for name in requested
        if name in names and names.of_vendor(name, vendor) is None
    )


def of_pairs(asked: Iterable[str]) -> tuple[str, ...]:
    """Select the checks that test nodes together, in run order."""
    requested = set(asked)
    return tuple(name for name in PAIRS if name in requested)
