"""Judge the output of NVIDIA's own nvidia-smi, one fault at a time.

The values are made up and the text is NVIDIA's, so program and check cannot agree on a wrong form of it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.printers import detection
from tests.printers.nvml_faults import FAULTS
from tests.printers.outcomes import PAIRS, outcome
from tests.printers.smi import Printers
from tests.support.seed import Selected

DOCUMENT = Path(__file__).parents[2] / "docs/detection.md"


@pytest.mark.parametrize(("driver", "sku"), PAIRS, ids=[f"{sku}-{driver[:3]}" for driver, sku in PAIRS])
def test_each_fault_is_judged_right(driver: str, sku: str, printers: Printers) -> None:
    """In CI, test a quarter of the faults of each pair, drawn by their names; the long set tests all."""
    found = []
    for fault in FAULTS:
        drawn = zlib.crc32(f"{driver}{sku}{fault.name}".encode()) % 4 == 0 or fault.name == "nothing"
        if drawn or Selected.long:
            found.append(outcome(fault, printers(driver), driver, sku))
    tried = [one for one in found if one is not None]
    assert tried, "no fault applies"
    assert "\n".join(why for _, why in tried if why) == ""


def test_the_documents_figures_are_of_these_faults() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert detection.head() in text, "python -m tests.printers.detection --write docs/detection.md"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_document_shows_what_all_of_them_gave(printers: Printers) -> None:
    section = DOCUMENT.read_text("utf-8").partition(detection.BEGIN)[2].partition(detection.END)[0]
    assert section.strip() == "\n".join(detection.lines(detection.outcomes(printers))).strip()
