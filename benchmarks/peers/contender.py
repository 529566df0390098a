"""What a contender offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.costs import Cost
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes

CONNECTIONS = 32  # of every contender that can have several


@dataclass(frozen=True)
class Work:
    """A command that is ready to run, in `folder`. `differences`, from its output: node → how many of the
    expectations do not hold there; nodes that it did not look at are not in it."""

    command: Sequence[str | Path]
    folder: Path
    differences: Callable[[Cost], Mapping[str, int]]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """`most`: nodes it is measured on at most, where it needs seconds for each. `make` writes what it needs
    into a folder; with `look` its command changes nothing on a node even where it usually would."""

    name: str
    make: Callable[[Nodes, Sequence[Expected], Path, bool], Work]
    most: int = 10_000
    note: str = ""
