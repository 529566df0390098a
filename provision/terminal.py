"""Standard output, standard error and progress of a command; the only module that imports rich.

A terminal shows a live table of each node's current work; otherwise (CI, a pipe) each change is a plain line.
All text from nodes passes through `printable`, since it is untrusted input.
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
    """Return `text` without control characters, which could move our cursor, truncated to `limit`."""
    safe = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def say(line: str) -> None:
    """Write a line for people to standard error, not as part of a progress display."""
    sys.stderr.write(f"{printable(line)}\n")


def complain(error: GpuprovError) -> None:
    """Write an error and its fix to standard error."""
    sys.stderr.write(f"gpuprov: {printable(error.what)}\n")
    if error.fix:
        sys.stderr.write(f"  → {printable(error.fix)}\n")


class _Stream(io.TextIOWrapper):
    """A standard stream that switches to /dev/null at its first failure.
    Neither later writes nor the interpreter's exit fail again."""

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
    """Standard output, on which a failed write raises OutputError."""

    def _failed(self, cause: OSError) -> None:
        super()._failed(cause)
        from provision.errors import OutputError

        raise OutputError(cause) from None


def take_streams() -> None:
    """Make standard output raise OutputError on failure, and standard error never fail.

    A message that cannot be read must not abort an `up`. A closed stream (`>&-`) is opened on /dev/null, so
    that no other file gets its number; standard output is opened such that writing fails.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - open as long as the process
    sys.stdout = _taken(sys.stdout, 1, _Output)
    sys.stderr = _taken(sys.stderr, 2, _Stream)


def _taken(stream: TextIO | None, number: int, kind: type[_Stream]) -> _Stream:
    if not isinstance(stream, io.TextIOWrapper):
        stream = open(number, "w", closefd=False)  # noqa: SIM115 - open as long as the process
    # Python's default error handler in the POSIX locale, surrogateescape, fails on our arrows and dots.
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
    """Handle encoding errors of a stream with an ASCII form of our symbols, or `?`."""
    return _SPELLED.get(error.object[error.start], "?"), error.start + 1  # type: ignore[attr-defined]


codecs.register_error(_ASCII, _in_ascii)


def coloured(stream: TextIO) -> bool:
    """Return whether to colour `stream`: on a terminal with colours, unless NO_COLOR is set.

    FORCE_COLOR and CLICOLOR_FORCE request colours elsewhere, such as in a CI log. As in other tools, an empty
    variable counts as unset, and NO_COLOR takes precedence (no-color.org, force-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return live(stream)


def live(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


_COLORS = {"+": 32, "~": 33, "-": 31, "?": 33, "!": 31}  # green, yellow, red
_LINE = re.compile(r"^( *)(?:([+~?!-])(?![+-]))?(.*?)((?:  \[[^\]]*\])?)$", re.MULTILINE)


def painted(text: str) -> str:
    """Colour each line of a printable text by its leading sign (`+ ~ - ? !`), and dim brackets at its end."""

    def paint(line: re.Match[str]) -> str:
        space, sign, rest, bracket = line.groups()
        shown = f"\033[{_COLORS[sign]}m{sign}{rest}\033[0m" if sign else rest
        return space + shown + (f"\033[2m{bracket}\033[0m" if bracket else "")

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
        """Show the current step: in place of the last one on a terminal, else as a line."""
        if not self.detail(text):
            self._line(printable(text))

    def detail(self, text: str) -> bool:
        """Replace the last step on a terminal only, not in a log; return whether it is shown."""
        if self._rich is None or self._task is None:
            return False
        self._rich.update(self._task, description=printable(text))
        return True

    def at(self, node: str, what: str) -> None:
        """Record the current work of a node ("": none); a terminal shows the three that work longest."""
        self._at.pop(node, None)
        if what:
            self._at[node] = what
        first = [f"{name}: {at}" for name, at in itertools.islice(self._at.items(), 3)]
        hidden = len(self._at) - len(first)
        self.detail(", ".join(first) + (f" and {hidden} more" if hidden else ""))

    def done(self, text: str = "", count: int = 1) -> None:
        """Mark `count` units as finished; `text`, if any, stays visible."""
        self.finished += count
        if text:
            self.say(text)
        if self._rich is not None and self._task is not None:
            self._rich.update(self._task, advance=count)

    def say(self, text: str) -> None:
        """Print a line that stays visible."""
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
    """Repeated display of a text on standard output, as a context manager.
    A terminal shows it in one place; elsewhere a new block is printed if its meaning has changed.

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

            # Truncated to the terminal's height while it is redrawn; the last one is shown in full at the
            # end.
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
        """Show a printable text, which may have colours; `meaning`: what must differ for a new block."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text.from_ansi(text), refresh=True)
        elif not self._shown or meaning != self._meaning:
            self._stream.write(text if not self._shown else f"\n{text}")
            self._stream.flush()
        self._shown, self._meaning = True, meaning
