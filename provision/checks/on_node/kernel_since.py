"""Kernel messages since the last run, read from the journal position at which that run ended.

They are joined with the earlier lines of this boot that concern the GPUs and their host. The position is the
last line of `journalctl --show-cursor` (seen with systemd 257 on Debian 13); `-- No entries --` precedes it
if nothing is new, and stands alone if the journal is empty:

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

NAME = "journal"  # name of the command in gpu_inventory
_CURSOR = re.compile(r"^-- cursor: (s=[0-9a-f;=a-z]{20,300})$", re.MULTILINE)
_NOTHING = "-- No entries --"
_MOST = 4000  # kept lines, half of them the oldest, half the newest


@dataclass(frozen=True)
class Remembered:
    """Journal position of one boot, with the first line and the lines that checks judge."""

    boot_id: str
    cursor: str
    lines: tuple[str, ...]


def command(whole: Command, known: Remembered | None) -> Command:
    """Return the command that reads on from `known`, or the whole journal without it."""
    more = ("--show-cursor", *(("--after-cursor", known.cursor) if known else ()))
    return replace(whole, argv=(*whole.argv, *more))


def joined(output: Output, known: Remembered | None, boot_id: str) -> tuple[Output, Remembered | None]:
    """Return the output as if the whole journal of this boot had been read, and what to remember.

    The second value becomes None after a failed read, so that the next run reads the whole journal again.
    """
    cursors = _CURSOR.findall(output.stdout)
    text = _CURSOR.sub("", output.stdout)
    quiet = known is not None and not cursors and text.strip() == _NOTHING
    if output.rc != 0 or output.timed_out or output.truncated or not (cursors or quiet):
        return replace(output, stdout=text), None
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("-- ")]
    fresh = whole_messages(lines)
    lines = list(known.lines) if known else fresh[:1]  # one line proves that the log was readable
    fresh = fresh[0 if known else 1 :]
    of_host = set(host_lines.kept(fresh, lines))
    lines += [line for line in fresh if line in of_host or kernel_log.concerns_gpus(line)]
    lines = _without_flood(lines)
    if len(lines) > _MOST:
        lines = [*lines[: _MOST // 2], *lines[-_MOST // 2 :]]
    if not lines:  # a container's journal has no kernel lines
        return replace(output, stdout=text), None
    cursor = cursors[-1] if cursors else known.cursor if known else ""
    return replace(output, stdout="\n".join(lines) + "\n"), Remembered(boot_id, cursor, tuple(lines))


def _without_flood(lines: list[str]) -> list[str]:
    """Drop surplus corrected PCIe errors from the middle; a noisy link logs enough to push out the rest."""
    flood = [at for at, line in enumerate(lines) if "severity=Correct" in line]
    many = max(0, min(len(lines) - _MOST, len(flood)))
    begin = (len(flood) - many) // 2
    gone = set(flood[begin : begin + many])
    return [line for at, line in enumerate(lines) if at not in gone]


def plain(known: Remembered | None) -> Mapping[str, Any] | None:
    """Serialise for the state file."""
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
    """Version of the rules that select lines: other rules may keep lines that these dropped."""
    catalogues = [shipped.load(name) for name in ("amdgpu", "host_lines", "kernel_log")]
    return f"{__version__} {zlib.crc32(repr(catalogues).encode()):08x}"


def read(document: Any, boot_id: str) -> Remembered | None:
    """Restore from the state file. Raises KeyError, TypeError or ValueError if it is damaged.

    None after a reboot or if other rules selected the lines; the whole log is then read again."""
    if document is None or document["boot_id"] != boot_id or document.get("kept_by") != _kept_by():
        return None
    lines = tuple(document["lines"])
    if not _CURSOR.fullmatch(f"-- cursor: {document['cursor']}") or not all(
        isinstance(x, str) for x in lines
    ):
        raise ValueError("no cursor")
    return Remembered(boot_id, document["cursor"], lines)
