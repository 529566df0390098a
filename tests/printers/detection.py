"""The table of docs/detection.md about NVIDIA's own nvidia-smi: each SKU, release and fault.

python -m tests.printers.detection --write docs/detection.md
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.printers.nvml_faults import FAULTS
from tests.printers.outcomes import FIRST, PAIRS, outcome
from tests.printers.smi import RELEASES, Printers, release

BEGIN, END = "<!-- nvidia-smi: begin -->", "<!-- nvidia-smi: end -->"
KINDS = ("right", "refused", "wrong")


class Outcome(NamedTuple):
    """The outcome of one fault on one SKU in the output of one release."""

    driver: str
    sku: str
    fault: str
    kind: str
    why: str


def outcomes(printers: Printers, drivers: Iterable[str] = RELEASES) -> list[Outcome]:
    """Return the outcome of every applicable fault, on every pair with these releases."""
    wanted = set(drivers)
    found = []
    for driver, sku in PAIRS:
        for fault in FAULTS if driver in wanted else ():
            if (one := outcome(fault, printers(driver), driver, sku)) is not None:
                found.append(Outcome(driver, sku, fault.name, *one))
    return found


def head() -> str:
    """Return the line that identifies faults, allowed verdicts, SKUs and releases by a digest."""
    told = repr([(one.name, one.verdicts, one.device, one.actions, one.needs) for one in FAULTS] + PAIRS)
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    return (
        f"{len(FAULTS)} faults and look-alikes, {len(FIRST)} SKUs, {len(RELEASES)} releases; table {digest}."
    )


def lines(found: list[Outcome]) -> Iterator[str]:
    """Yield the section: a table of SKUs, a table of faults, and every outcome that is not right."""
    counts = Counter(one.kind for one in found)
    share = 100 * counts["right"] / len(found)
    yield head()
    yield ""
    yield (
        f"{len(found):,} outputs: {counts['right']:,} right ({share:.1f} %), {counts['refused']} refused, "
        f"{counts['wrong']} wrong."
    )
    yield from _table("SKU", {sku: sku for sku in FIRST}, found, lambda one: one.sku)
    yield from _table("fault", {one.name: one.name for one in FAULTS}, found, lambda one: one.fault)
    yield ""
    others = [one for one in found if one.kind != "right"]
    yield "Refused or wrong:" if others else "Nothing was refused, and nothing was wrong."
    yield from (f"- {one.sku}, {one.driver}, {one.kind}: {one.why}" for one in others)


def _table(title, rows, found, key) -> Iterator[str]:  # type: ignore[no-untyped-def]
    yield ""
    yield f"| {title} | {' | '.join(RELEASES)} |"
    yield f"|---{'|---:' * len(RELEASES)}|"
    for row in rows:
        cells = []
        for driver in RELEASES:
            kinds = [one.kind for one in found if one.driver == driver and key(one) == row]
            cells.append(f"{kinds.count('right')}/{len(kinds)}" if kinds else "")
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
        write(options.write, lines(outcomes(lambda driver: release(driver, Path(folder)))))


if __name__ == "__main__":
    main()
