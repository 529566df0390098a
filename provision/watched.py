"""A read-tracking mapping: the cache key of rendered expectations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]


class Watched(Mapping[str, Any]):
    """A view of nested mappings. `reads` grows with the path of each value that was looked up, and with
    what was found there; looking at a mapping as a whole counts as looking at everything in it.

    >>> view = Watched({"os": {"id": "debian", "arch": "x86_64"}})
    >>> view["os"]["id"], view.reads
    ('debian', {('os', 'id'): 'debian'})
    """

    def __init__(self, of: Mapping[str, Any], reads: dict[Path, Any] | None = None, path: Path = ()) -> None:
        self._of = of
        self._path = path
        self.reads: dict[Path, Any] = {} if reads is None else reads

    def __getitem__(self, key: str) -> Any:
        path = (*self._path, key)
        if key not in self._of:
            self.reads[path] = _ABSENT
            raise KeyError(key)
        found = self._of[key]
        if isinstance(found, Mapping):
            return Watched(found, self.reads, path)
        self.reads[path] = found
        return found

    def __iter__(self) -> Iterator[str]:
        self.reads[self._path] = self._of
        return iter(self._of)

    def __len__(self) -> int:
        self.reads[self._path] = self._of
        return len(self._of)


_ABSENT = object()


def agrees(of: Mapping[str, Any], reads: Mapping[Path, Any]) -> bool:
    """Whether who read these paths of another mapping would have found the same in `of`."""
    return all(_at(of, path) == value for path, value in reads.items())


def _at(of: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(of, Mapping) or key not in of:
            return _ABSENT
        of = of[key]
    return of
