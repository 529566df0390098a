"""Judge the output of AMD's own amd-smi, one fault at a time.

The values are made up and the text is AMD's, so program and check cannot agree on a wrong form of it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.printers import amdsmi_detection
from tests.printers.amdsmi import SKUS, AmdPrinters
from tests.printers.amdsmi_faults import Fault
from tests.printers.amdsmi_judged import RIGHT, WRONG, judge_all
from tests.support.seed import Selected

DOCUMENT = Path(__file__).parents[2] / "docs/detection.md"
_PAIRS = [(release, sku) for release, skus in SKUS.items() for sku in skus]


@pytest.mark.parametrize(("release", "sku"), _PAIRS, ids=[f"{sku}-{release}" for release, sku in _PAIRS])
def test_each_fault_is_judged_right(release: str, sku: str, amd_printers: AmdPrinters) -> None:
    """In CI, test a quarter of the faults of each pair, drawn by their names; the long set tests all."""

    def chosen(fault: Fault) -> bool:
        drawn = zlib.crc32(f"{release}{sku}{fault.name}".encode()) % 4 == 0 or fault.name == "nothing"
        return drawn or Selected.long

    found = list(judge_all(amd_printers(release), sku, release, chosen))
    assert found, "no fault applies"
    assert [(one.fault, one.words) for one in found if one.outcome == WRONG] == []


def test_the_documents_figures_are_of_these_faults() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert amdsmi_detection.head() in text, amdsmi_detection.__doc__


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_document_shows_what_all_of_them_gave(amd_printers: AmdPrinters) -> None:
    section = DOCUMENT.read_text("utf-8").partition(amdsmi_detection.BEGIN)[2]
    section = section.partition(amdsmi_detection.END)[0]
    found = amdsmi_detection.outcomes(amd_printers)
    assert section.strip() == "\n".join(amdsmi_detection.lines(found)).strip()
    judged = [one.outcome for row in found.values() for one in row]
    assert judged.count(WRONG) == 0
    assert judged.count(RIGHT) >= 0.95 * len(judged)
