"""The measured figures for docs/performance.md: goals, ratios and measuring conditions."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from benchmarks.goals import GOALS
from benchmarks.measured import Part
from benchmarks.results import Result, spread

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOT_MEASURED = "not measured by this command yet"


def lines(parts: Collection[Part]) -> list[str]:
    """Render everything between the markers."""
    results = [each for part in parts for each in part.findings]
    found = [*goals(results), "", *_when(parts)]
    for part in parts:
        if part.failed:
            found += ["", f"`{part.name}` was not measured to its end: {part.failed}"]
    return found


def _when(parts: Collection[Part]) -> Iterator[str]:
    """Render how, when and where each part was measured, so that figures can be compared."""
    machines = list(dict.fromkeys(part.machine for part in parts))
    yield "### How it was measured"
    yield ""
    yield "Nodes and controller share one machine:"
    yield ""
    yield from (f"{place}. {each}." for place, each in enumerate(machines, 1))
    yield ""
    several = len(machines) > 1
    yield f"| part | day | revision | command |{' machine |' if several else ''} load at its end | minutes |"
    yield f"|---|---|---|---|{'---:|' if several else ''}---:|---:|"
    for part in parts:
        where = f" {machines.index(part.machine) + 1} |" if several else ""
        took = f"{part.load:.1f} | {part.seconds / 60:.1f}"
        yield f"| {part.name} | {part.day} | {part.revision} | `{part.command}` |{where} {took} |"


def goals(results: Sequence[Result]) -> Iterator[str]:
    """Render a row for each goal, measured or not, and one for each further result of the same goal."""
    yield "| goal | asked | measured: median (least to greatest) | met | on what |"
    yield "|---|---|---|---|---|"
    for key, goal in GOALS.items():
        mine = [result for result in results if result.goal == key]
        for result in mine:
            unit = goal.unit if goal.unit in ("", "x") else f" {goal.unit}"
            what = f"{result.what}; {len(result.values)} rounds" if len(result.values) > 1 else result.what
            what += f". {result.note}" if result.note else ""
            met = "not told" if result.unproven else "yes" if goal.met(result.median) else "**no**"
            what += f". Not told, for {result.unproven}" if result.unproven else ""
            yield f"| {goal.work} | {goal.asked} | {spread(result.values, unit)} | {met} | {what} |"
        if not mine:
            yield f"| {goal.work} | {goal.asked} | {NOT_MEASURED} | | |"


def around(document: Path, begin: str = BEGIN, end: str = END) -> tuple[str, str]:
    """Return the text before and after the figures. Raises SystemExit when the markers are missing."""
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"{document} cannot be read: {error.strerror}") from None
    if begin not in text or end not in text:
        raise SystemExit(f"{document} has no lines {begin} and {end} to write between")
    return text.split(begin)[0], text.split(end)[1]


def put(document: Path, written: Sequence[str], begin: str = BEGIN, end: str = END) -> None:
    """Write these lines between the markers."""
    head, tail = around(document, begin, end)
    document.write_text("\n".join([f"{head}{begin}", *written, f"{end}{tail}"]), encoding="utf-8")


def write(document: Path, parts: Collection[Part]) -> None:
    """Write the figures of all parts between the markers."""
    put(document, lines(parts))


def command_line(arguments: Sequence[str] | None) -> str:
    """Return the command that a reader would repeat, without the document and the selection of parts."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for option in ("--write", "--only"):
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return " ".join(["python -m benchmarks", *words])
