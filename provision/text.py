"""Formatting of untrusted text and values: no control characters, values with units, readable times."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

from provision.terminal import printable

LONGEST = 600  # characters of one message in a table or a line; the run folder keeps the whole

# C0 and C1 controls, lone surrogates, zero-width and bidirectional controls, and what XML 1.0 forbids. A node
# must not move our cursor, reverse our lines, or make a document invalid.
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_SPACES = re.compile(r"\s+")


def clean(text: str) -> str:
    """`text` with everything that is not shown as itself replaced by �; newlines and tabs stay.

    >>> clean("gpu\\x1b[2J")
    'gpu�[2J'
    """
    return _UNSHOWABLE.sub("�", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = LONGEST) -> str:
    """`clean`, on one line, cut to `limit` characters."""
    line = _SPACES.sub(" ", clean(text[: 4 * limit])).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def columns(text: str, limit: int = 500) -> str:
    """A line of raw output: spaces kept, for a table's columns must stay columns."""
    line = clean(text[: limit + 1]).replace("\n", " ").expandtabs()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quantity(value: float | int | str | bool | None, unit: str = "") -> str:
    """A value with its unit: `61.3 GB/s`, `yes`, and nothing for None.

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
    """The time between two ISO 8601 moments: `4 min 12 s`; nothing when one cannot be read."""
    try:
        seconds = (
            datetime.datetime.fromisoformat(finished) - datetime.datetime.fromisoformat(started)
        ).total_seconds()
    except (ValueError, TypeError):
        return ""
    return spelled(int(seconds)) if seconds >= 0 else ""


def spelled(seconds: int) -> str:
    """Seconds as a person says them: `45 s`, `4 min 12 s`, `26 h 5 min`."""
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def moment(iso: str) -> str:
    """An ISO 8601 moment as `2026-05-04 10:00:00 UTC`; as it came when it cannot be read."""
    try:
        when = datetime.datetime.fromisoformat(iso)
    except ValueError:
        return one_line(iso, 40)
    if when.tzinfo is not None:
        when = when.astimezone(datetime.timezone.utc)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def now(timespec: str = "milliseconds") -> str:
    """This moment in UTC as records have it: `2026-05-04T10:00:00.000Z`."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")


def iso(seconds: float) -> str:
    """A moment (seconds since 1970) as programs read it: `2026-05-04T10:00:00Z`."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def many(count: int, word: str, plural: str = "") -> str:
    """A count with its word: `1 node`, `3 nodes`."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


WIDTH = 60  # characters of a value that are shown


def value_text(what: Any, width: int = WIDTH) -> str:
    """A value on one line: quoted where it would be unclear, cut when long; null is `nothing`."""
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
