"""Measures the cost of gpuprov next to floors of the same run: python -m benchmarks [--only PARTS] …

Exit status: 0 when every measured goal is met, 1 when a goal is missed, 70 when a part crashed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import document, measured
from benchmarks.goals import GOALS
from benchmarks.measured import Part
from benchmarks.results import (
    Measure,
    Result,
    add_arguments,
    as_installed,
    clean_up_on_sigterm,
    lines,
    misses,
    options_of,
)


def parts() -> dict[str, Measure]:
    """Return the `measure` function of every benchmarks/bench_*.py, keyed by its name without `bench_`."""
    found: dict[str, Measure] = {}
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        measure = getattr(importlib.import_module(f"benchmarks.{path.stem}"), "measure", None)
        if measure is not None:
            found[path.stem.removeprefix("bench_")] = measure
    return found


def chosen(text: str, known: Sequence[str]) -> list[str]:
    names = list(known) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise SystemExit(f"--only {name}: there is no such part; there are {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None, known: Mapping[str, Measure] | None = None) -> int:
    """Measure the parts in `known` (default: all) and return the exit status."""
    known = parts() if known is None else known
    parser = argparse.ArgumentParser(
        "benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--only", default="all", help=f"some parts of: {','.join(known)}")
    parser.add_argument(
        "--write",
        type=Path,
        help="the document that gets the figures; other parts' stay",
    )
    options = parser.parse_args(arguments)
    clean_up_on_sigterm()
    names = chosen(options.only, list(known))
    as_installed()
    kept: dict[str, Part] = {}
    if options.write:
        document.around(options.write)
        kept = measured.read(measured.beside(options.write), list(known))
    now = []
    for name in names:
        print(f"--- {name}", flush=True)
        part = _measured(name, known[name], options, document.command_line(arguments))
        print(f"    {part.seconds:.0f} s", flush=True)
        now.append(part)
        if options.write:  # write at once, since a later part may be interrupted
            kept[name] = part
            kept = {each: kept[each] for each in known if each in kept}
            measured.write(measured.beside(options.write), kept.values())
            document.write(options.write, kept.values())
    missed = [each for part in now for each in part.findings if misses(each)]
    for each in missed:
        print(f"NOT MET: {GOALS[each.goal].work}: {GOALS[each.goal].asked}")
    return 70 if any(part.failed for part in now) else 1 if missed else 0


def _measured(name: str, measure: Measure, options: argparse.Namespace, command: str) -> Part:
    """Measure one part and print its findings as they arrive. An error ends this part only."""
    findings: list[Result] = []
    failed = ""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpb-") as folder:
        try:
            for finding in measure(options_of(options, Path(folder))):
                findings.append(finding)
                print(*lines(finding), sep="\n", flush=True)
        except Exception as error:
            traceback.print_exc()
            failed = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return measured.part(name, command, time.monotonic() - started, findings, failed)


if __name__ == "__main__":
    sys.exit(main())
