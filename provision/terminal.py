"""Standard output and error, and the progress of a running command; the only module that imports rich.

On a terminal a live table of what each node is doing; elsewhere (CI, a pipe) plain lines, one per change.
Everything that came from a node passes through `printable` first: its answers are untrusted input.
"""

from __future__ import annotations

import codecs
import io
import itertools
import os
import re
import sys
import time

from provision import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

    from rich.live import Live
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from provision.errors import GpuprovError


def printable(text: str, limit: int = 2000) -> str:
    """`text` without control characters (a node must not move our cursor), newlines kept, cut to `limit`."""
    safe = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def say(line: str) -> None:
    """Write a line for people on standard error, outside of any progress that is shown."""
    sys.stderr.write(f"{printable(line)}\n")


def complain(error: GpuprovError) -> None:
    """Write an error, and what to do about it, on standard error."""
    sys.stderr.write(f"gpuprov: {printable(error.what)}\n")
    if error.fix:
        sys.stderr.write(f"  → {printable(error.fix)}\n")


class _Stream(io.TextIOWrapper):
    """Standard output or error, from its first failure on /dev/null: neither a later write nor the end of the
    interpreter fails once more."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as cause:
            self._failed(cause)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as cause:
            self._failed(cause)

    def _failed(self, cause: OSError) -> None:  # noqa: ARG002
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class _Output(_Stream):
    """Standard output: what nobody can read is an error."""

    def _failed(self, cause: OSError) -> None:
        super()._failed(cause)
        from provision.errors import OutputError

        raise OutputError(cause) from None


def take_streams() -> None:
    """Make standard output raise OutputError where it cannot be written to, and standard error never fail: a
    message that nobody can read must not end an `up` half-way.

    A stream that is closed (`>&-`) is opened on /dev/null, so that no other file gets its number; standard
    output in such a way that writing to it fails.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = _taken(sys.stdout, 1, _Output)
    sys.stderr = _taken(sys.stderr, 2, _Stream)


def _taken(stream: TextIO | None, number: int, kind: type[_Stream]) -> _Stream:
    if not isinstance(stream, io.TextIOWrapper):
        stream = open(number, "w", closefd=False)  # noqa: SIM115 - as long as the process
    # Python's own handler in the POSIX locale, surrogateescape, fails on our arrows and dots.
    utf8 = codecs.lookup(stream.encoding).name == "utf-8"
    errors = stream.errors if utf8 and stream.errors != "strict" else _ASCII
    how = (stream.encoding, errors, None, stream.line_buffering, stream.write_through)
    return kind(stream.detach(), *how)


_ASCII = "gpuprov.ascii"  # the name of the error handler
_SPELLED = {
    **{"→": "->", "…": "...", "·": "-", "≥": ">=", "≤": "<=", "°": "deg", "─": "-", "—": "-"},
    **{"├": "|", "└": "`", "✓": "+", "✗": "x"},
}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Error handler of streams: the symbols in ASCII that a locale has no characters for, else `?`."""
    return _SPELLED.get(error.object[error.start], "?"), error.start + 1  # type: ignore[attr-defined]


codecs.register_error(_ASCII, _in_ascii)


def coloured(stream: TextIO) -> bool:
    """Whether to write colours to `stream`: on a terminal that has any, unless NO_COLOR is set.

    FORCE_COLOR and CLICOLOR_FORCE ask for them elsewhere, too (a CI's log). As with other tools, a variable
    that is empty counts as not set, and NO_COLOR is stronger (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return live(stream)


def live(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


_COLORS = {"+": 32, "~": 33, "-": 31, "?": 33, "!": 31}  # green, yellow, red
_LINE = re.compile(r"^( *)(?:([+~?!-])(?![+-]))?(.*?)((?:  \[[^\]]*\])?)$", re.MULTILINE)


def painted(text: str) -> str:
    """`text` with each line that begins with a sign (`+ ~ - ? !`) in that sign's colour, and what stands in
    brackets at a line's end dimmed. It must be printable already."""

    def paint(line: re.Match[str]) -> str:
        space, sign, words, more = line.groups()
        shown = f"\033[{_COLORS[sign]}m{sign}{words}\033[0m" if sign else words
        return space + shown + (f"\033[2m{more}\033[0m" if more else "")

    return _LINE.sub(paint, text)


class Progress:
    """Progress of one long job over nodes, as a context manager.

    >>> with Progress("validate", total=3) as progress:
    ...     progress.step("gpu-01: gpu_burn")     # what is happening now
    ...     progress.done("gpu-01: pass")         # one unit of `total` is finished; the line stays visible
    """

    def __init__(self, title: str, total: int, stream: TextIO | None = None) -> None:
        self.title = title
        self.total = total
        self.finished = 0
        self._stream = stream or sys.stderr
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()
        self._at: dict[str, str] = {}

    def __enter__(self) -> Progress:
        if live(self._stream):
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
            )
            from rich.progress import Progress as RichProgress

            self._rich = RichProgress(
                SpinnerColumn(),
                TextColumn("[bold]{task.fields[title]}", markup=True),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(file=self._stream),
                transient=True,
            )
            self._rich.start()
            self._task = self._rich.add_task("", total=self.total, title=self.title, completed=self.finished)
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = None

    def step(self, text: str) -> None:
        """Say what is happening now. Replaces the last step on a terminal; is a line elsewhere."""
        if not self.detail(text):
            self._line(printable(text))

    def detail(self, text: str) -> bool:
        """Replace the last step on a terminal; a log has no use for it. Returns whether it is shown."""
        if self._rich is None or self._task is None:
            return False
        self._rich.update(self._task, description=printable(text))
        return True

    def at(self, node: str, what: str) -> None:
        """Note the current work of a node ("": none). A terminal shows the three longest at work."""
        self._at.pop(node, None)
        if what:
            self._at[node] = what
        first = [f"{name}: {at}" for name, at in itertools.islice(self._at.items(), 3)]
        more = len(self._at) - len(first)
        self.detail(", ".join(first) + (f" and {more} more" if more else ""))

    def done(self, text: str = "", count: int = 1) -> None:
        """`count` units are finished; `text`, if any, stays visible."""
        self.finished += count
        if text:
            self.say(text)
        if self._rich is not None and self._task is not None:
            self._rich.update(self._task, advance=count)

    def say(self, text: str) -> None:
        """A line that stays visible."""
        text = printable(text)
        if self._rich is not None:
            self._rich.console.print(text, markup=False, highlight=False)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        elapsed = int(time.monotonic() - self._started)
        self._stream.write(f"[{self.title} {self.finished}/{self.total} {elapsed:>3}s] {text}\n")
        self._stream.flush()


class Redrawn:
    """A text on standard output that is shown again and again, as a context manager: on a terminal in one
    place, elsewhere as a block of its own whenever it means something else.

    >>> with Redrawn() as screen:
    ...     screen.show("all nodes healthy, at 10:00:00", "healthy")
    ...     screen.show("all nodes healthy, at 10:00:10", "healthy")  # nothing new in a file
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live: Live | None = None
        self._meaning: object = None
        self._shown = False

    def __enter__(self) -> Redrawn:
        if live(self._stream):
            from rich.console import Console
            from rich.live import Live

            # Cut at the height of the terminal while it is redrawn; the last one is left whole at the end.
            self._live = Live(
                console=Console(file=self._stream), auto_refresh=False, vertical_overflow="ellipsis"
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, text: str, meaning: object) -> None:
        """`text` must be printable but for colours; `meaning`: what a later text has to differ in."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text.from_ansi(text), refresh=True)
        elif not self._shown or meaning != self._meaning:
            self._stream.write(text if not self._shown else f"\n{text}")
            self._stream.flush()
        self._shown, self._meaning = True, meaning
