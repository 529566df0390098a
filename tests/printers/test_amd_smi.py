"""Judge the output of AMD's own amd-smi, one fault at a time.

The values are ours and the text is AMD's: program and check cannot agree on a wrong form of it.
"""

from __future__ import annotations

import zlib

import pytest

from tests.printers.amdsmi import SKUS, AmdPrinters
from tests.printers.amdsmi_faults import Fault
from tests.printers.amdsmi_judged import WRONG, judge_all
from tests.support.seed import Selected

_PAIRS = [(release, sku) for release, skus in SKUS.items() for sku in skus]


@pytest.mark.parametrize(("release", "sku"), _PAIRS, ids=[f"{sku}-{release}" for release, sku in _PAIRS])
def test_each_fault_is_judged_right(release: str, sku: str, amd_printers: AmdPrinters) -> None:
    """In CI a quarter of the faults of each pair, drawn by their names; all of them in the long set."""

    def chosen(fault: Fault) -> bool:
        drawn = zlib.crc32(f"{release}{sku}{fault.name}".encode()) % 4 == 0 or fault.name == "nothing"
        return drawn or Selected.long

    found = list(judge_all(amd_printers(release), sku, release, chosen))
    assert found, "no fault applies"
    assert [(one.fault, one.words) for one in found if one.outcome == WRONG] == []
