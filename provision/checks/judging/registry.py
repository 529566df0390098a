"""The checks by id: those of the table, and users' own; and the choice of those of a run."""

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
        return cast("T", self._entry(name).load())

    def of_vendor(self, name: str, vendor: str | None) -> T | None:
        """The check as nodes with this vendor's GPUs take it; None where nothing was built for them."""
        return cast("T | None", self._entry(name).load_for(vendor))

    def of_any(self, name: str) -> list[T]:
        """The check for each vendor's GPUs, each once."""
        from provision.checks import vendors

        found = (self.of_vendor(name, vendor) for vendor in vendors.ALL)
        return list({id(one): one for one in found if one is not None}.values())  # not all can be hashed

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
    """Every check's line of the table: of nodes in the order they run, then of several nodes."""
    return CHECKS.entries | PAIRS.entries


def select(stage: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The checks to run, in the order they run. `names` wins over `stage`; raises UsageError on an unknown
    one.
    """
    every = table()
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"unknown check {unknown[0]!r}", f"the checks are {', '.join(every)}")
    stages = STAGES[: STAGES.index(stage) + 1]
    return tuple(name for name, one in every.items() if (name in names if names else one.stage in stages))


def of_nodes(asked: Iterable[str]) -> tuple[str, ...]:
    """Those of these checks that look at one node at a time."""
    return tuple(name for name in asked if name not in PAIRS)


def facts_for(asked: Iterable[str]) -> frozenset[str]:
    """The facts that these checks read: the look before them asks for all at once."""
    # Of other vendors' GPUs they are read once it is known whose a node has.
    return _facts(asked, None)


def facts_of_vendor(asked: Iterable[str], vendor: str | None) -> frozenset[str]:
    """The facts that these checks read beside, where a node has this vendor's GPUs: they are asked of such
    nodes alone, once it is known that they are."""
    return _facts(asked := tuple(asked), vendor) - facts_for(asked)


def _facts(asked: Iterable[str], vendor: str | None) -> frozenset[str]:
    checks = ((PAIRS if name in PAIRS else CHECKS).of_vendor(name, vendor) for name in asked)
    return frozenset(fact for check in checks for fact in getattr(check, "FACTS", ()))


def not_built(asked: Iterable[str], vendor: str | None) -> tuple[str, ...]:
    """Those of these checks that do not measure this vendor's GPUs."""
    found = dict.fromkeys(asked)
    return tuple(
        name
        for names in (CHECKS, PAIRS)
        for name in found
        if name in names and names.of_vendor(name, vendor) is None
    )


def of_pairs(asked: Iterable[str]) -> tuple[str, ...]:
    """Those of these checks that look at nodes together, in the order they run."""
    wanted = set(asked)
    return tuple(name for name in PAIRS if name in wanted)
