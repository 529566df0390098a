"""Formatting of untrusted text and values: no control characters, values with units, readable times."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

from provision.terminal import printable

LONGEST = 600  # characters of a message in a table or a line; the run folder has the whole

# C0 and C1 controls, lone surrogates, zero-width and bidirectional controls, and characters that XML 1.0
# forbids. A node must not move our cursor, reverse our lines, or make a document invalid.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_SPACES = re.compile(r"\s+")


def clean(text: str) -> str:
    """Replace all characters that do not display as themselves by �; newlines and tabs stay.

    >>> clean("gpu\\x1b[2J")
    'gpu�[2J'
    """
    return _UNSHOWABLE.sub("�", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = LONGEST) -> str:
    """Clean a text and put it on one line of at most `limit` characters."""
    line = _SPACES.sub(" ", clean(text[: 4 * limit])).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def columns(text: str, limit: int = 500) -> str:
    """Clean a line of raw output, keeping spaces so that columns stay aligned."""
    line = clean(text[: limit + 1]).replace("\n", " ").expandtabs()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quantity(value: float | int | str | bool | None, unit: str = "") -> str:
    """Format a value with its unit: `61.3 GB/s`, `yes`; empty for None.

    >>> quantity(61.31234, "GB/s")
    '61.31 GB/s'
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        shown = "yes" if value else "no"
    elif isinstance(value, float) and math.isfinite(value):
        shown = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    else:
        shown = one_line(str(value), 120)
    return f"{shown} {one_line(unit, 40)}".strip()


def duration(started: str, finished: str) -> str:
    """Format the time between two ISO 8601 timestamps as `4 min 12 s`; empty if one is invalid."""
    try:
        seconds = (
            datetime.datetime.fromisoformat(finished) - datetime.datetime.fromisoformat(started)
        ).total_seconds()
    except (ValueError, TypeError):
        return ""
    return spelled(int(seconds)) if seconds >= 0 else ""


def spelled(seconds: int) -> str:
    """Format seconds for people: `45 s`, `4 min 12 s`, `26 h 5 min`."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def moment(iso: str) -> str:
    """Format an ISO 8601 timestamp as `2026-05-04 10:00:00 UTC`; an invalid one is returned as is."""
    try:
        when = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return one_line(iso, 40)
    if when.tzinfo is not None:
        when = when.astimezone(datetime.timezone.utc)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def now(timespec: str = "milliseconds") -> str:
    """Return the current UTC time as in records: `2026-05-04T10:00:00.000Z`."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")


def iso(seconds: float) -> str:
    """Format seconds since 1970 for programs: `2026-05-04T10:00:00Z`."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def many(count: int, word: str, plural: str = "") -> str:
    """Format a count with its noun: `1 node`, `3 nodes`."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


WIDTH = 60  # displayed characters of a value


def value_text(what: Any, width: int = WIDTH) -> str:
    """Format a value on one line: quoted if ambiguous, truncated if long; null is `nothing`."""
    if what is None:
        return "nothing"
    if isinstance(what, str):
        text = (
            what
            if what and what == what.strip() and "\n" not in what
            else json.dumps(what, ensure_ascii=False)
        )
    else:
        text = json.dumps(what, ensure_ascii=False, default=str)
    text = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= width else text[: width - 1] + "…"
