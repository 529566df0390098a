"""Kernel log lines about AMD's GPUs, by the catalogue provision/data/amdgpu.yml (pure).

The forms of one error, by driver; {1} is the number of an event:

MI200:
amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block
MI300 and newer, two lines for each die; a fatal error; a register of an error bank:
amdgpu 0000:65:00.0: {1}socket: 3, die: 0, 1 new uncorrectable hardware errors detected in umc block
amdgpu 0000:65:00.0: {1}socket: 3, die: 0, 1 uncorrectable hardware errors detected in total in umc block
amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!
amdgpu 0000:1b:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0xbaa000000000080b
No error; an old driver; the port above a GPU:
amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block
amdgpu: GPU reset begin!
pcieport 0000:72:00.0: pciehp: Slot(15): Link Down
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from provision import shipped
from provision.node.burnin.kernel_lines import PCI_ADDRESS, amdgpu_words

KIND = "amdgpu"  # of a kernel event
VENDOR = "amd"
RESET = "reset_done"  # the kind of line after which a GPU responds again
WORDS = (KIND, "[drm] ", "pciehp: ", "AMD-Vi: ")  # each line of the catalogue contains one of these
# Drivers other than amdgpu that write a line, with the address of the device concerned.
_SOURCES = {
    "pcieport": re.compile(rf"pcieport ({PCI_ADDRESS}): (?=pciehp: )"),
    "iommu": re.compile(rf"AMD-Vi: (?=Event logged \[IO_PAGE_FAULT device=({PCI_ADDRESS}) )"),
}


@dataclass(frozen=True)
class Meaning:
    """A kind of line at level fail, warn, program or info; `source_of`: the writer if not amdgpu.

    `after`: its causes on the same GPU; `hive`: its effects on other GPUs; `lasting`: survives a reset."""

    pattern: re.Pattern[str]
    level: str
    action: str
    words: str
    after: frozenset[str] = frozenset()
    hive: frozenset[str] = frozenset()
    lasting: bool = False
    source_of: str = ""


def _meanings() -> dict[str, Meaning]:
    rows = shipped.load_mapping("amdgpu")
    hardware = {name for name, row in rows.items() if row["level"] == "fail"}
    meanings = {}
    for name, row in rows.items():
        after, pattern = set(row.get("after", ())), row["pattern"]
        if "hardware" in after:
            after = (after | hardware) - {"hardware", name}
        meanings[name] = Meaning(
            re.compile(pattern),
            row["level"],
            row["action"],
            row["meaning"],
            frozenset(after),
            frozenset(row.get("hive", ())),
            row.get("lasting", False),
            row.get("source_of", ""),
        )
    return meanings


MEANINGS: Mapping[str, Meaning] = _meanings()  # the first match decides


def kept_lines() -> tuple[str, ...]:
    """Return patterns of the driver's own lines."""
    return tuple(row.pattern.pattern for row in MEANINGS.values() if not row.source_of)


def fatal_lines(_domain: bool = False) -> tuple[str, ...]:
    """Return patterns of the driver's own lines after which a GPU is unusable until its reset."""
    rows = (row for row in MEANINGS.values() if row.level == "fail" and not row.source_of)
    return tuple(row.pattern.pattern for row in rows)


def mended(kind: int | str) -> bool:
    """Return whether a reset by the driver can have cleared an error of this kind."""
    row = MEANINGS.get(str(kind))
    return row is None or not row.lasting


def of_port(kind: int | str) -> bool:
    """Return whether a line of this kind names the port above a GPU."""
    row = MEANINGS.get(str(kind))
    return row is not None and row.source_of == "pcieport"


def of_gpu(kind: int | str, address: str, gpus: Collection[str]) -> bool:
    """Return whether a line may be about one of these GPUs (PCI addresses); it may lack an address.

    A CPU's integrated graphics use the same driver and never fall off the bus."""
    return not address or address in gpus or kind == "lost"


def event(text: str) -> tuple[str, str] | None:
    """Return (kind of line, PCI address) of a known line; the address is empty if the line has none."""
    address, words = amdgpu_words(text)
    source = ""
    for name, form in _SOURCES.items():
        if match := form.match(text):
            address, words, source = match[1], text[match.end() :], name
    kinds = (kind for kind, row in MEANINGS.items() if row.source_of == source and row.pattern.match(words))
    kind = next(kinds, None) if words else None
    return (kind, address) if kind else None
