"""The kernel's messages since the last run: the journal from where the last run ended, joined with what of
this boot concerns the GPUs and the machine around them.

`journalctl --show-cursor` ends with the place that it has read to (seen of systemd 257 on Debian 13;
`-- No entries --` comes before it where nothing is new, and alone where nothing ever was):

-- cursor: s=2f5a…;i=4b1;b=4c9e…;m=…;t=…;x=…
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from provision import __version__, shipped
from provision.checks.check import Command, Output
from provision.checks.kernel import host_lines, kernel_log
from provision.node.burnin.kernel_lines import whole_messages

NAME = "journal"  # of the command in gpu_inventory
_CURSOR = re.compile(r"^-- cursor: (s=[0-9a-f;=a-z]{20,300})$", re.MULTILINE)
_NOTHING = "-- No entries --"
_MOST = 4000  # lines that are kept: half the oldest, half the newest


@dataclass(frozen=True)
class Remembered:
    """How far the journal of one boot was read, and its lines that checks judge (the first line of all
    beside)."""

    boot_id: str
    cursor: str
    lines: tuple[str, ...]


def command(whole: Command, known: Remembered | None) -> Command:
    """The command that reads on where `known` ended; the whole journal without it."""
    more = ("--show-cursor", *(("--after-cursor", known.cursor) if known else ()))
    return replace(whole, argv=(*whole.argv, *more))


def joined(output: Output, known: Remembered | None, boot_id: str) -> tuple[Output, Remembered | None]:
    """The output as the whole journal of this boot would have it, as far as checks go, and what to remember.

    None to remember where the answer was no good: the next run reads the whole journal again.
    """
    found = _CURSOR.findall(output.stdout)
    text = _CURSOR.sub("", output.stdout)
    quiet = known is not None and not found and text.strip() == _NOTHING
    if output.rc != 0 or output.timed_out or output.truncated or not (found or quiet):
        return replace(output, stdout=text), None
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("-- ")]
    fresh = whole_messages(lines)
    lines = list(known.lines) if known else fresh[:1]  # one line shows that the log could be read
    fresh = fresh[0 if known else 1 :]
    of_host = set(host_lines.kept(fresh, lines))
    lines += [line for line in fresh if line in of_host or kernel_log.concerns_gpus(line)]
    lines = _without_flood(lines)
    if len(lines) > _MOST:
        lines = [*lines[: _MOST // 2], *lines[-_MOST // 2 :]]
    if not lines:  # a container's journal has no kernel lines
        return replace(output, stdout=text), None
    cursor = found[-1] if found else known.cursor if known else ""
    return replace(output, stdout="\n".join(lines) + "\n"), Remembered(boot_id, cursor, tuple(lines))


def _without_flood(lines: list[str]) -> list[str]:
    """Without those corrected PCIe errors, the first and last ones apart, for which there is no room: a link
    that repeats itself writes so many that they would push out what else was logged."""
    flood = [at for at, line in enumerate(lines) if "severity=Correct" in line]
    many = max(0, min(len(lines) - _MOST, len(flood)))
    begin = (len(flood) - many) // 2
    gone = set(flood[begin : begin + many])
    return [line for at, line in enumerate(lines) if at not in gone]


def plain(known: Remembered | None) -> Mapping[str, Any] | None:
    """For the state file."""
    if known is None:
        return None
    return {
        "boot_id": known.boot_id,
        "cursor": known.cursor,
        "lines": list(known.lines),
        "kept_by": _kept_by(),
    }


@cache
def _kept_by() -> str:
    """The version of the rules which lines are kept: others may keep what these left out."""
    catalogues = [shipped.load(name) for name in ("amdgpu", "host_lines", "kernel_log")]
    return f"{__version__} {zlib.crc32(repr(catalogues).encode()):08x}"


def read(document: Any, boot_id: str) -> Remembered | None:
    """From the state file; None for another boot, or where other rules chose the lines: then the whole log
    is read again. Raises KeyError, TypeError or ValueError when it is damaged."""
    if document is None or document["boot_id"] != boot_id or document.get("kept_by") != _kept_by():
        return None
    lines = tuple(document["lines"])
    if not _CURSOR.fullmatch(f"-- cursor: {document['cursor']}") or not all(
        isinstance(x, str) for x in lines
    ):
        raise ValueError("no cursor")
    return Remembered(boot_id, document["cursor"], lines)
