"""The table of docs/detection.md about AMD's own amd-smi: each SKU, release and fault.

python -m tests.printers.amdsmi_detection --write docs/detection.md
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.printers import debian
from tests.printers.amdsmi import RELEASES, SKUS, AmdPrinters, AmdSmi
from tests.printers.amdsmi_faults import FAULTS
from tests.printers.amdsmi_judged import REFUSALS, REFUSED, RIGHT, WRONG, Judged, judge_all

BEGIN, END = "<!-- amd-smi: begin -->", "<!-- amd-smi: end -->"
_Outcomes = dict[tuple[str, str], list[Judged]]  # by release and SKU


def outcomes(printers: AmdPrinters) -> _Outcomes:
    """Judge every fault that applies, on every SKU under every release."""
    pairs = [(release, sku) for release, skus in SKUS.items() for sku in skus]
    return {(release, sku): list(judge_all(printers(release), sku, release)) for release, sku in pairs}


def head() -> str:
    """The line that identifies faults, allowed verdicts, SKUs and releases by a digest."""
    told = repr([(one.name, one.verdicts, one.device, one.actions, one.needs) for one in FAULTS])
    digest = hashlib.sha256(f"{told}{SKUS}".encode()).hexdigest()[:12]
    return (
        f"{len(FAULTS)} faults and look-alikes, {len(SKUS['10.1'])} SKUs and guests, "
        f"{len(RELEASES)} releases; table {digest}."
    )


def lines(found: _Outcomes) -> Iterator[str]:
    """The section: a table of SKUs, a table of faults, and every outcome that is not right."""
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
        why = REFUSALS.get((release, one.fault), one.words) if one.outcome == REFUSED else one.words
        yield f"- {sku}, {release}, {one.outcome}: {one.fault}: {why}"


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
        yield f"| {row} | {' | '.join(cells)} |"


def write(document: Path, section: Iterable[str]) -> None:
    """Replace the section in the document."""
    before, _, rest = document.read_text("utf-8").partition(BEGIN)
    text = "\n".join(section)
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = {}
        for release, suite in RELEASES.items():
            (place := Path(folder, release)).mkdir()
            started[release] = AmdSmi.start(debian.unpacked("amd-smi", suite, "main"), place)
        write(options.write, lines(outcomes(started.__getitem__)))
        for program in started.values():
            program.stop()


if __name__ == "__main__":
    main()
