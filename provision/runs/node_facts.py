"""Reader of a stored run's facts.jsonl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from provision.checks.judging.node_facts import NodeFacts
from provision.errors import RunFolderError
from provision.runs.store import RunFolder


class StoredFacts(Mapping[str, NodeFacts]):
    """The nodes of a stored run, read from facts.jsonl on access; the latest one is cached."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._places: dict[str, int] = {}
        self._last: tuple[str, NodeFacts] | None = None
        for place, record in folder.placed("facts"):
            self._places[_seen(folder, record).node] = place

    def __getitem__(self, name: str) -> NodeFacts:
        if self._last is None or self._last[0] != name:
            self._last = name, _seen(self._folder, self._folder.record_at("facts", self._places[name]))
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def read_node_facts(folder: RunFolder) -> Mapping[str, NodeFacts]:
    """Return the nodes of a stored run, each from its last record. Raises RunFolderError."""
    return StoredFacts(folder)


def _seen(folder: RunFolder, record: Mapping[str, Any]) -> NodeFacts:
    try:
        return NodeFacts(**record)
    except TypeError as error:
        raise RunFolderError(f"{folder.path}/facts.jsonl is not of a validate run: {error}") from error
