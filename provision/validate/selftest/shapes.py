"""The shape of a tool's output: what remains when every number and identifier is made the same (pure).

XML and JSON: the paths of their elements, and the units of their values. Everything else: its lines, with
numbers as N. What depends on the machine's size, or on who else uses it, is no part of a shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

_MOST = 40  # differences listed of one output
_LONGEST = 160
_MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"(?<= on)( +)\S+(?= device +\d)"), " HOST"),  # nccl-tests
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "UUID"),
    (
        re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d+ [\d:]{8}( [A-Z]{3,4})? \d{4}\b"),
        "DATE",
    ),
    (re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?\b", re.IGNORECASE), "PCI"),
    (re.compile(r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.IGNORECASE), "PCI"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "0xN"),
    (re.compile(r"[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?"), "N"),
    (re.compile(r"[ \t]+"), " "),
    # How many numbers stand in a row is the machine's size; cells with commas between them are columns.
    (re.compile(r"N(?:[ :/]+N\b)+"), "N"),
    (re.compile(r"(N[^-\n]*?)(?: - \1)+"), r"\1"),  # gpu_burn: one number for each GPU
)
_UNIT = re.compile(r"[-+]?\d+(?:\.\d+)?\s+([A-Za-z%°][A-Za-z%°/]*)")
_BEGIN = re.compile(r"^\s*(<\?xml|[{\[])", re.MULTILINE)
_PROCESS = "process_info"  # of nvidia-smi -q -x: one for each process that is there right now


@dataclass
class Form:
    """One output. `kind`: XML, JSON or lines; `units`: by path, of values that have one."""

    kind: str
    parts: list[str] = field(default_factory=list)
    units: dict[str, set[str]] = field(default_factory=dict)


def form(text: str) -> Form:
    """The distinct parts of an output, in the order they come; lines before and after a document are too."""
    if begin := _BEGIN.search(text):
        at, closing = begin.start(1), {"<": ">", "{": "}", "[": "]"}[begin[1][0]]
        end = text.rfind(closing) + 1
        around = [*_lines(text[:at]), *_lines(text[end:])]
        found = Form("XML" if begin[1] == "<?xml" else "JSON")
        try:
            if found.kind == "XML":
                walked = _xml(ElementTree.fromstring(text[at:end]), found)  # noqa: S314 - expat since 2.4.1 bounds entities
            else:
                walked = _json(json.loads(text[at:end]), found)
            found.parts = _distinct([*around, *walked])
        except (ElementTree.ParseError, ValueError, RecursionError):
            pass
        else:
            return found
    return Form("lines", _distinct(_lines(text)))


def differences(here: str, simulated: str) -> tuple[list[str], list[str], str]:
    """(what only this machine's output has, what only the simulator's has, why they cannot be compared)."""
    ours, theirs = form(here), form(simulated)
    if ours.kind != theirs.kind:
        return [], [], f"it is {ours.kind} here, and {theirs.kind} in the simulator"
    return _only(ours, theirs), _only(theirs, ours), ""


def _only(one: Form, other: Form) -> list[str]:
    """What `other` lacks. A value without a unit (`N/A`) tells nothing of its unit."""
    there = set(other.parts)
    found = [part for part in one.parts if part not in there]
    for path, units in one.units.items():
        known = other.units.get(path)
        found += [f"{path} in {unit}" for unit in sorted(units - known)] if known else []
    more = len(found) - _MOST
    return [*found[:_MOST], f"and {more} more"] if more > 0 else found


def _distinct(parts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(part for part in parts if part))


def _xml(element: ElementTree.Element, found: Form, at: str = "") -> Iterator[str]:
    path = f"{at}/{element.tag}"
    yield path
    _unit(path, element.text or "", found)
    for child in element:
        if child.tag != _PROCESS:
            yield from _xml(child, found, path)


def _json(value: Any, found: Form, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            path = f"{at}.{_line(str(key))}"
            yield path
            if key in ("unit", "units") and isinstance(inner, str):
                found.units.setdefault(path, set()).add(inner)
            yield from _json(inner, found, path)
    elif isinstance(value, list):
        for inner in value:
            yield from _json(inner, found, f"{at}[]")
    elif isinstance(value, str):
        _unit(at, value, found)


def _unit(path: str, value: str, found: Form) -> None:
    if unit := _UNIT.fullmatch(value.strip()):
        found.units.setdefault(path, set()).add(unit[1])


def _lines(text: str) -> Iterator[str]:
    return (_line(line) for line in re.split(r"[\r\n]+", text))


def _line(line: str) -> str:
    line = line[: 20 * _LONGEST]
    for pattern, mark in _MASKS:
        line = pattern.sub(mark, line)
    return line.strip()[:_LONGEST]
