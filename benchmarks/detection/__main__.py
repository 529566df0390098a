"""Measures how well `gpuprov validate` detects: python -m benchmarks.detection [--seeds N|A-B] [--classes …]

Without a range, fresh seeds are drawn; they are printed so that a run can be repeated.
Exit status: 0 when every clear fault was caught and blamed correctly and no healthy node was flagged, 1
otherwise, 70 when the benchmark itself failed.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import document
from benchmarks.detection import (
    amd_report,
    catalogue,
    catalogue_amd,
    machine,
    perturb_report,
    perturb_trial,
    report,
    trial,
)
from benchmarks.detection.trial import HEALTHY, Trial

GRADED_FOR_EACH = 4  # graded trials for each clear trial


def trials(keys: Sequence[str], seeds: range, healthy: int, *, graded: int) -> list[Trial]:
    """Return a trial of each class and seed, and `graded` times as many with a graded severity."""
    found = [Trial(key, seed) for key in keys if key != HEALTHY for seed in seeds]
    for key in keys:
        if key != HEALTHY and catalogue.ENTRIES[key].graded:
            found += [Trial(key, seeds.start + i, graded=True) for i in range(graded * len(seeds))]
    if HEALTHY in keys:
        found += [Trial(HEALTHY, seeds.start + i) for i in range(healthy)]
    return found


def outcomes(asked: Sequence[Trial], jobs: int) -> Iterator[dict[str, Any]]:
    """Run the trials in parallel processes and yield each outcome as it completes."""
    return machine.pooled(trial.run, asked, jobs, chunksize=4)


def resumed(asked: Sequence[Trial], kept: Path | None, jobs: int) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of trials; known ones are read from `kept` (JSON lines), new ones appended.

    A line that was cut off by an interrupted run is run again. Without a file all trials are run.
    """
    if kept is None:
        yield from outcomes(asked, jobs)
        return
    known: dict[Trial, dict[str, Any]] = {}
    if kept.exists():
        text = kept.read_text()
        whole = text[: text.rfind("\n") + 1]
        kept.write_text(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        known = {Trial(row["key"], row["seed"], row["graded"]): row for row in rows if not row["trouble"]}
    yield from (known[one] for one in asked if one in known)
    with kept.open("a") as file:
        for outcome in outcomes([one for one in asked if one not in known], jobs):
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            yield outcome


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.perturbed:
        return perturbed(options.perturbed, options.jobs, options.write)
    if options.amd:
        return of_amd(options.amd, options.keep, options.jobs, options.write)
    seeds = _seeds(options.seeds)
    keys = _keys(options.classes)
    graded = 0 if options.quick else GRADED_FOR_EACH
    requested = trials(
        keys,
        seeds,
        options.healthy if options.healthy is not None else 100 if options.quick else 2000,
        graded=graded,
    )
    began, found = time.monotonic(), []
    for one in resumed(requested, options.keep, options.jobs):
        found.append(one)
        if sys.stderr.isatty():
            print(f"\r{len(found)} of {len(requested)} nodes", end="", file=sys.stderr, flush=True)
    shown = f"{seeds.start}-{seeds.stop - 1}"
    how = f"`python -m benchmarks.detection --seeds {shown}`: {len(found)} simulated nodes."
    result = report.report(found, set(keys), how)
    print("\n".join(result.lines))
    print(f"\n{time.monotonic() - began:.0f} s with {options.jobs} processes; seeds {shown}")
    for line in (*result.misses, *result.trouble[:5]):
        print(line)
    if options.write:
        document.put(options.write, result.lines)
    return 70 if result.trouble else 1 if result.misses else 0


def perturbed(count: int, jobs: int, written: Path | None) -> int:
    """Run the second edition: `count` perturbed outputs of a generator that does not know the checks."""
    found = perturb_trial.outcomes(perturb_trial.chosen(count), jobs)
    text = perturb_report.lines(found, perturb_report.head(count, len(found)))
    print("\n".join(text))
    if written:
        document.put(written, text, perturb_report.BEGIN, perturb_report.END)
    return 1 if perturb_report.misses(found) else 0


def of_amd(seeds: int, kept: Path | None, jobs: int, written: Path | None) -> int:
    """Try nodes with AMD GPUs: each class with `seeds` fixed seeds, and ten times as many healthy nodes."""
    requested = [Trial(key, seed) for key in catalogue_amd.ENTRIES for seed in range(seeds)]
    requested += [Trial(catalogue_amd.HEALTHY, seed) for seed in range(10 * seeds)]
    found = list(resumed(requested, kept, jobs))
    text = amd_report.lines(
        found, f"`python -m benchmarks.detection --amd {seeds}`: {len(found)} simulated nodes."
    )
    print("\n".join(text))
    wrong = amd_report.misses(found)
    print("\n".join(wrong))
    if written:
        document.put(written, text, amd_report.BEGIN, amd_report.END)
    return 70 if any(one["trouble"] for one in found) else 1 if wrong else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks.detection", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--seeds", default="20", help="N fresh seeds for each class, or the range A-B")
    parser.add_argument(
        "--classes", default="all", help="7,9,14t,healthy: numbers; t for the look-alike; all"
    )
    parser.add_argument("--healthy", type=int, help="healthy nodes to run (2000; 100 with --quick)")
    parser.add_argument("--quick", action="store_true", help="few healthy nodes, no graded severities")
    parser.add_argument(
        "--perturbed", type=int, metavar="N", help="instead: N outputs perturbed at random, with fixed seeds"
    )
    parser.add_argument(
        "--amd",
        type=int,
        metavar="N",
        help="instead: nodes with AMD's GPUs, N of each class, with fixed seeds",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--keep", type=Path, help="where outcomes are kept, so that the same command goes on if it was ended"
    )
    parser.add_argument("--write", type=Path, help="the document whose tables are replaced")
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    if dash:
        return range(int(first), int(last) + 1)
    start = secrets.randbelow(10**8)
    return range(start, start + int(first))


def _keys(text: str) -> list[str]:
    """Return the requested classes; `all` selects every class that can be tried."""
    if text == "all":
        return [*(e.key for e in (*catalogue.covered(traps=False), *catalogue.covered(traps=True))), HEALTHY]
    keys = [key.strip() for key in text.split(",")]
    for key in keys:
        if key != HEALTHY and key not in catalogue.ENTRIES:
            raise SystemExit(f"there is no class {key}; known: {', '.join(catalogue.ENTRIES)}, {HEALTHY}")
        if key != HEALTHY and catalogue.not_covered(key):
            raise SystemExit(f"class {key} is not covered: {catalogue.not_covered(key)}")
    return keys


if __name__ == "__main__":
    sys.exit(main())
