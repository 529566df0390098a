"""The tables of docs/detection.md about AMD's own amd-smi: each SKU, release and fault.

    python -m tests.printers.amdsmi_detection --write docs/detection.md

Of releases that Debian does not have, by hand, from folders with AMD's source (amdsmi_cli, py-interface):

    python -m tests.printers.amdsmi_detection --write docs/detection.md --source 6.2.4=FOLDER 6.3.3=FOLDER
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from gpuprov_lab import debian
from tests.printers.amdsmi import RELEASES, SKUS, AmdPrinters, AmdSmi, skus_of
from tests.printers.amdsmi_faults import FAULTS
from tests.printers.amdsmi_judged import REFUSED, RIGHT, WRONG, Judged, judge_all

BEGIN, END = "<!-- amd-smi: begin -->", "<!-- amd-smi: end -->"
BY_HAND = "<!-- amd-smi by hand: begin -->", "<!-- amd-smi by hand: end -->"
_Outcomes = dict[tuple[str, str], list[Judged]]  # by release and SKU


def outcomes(printers: AmdPrinters, releases: Mapping[str, Sequence[str]] = SKUS) -> _Outcomes:
    """Judge every fault that applies, on every SKU under every release. `releases`: to their SKUs."""
    pairs = [(release, sku) for release, skus in releases.items() for sku in skus]
    return {(release, sku): list(judge_all(printers(release), sku, release)) for release, sku in pairs}


def head() -> str:
    """Return the line that identifies faults, allowed verdicts, SKUs and releases by a digest."""
    told = repr([(one.name, one.verdicts, one.device, one.actions, one.needs) for one in FAULTS])
    digest = hashlib.sha256(f"{told}{SKUS}".encode()).hexdigest()[:12]
    return (
        f"{len(FAULTS)} faults and look-alikes, {len(SKUS['10.1'])} SKUs and guests, "
        f"{len(RELEASES)} releases; table {digest}."
    )


def lines(found: _Outcomes) -> Iterator[str]:
    """Yield the section: a table of SKUs, a table of faults, and every outcome that is not right."""
    judged = [one for row in found.values() for one in row]
    counts = Counter(one.outcome for one in judged)
    yield head()
    yield ""
    yield (
        f"{len(judged)} outputs: {counts[RIGHT]} right ({100 * counts[RIGHT] / len(judged):.1f} %), "
        f"{counts[REFUSED]} refused, {counts[WRONG]} wrong."
    )
    yield from _table("SKU", SKUS["10.1"], found, lambda key, sku, _: key[1] == sku)
    yield from _table("fault", [one.name for one in FAULTS], found, lambda _, name, one: one.fault == name)
    yield ""
    others = [(key, one) for key, row in found.items() for one in row if one.outcome != RIGHT]
    yield from ("Refused or wrong:", "") if others else ("Nothing was refused, and nothing was wrong.",)
    for (release, sku), one in others:
        yield f"- {sku}, {release}, {one.outcome}: {one.fault}: {one.words}"


def lines_by_hand(found: _Outcomes) -> Iterator[str]:
    """Yield the section of releases tried by hand: their counts, and every outcome that is not right."""
    yield f"{date.today():%d %B %Y}, {head().split(', ')[0]}, {head().split('; ')[1]}"
    yield from ("", "| release of ROCm | SKUs and guests | outputs | right | refused | wrong |")
    yield "|---|---|---:|---:|---:|---:|"
    others: dict[str, list[str]] = {}
    for release in dict.fromkeys(release for release, _ in found):
        skus = [sku for of, sku in found if of == release]
        judged = [(sku, one) for sku in skus for one in found[release, sku]]
        counts = Counter(one.outcome for _, one in judged)
        row = (release, ", ".join(skus), len(judged), *(counts[kind] for kind in (RIGHT, REFUSED, WRONG)))
        yield f"| {' | '.join(map(str, row))} |"
        for sku, one in judged:
            if one.outcome != RIGHT:
                others.setdefault(f"{release}, {one.outcome}: {one.fault}: {one.words}", []).append(sku)
    yield from ("", *(f"- {words} ({', '.join(skus)})" for words, skus in others.items()))


def _table(
    title: str,
    rows: Iterable[str],
    found: _Outcomes,
    fits: Callable[[tuple[str, str], str, Judged], bool],
) -> Iterator[str]:
    yield from ("", f"| {title} | {' | '.join(RELEASES)} |", f"|---{'|---:' * len(RELEASES)}|")
    for row in rows:
        cells = []
        for release in RELEASES:
            kinds = [
                one.outcome
                for key, judged in found.items()
                for one in judged
                if key[0] == release and fits(key, row, one)
            ]
            cells.append(f"{kinds.count(RIGHT)}/{len(kinds)}" if kinds else "")
        if any(cells):
            yield f"| {row} | {' | '.join(cells)} |"


def write(document: Path, section: Iterable[str], marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Replace the section in the document."""
    begin, end = marks
    before, _, rest = document.read_text("utf-8").partition(begin)
    text = "\n".join(section)
    document.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", metavar="FILE", type=Path, required=True)
    parser.add_argument("--source", metavar="RELEASE=FOLDER", nargs="+", help="other releases, by hand")
    options = parser.parse_args()
    by_hand = dict(one.split("=", 1) for one in options.source or ())
    with tempfile.TemporaryDirectory() as folder:
        started = {}
        for release in by_hand or RELEASES:
            (place := Path(folder, release)).mkdir()
            files = (
                Path(by_hand[release]) if by_hand else debian.unpacked("amd-smi", RELEASES[release], "main")
            )
            started[release] = AmdSmi.start(files, place)
        if by_hand:
            found = outcomes(started.__getitem__, {release: skus_of(release) for release in by_hand})
            write(options.write, lines_by_hand(found), BY_HAND)
        else:
            write(options.write, lines(outcomes(started.__getitem__)))
        for program in started.values():
            program.stop()


if __name__ == "__main__":
    main()
