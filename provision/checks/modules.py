"""Checks that are imported when they are used: a look at a fleet needs the names of all, and no check."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a check is: its module, and the stage it belongs to (its STAGE, known without importing it)."""

    module: str
    stage: str


class Modules(Mapping[str, Any]):
    """Check modules by their id, in order."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = dict(places)

    @property
    def stages(self) -> dict[str, str]:
        """Each check's stage. Nothing is imported for it."""
        return {name: place.stage for name, place in self._places.items()}

    def __getitem__(self, name: str) -> Any:
        return importlib.import_module(self._places[name].module)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
