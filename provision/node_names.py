"""Folding of node names into ranges such as `gpu-[01-03,07]`, and unfolding."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable

from provision.text import one_line

_LAST_NUMBER = re.compile(r"^(.*?)(\d+)(\D*)$", re.DOTALL)
_RANGES = re.compile(r"([^\[\]]*)\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]([^\[\]]*)")
_MOST_UNFOLDED = 100_000
_ADDRESS = re.compile(r"^[\d.]+$|:")


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts gpu-9 before gpu-10.

    >>> sorted(["gpu-10", "gpu-9"], key=natural)
    ['gpu-9', 'gpu-10']
    """
    # isdecimal() accepts digits of every script, as int() does; very long runs of digits are not numbers.
    return [
        (0, int(part), part) if part.isdecimal() and len(part) < 20 else (1, 0, part)
        for part in re.split(r"(\d+)", name)
    ]


def fold(names: Iterable[str], limit: int = 400) -> str:
    """Fold node names into ranges, truncated at about `limit` characters with the number of the rest.

    >>> fold(["gpu-01", "gpu-02", "gpu-03", "gpu-07", "login.example"])
    'gpu-[01-03,07], login.example'
    """
    unique = sorted(set(names), key=natural)
    pieces: list[str] = []
    length = shown = 0
    for text, count in _folded(unique, limit):
        if pieces and length + len(text) > limit:
            return f"{', '.join(pieces)} … and {len(unique) - shown:,} more"
        pieces.append(text)
        length += len(text) + 2
        shown += count
    return ", ".join(pieces)


def label(name: str) -> str:
    """Return a name as one printable line; a checksum keeps it unique if it cannot be shown as is.

    >>> label("gpu-01"), label("gpu\x1b[2J")
    ('gpu-01', 'gpu�[2J#75e5225b')
    """
    shown = one_line(name, 200)
    return shown if shown == name else f"{shown}#{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def unfold(text: str) -> list[str]:
    """Return the names in one folded text; empty if it is malformed or has too many.

    >>> unfold("gpu-[08-10,12].pod3")
    ['gpu-08.pod3', 'gpu-09.pod3', 'gpu-10.pod3', 'gpu-12.pod3']
    """
    match = _RANGES.fullmatch(text)
    if match is None:
        return []
    before, ranges, after = match.groups()
    names: list[str] = []
    for piece in ranges.split(","):
        start, _, end = piece.partition("-")
        if len(piece) > 40 or int(end or start) - int(start) > _MOST_UNFOLDED - len(names):
            return []
        width = len(start) if start.startswith("0") else 0
        names += [f"{before}{number:0{width}d}{after}" for number in range(int(start), int(end or start) + 1)]
    return names


def _folded(names: list[str], limit: int) -> Iterable[tuple[str, int]]:
    """Yield ranges and single names with their number of nodes, in the order of their first member."""
    groups: dict[tuple[str, str, int], list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        before, digits, after = _split(name)
        if len(digits) > 18:
            before, digits, after = name, "", ""
        width = len(digits) if digits.startswith("0") else 0
        groups[before, after, width].append((int(digits or 0), digits))
    for (before, after, width), numbers in _with_padded_joined(groups).items():
        before, after = one_line(before, 80), one_line(after, 80)
        if len(numbers) == 1:
            yield f"{before}{numbers[0][1]}{after}", 1
        else:
            ranges = _ranges([number for number, _ in numbers], width, limit)
            yield f"{before}[{ranges}]{after}", len(numbers)


def _with_padded_joined(
    groups: dict[tuple[str, str, int], list[tuple[int, str]]],
) -> dict[tuple[str, str, int], list[tuple[int, str]]]:
    """Merge numbers like `10`, which look unpadded, with padded ones of the same length like `09`."""
    for before, after, width in [key for key in groups if key[2]]:
        rest = groups.get((before, after, 0), [])
        same = [item for item in rest if len(item[1]) == width]
        if same:
            groups[before, after, width] = sorted(groups[before, after, width] + same)
            groups[before, after, 0] = [item for item in rest if item not in same]
    return {key: numbers for key, numbers in groups.items() if numbers}


def _split(name: str) -> tuple[str, str, str]:
    """Split at the last number of the first label, so that gpu-01.pod3 and gpu-02.pod3 fold."""
    if _ADDRESS.search(name):
        match = _LAST_NUMBER.match(name)
        return (match[1], match[2], match[3]) if match and ":" not in name else (name, "", "")
    label, dot, domain = name.partition(".")
    match = _LAST_NUMBER.match(label)
    return (match[1], match[2], match[3] + dot + domain) if match else (name, "", "")


def _ranges(numbers: list[int], width: int, limit: int) -> str:
    """Format sorted numbers as `01-03,07`, with the number of the rest beyond `limit` characters."""
    starts = [numbers[0]] + [b for a, b in zip(numbers, numbers[1:]) if b != a + 1]
    ends = [a for a, b in zip(numbers, numbers[1:]) if b != a + 1] + [numbers[-1]]
    pieces: list[str] = []
    length = shown = 0
    for start, end in zip(starts, ends):
        piece = f"{start:0{width}d}" if start == end else f"{start:0{width}d}-{end:0{width}d}"
        if pieces and length + len(piece) > limit:
            return f"{','.join(pieces)},… {len(numbers) - shown:,} more"
        pieces.append(piece)
        length += len(piece) + 1
        shown += end - start + 1
    return ",".join(pieces)


def file_name(name: str) -> str:
    """Return a node's name as a file name: unchanged if harmless, else percent-quoted; never a path.

    >>> file_name("gpu-01"), file_name("rack1/gpu"), file_name("..")
    ('gpu-01', 'rack1%2Fgpu', '%2E%2E')
    """
    import urllib.parse  # imported here, because few users of this module name files

    quoted = urllib.parse.quote(name, safe="")
    if quoted.startswith("."):
        quoted = quoted.replace(".", "%2E")
    if len(quoted) > 200:  # file names are limited to 255 bytes; the digest distinguishes long names
        import hashlib

        quoted = f"{quoted[:180]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return quoted or "%"
