"""Host patterns of inventories: `gpu-[001:128]`, `rack-[a:f]`, `gpu-[1:9:2].cluster:2222`."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from provision.desired.inventory.plain.not_plain import NotPlainError

_RANGE = r"\[(?:[0-9]{1,9}:[0-9]{1,9}|[A-Za-z]:[A-Za-z])(?::[0-9]{1,9})?\]"
_PART = rf"(?:[0-9A-Za-z]|{_RANGE})(?:(?:[0-9A-Za-z_-]|{_RANGE})*(?:[0-9A-Za-z]|{_RANGE}))?"
_PATTERN = re.compile(rf"({_PART}(?:\.{_PART})*)(?::([0-9]{{1,9}}))?", re.ASCII)
_FIRST_RANGE = re.compile(r"([^\[]*)\[([^\]]*)\](.*)", re.DOTALL)


def expand(pattern: str) -> tuple[Sequence[str], int | None]:
    """The names a pattern stands for, and the port at its end. Raises NotPlainError."""
    if ":" not in pattern and "[" not in pattern and "]" not in pattern:
        if not pattern or pattern == "---":
            raise NotPlainError(f"{pattern!r} as a host")
        return (pattern,), None
    match = _PATTERN.fullmatch(pattern)
    if match is None:
        raise NotPlainError(f"{pattern!r} as a host")
    return _names(match[1]), int(match[2]) if match[2] else None


def _names(pattern: str) -> list[str]:
    match = _FIRST_RANGE.match(pattern)
    if match is None:
        return [pattern]
    head, bounds, tail = match.groups()
    tails = _names(tail)
    return [head + each + rest for each in _members(bounds) for rest in tails]


def _members(bounds: str) -> Sequence[str]:
    first, last, *rest = bounds.split(":")
    step = int(rest[0]) if rest else 1
    if step < 1:
        raise NotPlainError(f"a step of {step} in [{bounds}]")
    if first in string.ascii_letters:
        begin, end = string.ascii_letters.index(first), string.ascii_letters.index(last)
        if begin > end:
            raise NotPlainError(f"[{bounds}] runs backwards")
        return string.ascii_letters[begin : end + 1 : step]
    width = len(first) if first[0] == "0" and len(first) > 1 else 0
    if width and width != len(last):
        raise NotPlainError(f"[{bounds}] has ends of different lengths")
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1, step)]
