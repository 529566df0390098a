"""The shape of a tool's output: its lines with the values masked, so that two runs on two machines compare.

A shape is a list of lines. Words, units, spacing, the number of decimals and the order stay; a number, an
identifier or a date becomes a placeholder. XML becomes one line for each element of a GPU, `path: value`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher, unified_diff
from typing import Any
from xml.etree import ElementTree as Xml

# Values masked as a whole, whatever they contain: an identifier with letters, a date, a product.
_IDENTIFIERS = (
    (r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"\1-UUID"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d( [A-Z]{3})? \d{4}\b", r"DATE\1"),
    (r"\b0x[0-9A-Fa-f]+\b", "HEX"),
    (r"\b[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.\d\b", "BUS"),
    (r"\b[0-9A-F]{2}(\.[0-9A-F]{2}){4}\b", "VBIOS"),
    (r"\b\d{3}-\w{5}-\w{4}-\w{3}\b", "BOARD-PART"),
    (r"\b\d{3}\.\d+\.\d+\b", "DRIVER"),
    (r"\bNVIDIA (RTX |GeForce )?[A-Z]+\d+\w*([ -](SFF|Ada|Generation|PCIe|SXM4|\d+GB|HBM3))*", "PRODUCT"),
    (r"\b(A100-SXM4-40GB|Tesla T4)\b", "PRODUCT"),
)
# Elements that name a part in letters and digits: the form of the value, and its placeholder.
_VERSION = (r"\d{3}(\.\d{2,3}){1,2}", "DRIVER")
_HEX = (r"[0-9A-F]+", "HEX-DIGITS")
_NAMED = {
    "driver_version": _VERSION,
    "gsp_firmware_version": _VERSION,
    "product_name": (r"[A-Z][\w -]*\w", "PRODUCT"),
    "product_architecture": (r"[A-Z][a-z]+( [A-Z][a-z]+)?", "ARCHITECTURE"),
    "gpu_part_number": (r"\w{4}-\w{3}-\w{2}", "PART"),
    "img_version": (r"[A-Z]?\w{3,4}(\.\d{4}\.\d\d\.\d\d)", "VERSION"),
    "pci_bus": _HEX,
    "pci_device_id": _HEX,
    "pci_sub_system_id": _HEX,
}


def masked(line: str) -> str:
    """Mask the values of a line; a number keeps only its decimals."""
    for pattern, placeholder in _IDENTIFIERS:
        line = re.sub(pattern, placeholder, line)
    return re.sub(r"\d+(\.\d+)?", lambda number: "N" + re.sub(r"\d", "N", number[1] or ""), line)


def in_columns(line: str) -> str:
    """Mask a line of a table with right-aligned numbers; a number keeps its column."""
    for pattern, placeholder in _IDENTIFIERS[:5]:
        line = re.sub(pattern, placeholder, line)
    return re.sub(r" *\d+(\.\d+)?", lambda number: re.sub(r"[ \d]", "#", number[0]), line)


def in_columns_of_any_form(line: str) -> str:
    """Mask like in_columns, for columns in which the number of decimals varies."""
    return re.sub(r" *\d+(\.\d+)?(e[+-]\d+)?", lambda number: "#" * len(number[0]), line)


def cells(line: str, first: int, width: int) -> str:
    """Mask a row of numbers in cells of equal width; the number of cells does not matter."""
    rest = line[first:]
    row = [rest[at : at + width].strip() for at in range(0, len(rest), width)]
    whole = rest and len(rest) % width == 0 and not line[:first].strip(" 0123456789")
    if not whole or not all(re.fullmatch(r"\d+|\d+\.\d\d|N/A", one) for one in row):
        return masked(line)
    return (
        re.sub(r"\d", "N", line[:first]) + "|" + "|".join(dict.fromkeys(map(masked, row))) + f"| {width} wide"
    )


def lines(text: str, mask: Callable[[str], str] = masked) -> list[str]:
    """Mask a text line by line."""
    return [mask(line) for line in text.split("\n")]


def kinds(text: str, mask: Callable[[str], str] = masked) -> list[str]:
    """Return the distinct lines of a text in order of first appearance, for output as long as a run.

    A line followed by a blank line differs from the same line without one.
    """
    *found, last = lines(text, mask)
    for at in reversed(range(1, len(found))):
        if not found[at]:
            del found[at]
            found[at - 1] += " (and a blank line)"
    return list(dict.fromkeys([*found, last]))


def csv(text: str) -> list[str]:
    """Mask a table of --query-…: the header stays, the cells of each row are masked."""
    header, *rows = text.split("\n")
    return [header, *(masked(row) for row in rows)]


def xml(text: str) -> list[str]:
    """Return the first GPU's elements with their values, and how the other GPUs differ from it."""
    root = Xml.fromstring(text)  # noqa: S314 (our own output, and recordings we chose)
    found = [*text.splitlines()[:2], _layout(text), *_blank_lines(text)]
    found += [_element(one, "") for one in root if one.tag != "gpu"]
    kinds: dict[tuple[str, ...], list[int]] = {}
    for number, gpu in enumerate(root.findall("gpu")):
        elements = (f"gpu id: {masked(gpu.get('id', ''))}", *_elements(gpu, ""))
        kinds.setdefault(elements, []).append(number)
    first, *others = kinds
    found += first
    for other in others:
        found.append(f"gpu {kinds[other]}:")
        changes = list(unified_diff(first, other, lineterm="", n=0))[2:]
        found += [line for line in changes if not line.startswith("@@")]
    return [*found, f"{len(kinds)} kinds of GPU"]


def _layout(text: str) -> str:
    """Return whether each element is on a separate line, one tab deeper than its parent."""
    depth = 0
    for line in text.splitlines()[2:]:
        depth -= line.lstrip().startswith("</")
        if line.strip().startswith("<") and not re.match("\t" * depth + "<", line):
            return f"not indented by {depth} tabs"
        depth += bool(re.fullmatch(r"\s*<[^/>]+>", line))
    return "indented by tabs"


def _blank_lines(text: str) -> list[str]:
    """Describe blank lines, the lines after each GPU, trailing blanks, and the end of the text."""
    rows = re.sub(r"<gpu .*>", "<gpu>", text).split("\n")
    around = zip(rows, rows[1:], rows[2:], strict=False)
    between = {f"{a.strip()} {b!r} {c.strip()}" for a, b, c in around if not b.strip() or a == "\t</gpu>"}
    trailing = {f"blanks after {masked(row.strip())}" for row in rows if row.strip() and row != row.rstrip()}
    return [*sorted(between), *sorted(trailing), f"last lines: {[row.strip() for row in rows[-3:]]}"]


def _elements(element: Xml.Element, at: str) -> list[str]:
    found: list[str] = []
    for child in element:
        found += [_element(child, at), *_elements(child, f"{at}/{child.tag}")]
    return found if at else _once_each(found)


def _element(element: Xml.Element, at: str) -> str:
    path = f"{at}/{element.tag}" + "".join(f" {name}={value}" for name, value in element.attrib.items())
    value = element.text or ""
    if "\n" in value:  # the value has its own line
        value = value.strip()
    form, placeholder = _NAMED.get(element.tag, ("", ""))
    return path if len(element) else f"{path}: {placeholder if re.fullmatch(form, value) else masked(value)}"


def _once_each(found: list[str]) -> list[str]:
    """Keep each line of a list of clocks or processes once, since their length varies."""
    repeated = ("/supported_clocks/", "/processes/", "/mig_devices/")
    return [
        line
        for number, line in enumerate(found)
        if not (line.startswith(repeated) and line in found[:number])
    ]


def differences(real: list[str], simulated: list[str]) -> Counter[str]:
    """Count lines only in the real output (`-`) and lines only in the simulated one (`+`)."""
    found: Counter[str] = Counter()
    matcher = SequenceMatcher(None, real, simulated, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            found.update(f"- {line}" for line in real[a:b])
            found.update(f"+ {line}" for line in simulated[c:d])
    return found


def change(base: list[str], shape: list[str]) -> list[str]:
    """Return the edit from one shape to another: `@@ line,lines dropped` and the replacing lines."""
    found = []
    matcher = SequenceMatcher(None, base, shape, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            found += [f"@@ {a},{b - a}", *(f"+{line}" for line in shape[c:d])]
    return found


def changed(base: list[str], change: list[str]) -> list[str]:
    """Apply a `change` to a shape."""
    found, at = [], 0
    for line in change:
        if line.startswith("@@ "):
            start, dropped = map(int, line[3:].split(","))
            found += base[at:start]
            at = start + dropped
        else:
            found.append(line[1:])
    return found + base[at:]


def folded(shape: list[str]) -> list[Any]:
    """Fold each repeated run of lines into {times: N, lines: […]}, the form in the file."""
    found: list[Any] = []
    at = 0
    while at < len(shape):
        period, times = _repeats(shape, at)
        if times > 1:
            found.append({"times": times, "lines": folded(shape[at : at + period])})
        else:
            found.append(shape[at])
        at += period * times
    return found


def _repeats(shape: list[str], at: int) -> tuple[int, int]:
    """Return (number of lines, repetitions) of the run at this position that saves the most lines."""
    best, saved = (1, 1), 1
    starts = [k for k in range(at + 1, (at + len(shape)) // 2 + 1) if shape[k] == shape[at]]
    for period in (start - at for start in starts):
        times = 1
        while shape[at + period * times : at + period * (times + 1)] == shape[at : at + period]:
            times += 1
        if times > 1 and period * (times - 1) > saved:
            best, saved = (period, times), period * (times - 1)
    return best


def unfolded(entries: list[Any]) -> list[str]:
    """Undo `folded`."""
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, dict):
            found += unfolded(entry["lines"]) * entry["times"]
        else:
            found.append(entry)
    return found
