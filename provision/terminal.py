"""Progress output of a running command; the only module that imports rich.

On a terminal a live table of what each node is doing; elsewhere (CI, a pipe) plain lines, one per change.
Everything that came from a node passes through `printable` first: its answers are untrusted input.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


def printable(text: str, limit: int = 2000) -> str:
    """`text` without control characters (a node must not move our cursor), newlines kept, cut to `limit`."""
    safe = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def colored(stream: TextIO) -> bool:
    """Whether to print colours there: a terminal that has them, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


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

    def __enter__(self) -> Progress:
        if self._stream.isatty():
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

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Out of the way while something inside this job shows a progress of its own."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def step(self, text: str) -> None:
        """Say what is happening now. Replaces the last step on a terminal; is a line elsewhere."""
        text = printable(text)
        if self._rich is not None and self._task is not None:
            self._rich.update(self._task, description=text)
        else:
            self._line(text)

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
