"""What a use case reports while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    """A line for people."""

    text: str


@dataclass(frozen=True)
class RunBegan:
    """A run folder was made; what is found is written to it as it comes."""

    folder: Path


@dataclass(frozen=True)
class NodeAnswered:
    """A node answered, or will not. `trouble` says why nothing, or not all, is known about it; else empty."""

    node: str
    trouble: str = ""


Event = Note | RunBegan | NodeAnswered
OnEvent = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Take an event, and do nothing with it."""
