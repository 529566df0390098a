"""What was measured, as docs/performance.md shows it: goals and ratios side by side, then tables."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.goals import GOALS
from benchmarks.results import Finding, Plot, Result, Table, spread

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOT_MEASURED = "not measured by this command yet"


def lines(how: str, findings: Sequence[Finding], failed: Mapping[str, str]) -> list[str]:
    """Everything between the markers. `failed`: parts that were ended by an error, and by which."""
    found = [how, "", machine(), "", *goals([each for each in findings if isinstance(each, Result)])]
    for part, why in failed.items():
        found += ["", f"`{part}` was not measured: {why}"]
    for each in findings:
        if isinstance(each, Table):
            found += ["", *_table(each)]
        elif isinstance(each, Plot):
            found += ["", f"![{each.what}]({each.name})"]
    return found


def machine() -> str:
    """Where it was measured: what a reader needs to compare."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    said = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, timeout=10).stderr
    versions = [f"Python {platform.python_version()}", said.split(",")[0].strip()]
    for name in ("ansible-core", "ansible-runner", "paramiko"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    load = os.getloadavg()[1]
    kernel = platform.release().split("-")[0]
    return (
        f"Machine, shared by nodes and controller: {cores} cores ({platform.machine()}), {memory:.0f} GiB, "
        f"Linux {kernel}; {', '.join(versions)}; load at the end {load:.1f}."
    )


def goals(results: Sequence[Result]) -> Iterator[str]:
    """A row for each goal, measured or not, and one for each result more of the same goal."""
    yield "| goal | asked | measured: median (least to greatest) | met | on what |"
    yield "|---|---|---|---|---|"
    for key, goal in GOALS.items():
        mine = [result for result in results if result.goal == key]
        for result in mine:
            unit = goal.unit if goal.unit in ("", "x") else f" {goal.unit}"
            what = f"{result.what}; {len(result.values)} rounds" if len(result.values) > 1 else result.what
            what += f". {result.note}" if result.note else ""
            met = "yes" if goal.met(result.median) else "**no**"
            yield f"| {goal.work} | {goal.asked} | {spread(result.values, unit)} | {met} | {what} |"
        if not mine:
            yield f"| {goal.work} | {goal.asked} | {NOT_MEASURED} | | |"
    for result in results:
        if result.goal not in GOALS:
            unit = "x" if result.floor else ""
            yield f"| {result.what} | no goal | {spread(result.values, unit)} | | {result.note} |"


def _table(table: Table) -> Iterator[str]:
    yield f"### {table.title}"
    yield ""
    yield f"| {' | '.join(table.head)} |"
    yield "|---" + "|---:" * (len(table.head) - 1) + "|"
    yield from (f"| {' | '.join(row)} |" for row in table.rows)
    for note in table.notes:
        yield from ("", note)


def write(document: Path, found: Sequence[str], findings: Sequence[Finding]) -> None:
    """Put the figures between the markers, and drawings beside the document."""
    text = document.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{document} has no lines {BEGIN} and {END} to write between")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text("\n".join([f"{head}{BEGIN}", *found, f"{END}{tail}"]), encoding="utf-8")
    for each in findings:
        if isinstance(each, Plot):
            (document.parent / each.name).write_text(each.svg, encoding="utf-8")


def command_line(arguments: Sequence[str] | None) -> str:
    """The command as a reader would repeat it: where the document is written does not matter to them."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--write" in words:
        at = words.index("--write")
        del words[at : at + 2]
    return " ".join(["python -m benchmarks", *words])
