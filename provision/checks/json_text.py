"""JSON of a program: names that stand twice are refused, for then lines between two objects were lost.

Python's own decoder takes the last value of a name: `"status": "Fail"` would give way to the next GPU's Pass.
"""

from __future__ import annotations

import json
from typing import Any


def decode(text: str, begin: int = 0) -> tuple[Any, int]:
    """The document that begins at that character, and where it ends. Raises ValueError, or RecursionError."""
    return json.JSONDecoder(object_pairs_hook=_once).raw_decode(text, begin)


def decode_all(text: str) -> Any:
    """The document that the whole text is, but for blanks around it. Raises ValueError, or RecursionError."""
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:60]!r} stands twice in one object")
    return found
