"""Events that a use case reports while it works."""

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
    """Work in `total` parts has begun; it lasts until `Ended`."""

    title: str
    total: int


@dataclass(frozen=True)
class Ended:
    """The most recently begun work has ended."""


@dataclass(frozen=True)
class Step:
    """Description of the current step."""

    text: str


@dataclass(frozen=True)
class PartEnded:
    """One part of the work has ended; `text` is its outcome, or empty."""

    text: str = ""


@dataclass(frozen=True)
class RunBegan:
    """A run folder was created; results are written to it as they arrive."""

    folder: Path


@dataclass(frozen=True)
class NodeAnswered:
    """A node has answered or failed; `trouble`: why its facts are missing or incomplete, or empty."""

    node: str
    trouble: str = ""


@dataclass(frozen=True)
class ChecksChosen:
    """The checks to run, their nodes, and the approximate minutes for those on single nodes.
    `between`: some checks measure between nodes, for an unknown time."""

    nodes: tuple[str, ...]
    checks: tuple[str, ...]
    minutes: int
    between: bool


@dataclass(frozen=True)
class NodeLeftOut:
    """A node runs none of the checks; `checks` is the number of omitted checks."""

    node: str
    why: str
    checks: int


@dataclass(frozen=True)
class CheckBegan:
    """A check has begun on a node; each node runs its checks one by one."""

    node: str
    check: str


@dataclass(frozen=True)
class CheckEnded:
    """A check has ended on a node; `verdict` is empty if it is judged later or was not run (see `note`)."""

    node: str
    check: str
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class UpPlanned:
    """The changes that `up` is about to make.
    `source`: the inventory; `stacks`: those declared for the nodes; `intent`: a summary in a few lines."""

    source: str
    nodes: tuple[str, ...]
    stacks: tuple[str, ...]
    intent: str


@dataclass(frozen=True)
class TaskBegan:
    """A task of a role has begun on a node; `role` may be empty."""

    node: str
    role: str
    task: str


@dataclass(frozen=True)
class NodeEnded:
    """`up` has ended for a node; the first line of `message` is the reason."""

    node: str
    status: str
    message: str


@dataclass(frozen=True)
class BurninPlanned:
    """The nodes that a burn-in is about to load, and when, in lines for people."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class BurninBegan:
    """A burn-in runs on `nodes`, out of `of`; `between`: checks between nodes need an attached command."""

    run: str
    nodes: tuple[str, ...]
    of: int
    between: bool


@dataclass(frozen=True)
class NodeBurns:
    """State of a node in its burn-in, reported at every change."""

    node: str
    words: str


@dataclass(frozen=True)
class NodeStopped:
    """Outcome of ending a node's burn-in."""

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
    """Confirm any plan."""
    return True


def ignore(_event: Event) -> None:
    """Ignore an event."""


@contextlib.contextmanager
def work(title: str, total: int, on_event: OnEvent) -> Iterator[None]:
    """Report the begin of some work and its end, even after an exception."""
    on_event(Began(title, total))
    try:
        yield
    finally:
        on_event(Ended())
