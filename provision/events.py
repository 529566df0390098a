"""What a use case reports while it works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    """A line for people."""

    text: str


@dataclass(frozen=True)
class Began:
    """Work of so many parts begins; it lasts until `Ended`."""

    title: str
    total: int


@dataclass(frozen=True)
class Ended:
    """The work that began last has ended."""


@dataclass(frozen=True)
class Step:
    """What is being done now."""

    text: str


@dataclass(frozen=True)
class PartEnded:
    """One part of the work has ended; `text` says how, or is empty."""

    text: str = ""


@dataclass(frozen=True)
class RunBegan:
    """A run folder was made; what is found is written to it as it comes."""

    folder: Path


@dataclass(frozen=True)
class NodeAnswered:
    """A node answered, or will not. `trouble` says why nothing, or not all, is known about it; else empty."""

    node: str
    trouble: str = ""


@dataclass(frozen=True)
class ChecksChosen:
    """Which checks are about to be run on which nodes, and about how long those on single nodes take.
    `between`: some measure between nodes, for which no time is known."""

    nodes: tuple[str, ...]
    checks: tuple[str, ...]
    minutes: int
    between: bool


@dataclass(frozen=True)
class NodeLeftOut:
    """None of the checks is run on a node; `checks` says how many that are."""

    node: str
    why: str
    checks: int


@dataclass(frozen=True)
class CheckBegan:
    """A check begins on a node; each node goes through its own, one after the other."""

    node: str
    check: str


@dataclass(frozen=True)
class CheckEnded:
    """A check is over on a node. `verdict` is empty where it is judged later, or was not run; then `note`
    says so."""

    node: str
    check: str
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class UpPlanned:
    """What `up` is about to change. `stacks`: those declared for the nodes; `intent`: what it means, in a few
    lines; `source`: the inventory."""

    source: str
    nodes: tuple[str, ...]
    stacks: tuple[str, ...]
    intent: str


@dataclass(frozen=True)
class TaskBegan:
    """A task of a role begins on a node; of a large fleet the node that comes first. `role` may be empty."""

    node: str
    role: str
    task: str


@dataclass(frozen=True)
class NodeEnded:
    """How `up` ended for a node; `message` says why, in its first line."""

    node: str
    status: str
    message: str


@dataclass(frozen=True)
class BurninPlanned:
    """What a burn-in is about to load, and when, in lines for people."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class BurninBegan:
    """A burn-in runs on these of so many nodes. `between`: its checks between nodes need whoever attends."""

    run: str
    nodes: tuple[str, ...]
    of: int
    between: bool


@dataclass(frozen=True)
class NodeBurns:
    """How a node stands in its burn-in; told whenever it changes."""

    node: str
    words: str


@dataclass(frozen=True)
class NodeStopped:
    """What became of the end of a node's burn-in."""

    node: str
    words: str


Event = (
    Note
    | Began
    | Ended
    | Step
    | PartEnded
    | RunBegan
    | NodeAnswered
    | ChecksChosen
    | NodeLeftOut
    | CheckBegan
    | CheckEnded
    | UpPlanned
    | TaskBegan
    | NodeEnded
    | BurninPlanned
    | BurninBegan
    | NodeBurns
    | NodeStopped
)
OnEvent = Callable[[Event], None]
Confirm = Callable[[UpPlanned], bool]


def agree(_planned: UpPlanned) -> bool:
    """Confirm whatever is planned."""
    return True


def ignore(_event: Event) -> None:
    """Take an event, and do nothing with it."""


@contextlib.contextmanager
def work(title: str, total: int, on_event: OnEvent) -> Iterator[None]:
    """Report the begin and the end of some work, whatever becomes of it."""
    on_event(Began(title, total))
    try:
        yield
    finally:
        on_event(Ended())
