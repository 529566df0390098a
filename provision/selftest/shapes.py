"""The shape of a tool's output: what remains when every number and identifier is made the same (pure).

XML and JSON: the paths of their elements. Everything else: its lines, with numbers as N.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

_MOST = 40  # differences listed of one output
_LONGEST = 160
_MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "UUID"),
    (
        re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d+ [\d:]{8}( [A-Z]{3,4})? \d{4}\b"),
        "DATE",
    ),
    (re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE), "PCI"),
    (re.compile(r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE), "PCI"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "0xN"),
    (re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"), "N"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"N(?:[ ,:/]+N)+"), "N…"),  # how many numbers stand in a row is the machine's size
)


def shape(text: str) -> list[str]:
    """The distinct parts of an output, in the order they come."""
    stripped = text.lstrip()
    if stripped.startswith("<?xml"):
        try:
            return _distinct(_xml(ElementTree.fromstring(stripped)))  # noqa: S314 - expat since 2.4.1 bounds entities
        except ElementTree.ParseError:
            pass
    if stripped[:1] in "{[" and stripped:
        try:
            return _distinct(_json(json.loads(stripped)))
        except (ValueError, RecursionError):
            pass
    return _distinct(_line(line) for line in re.split(r"[\r\n]+", text))


def differences(here: str, simulated: str) -> tuple[list[str], list[str]]:
    """(what only this machine's output has, what only the simulator's has)."""
    ours, theirs = shape(here), shape(simulated)
    mine, other = set(ours), set(theirs)
    return [one for one in ours if one not in other][:_MOST], [one for one in theirs if one not in mine][
        :_MOST
    ]


def _distinct(parts: Any) -> list[str]:
    return list(dict.fromkeys(part for part in parts if part))


def _xml(element: ElementTree.Element, at: str = "") -> Iterator[str]:
    path = f"{at}/{element.tag}"
    yield path
    for child in element:
        yield from _xml(child, path)


def _json(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{at}.{_line(str(key))}"
            yield path
            yield from _json(inner, path)
    elif isinstance(value, list):
        for inner in value:
            yield from _json(inner, f"{at}[]")


def _line(line: str) -> str:
    line = line[: 20 * _LONGEST]
    for pattern, mark in _MASKS:
        line = pattern.sub(mark, line)
    return line.strip()[:_LONGEST]
