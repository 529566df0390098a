"""The only parser of JSON from nodes, workers, schedulers and tools, which may be malformed or malicious.

Python's decoder accepts NaN, Infinity and 1e999, keeps the last value of a duplicate key, raises
RecursionError for deep nesting and a bare ValueError for long integers. This one only raises JsonError.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

LARGEST = 64 * 1024 * 1024  # bytes or characters
DEEPEST = 100  # nesting levels of lists and objects
_DIGITS = 40  # digits of an integer: 64 bits need 20, and float() of a longer one may overflow


class JsonError(ValueError):
    """The text is not acceptable JSON; the message is one short line."""


def read(data: bytes | str, *, largest: int = LARGEST, unique: bool = False) -> Any:
    """Parse a whole document; `unique`: reject duplicate keys in an object."""
    text = _text(data, largest)
    value, end = first(text, len(text) - len(text.lstrip(" \t\r\n")), unique=unique)
    if text[end:].strip(" \t\r\n"):
        raise JsonError(f"not JSON: more text after the value, at character {end}")
    return value


def first(text: str, begin: int = 0, *, unique: bool = False) -> tuple[Any, int]:
    """Parse the value at a character offset; return it and the offset of its end. `unique`: as in `read`."""
    try:
        value, end = (_UNIQUE if unique else _DECODER).raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise JsonError(_DEEP) from None
    # There are at least as many brackets as levels, so most documents need no further check.
    if text.count("[", begin, end) + text.count("{", begin, end) > DEEPEST:
        _refuse_depth(value)
    return value, end


_DEEP = f"nested more than {DEEPEST} levels deep"


def _text(data: bytes | str, largest: int) -> str:
    if len(data) > largest:
        raise JsonError(f"longer than {largest} bytes")
    try:
        return data if isinstance(data, str) else data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None


def _constant(word: str) -> Any:
    raise JsonError(f"{word} is no number of JSON")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise JsonError(f"the number {text[:20]} is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise JsonError(f"a number of {len(text)} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise JsonError(f"{name[:60]!r} stands twice in one object")
        values[name] = value
    return values


def _refuse_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        values = (child for one in level for child in (one.values() if isinstance(one, dict) else one))
        level = [child for child in values if isinstance(child, (dict, list))]
        if not level:
            return
    raise JsonError(_DEEP)


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_float, parse_int=_integer)
_UNIQUE = json.JSONDecoder(
    parse_constant=_constant, parse_float=_float, parse_int=_integer, object_pairs_hook=_unique
)
