"""Rules of gpu_inventory for memory pages that AMD's driver found bad."""

from __future__ import annotations

from provision.checks.gpu.inventory_rules import ID, Values
from provision.checks.judge import Finding, Measurement, Verdict, finding_on

_KERNEL = "Linux kernel, amdgpu_ras_eeprom.c"
_LEAST_THRESHOLD = 128  # the driver's lowest default: 16 pages for each of 8 reserved rows
_DEFAULT_THRESHOLD = "Linux kernel, amdgpu_ras.c, amdgpu_ras_validate_threshold: the least of its defaults"
_NEARLY = 0.9  # of AMD's threshold for bad pages; the driver itself warns from here on


def judge_pages(values: Values) -> list[Finding]:
    """Judge bad memory pages: the ones still in use, and their number against the threshold."""
    findings = []
    for device, pages in values.get("bad_pages_in_use", {}).items():
        if pages:
            words = f"{pages} bad page{'s' * (pages != 1)} of memory still in use: a reset takes them out"
            measured = Measurement("bad_pages_in_use", pages, "pages", device)
            findings.append(finding_on(ID, Verdict.FAIL, measured, words, "= 0 pages", action="reset GPU"))
    for device, pages in values.get("bad_pages", {}).items():
        threshold = int(values.get("bad_page_threshold", {}).get(device, 0))
        if not threshold:
            findings += _pages_of_unknown_threshold(device, int(pages))
        if not threshold or pages < _NEARLY * threshold:
            continue
        full = pages >= threshold
        words = f"{pages} bad pages of memory, of {threshold} that AMD allows"
        measured = Measurement("bad_pages", pages, "pages", device)
        verdict, action = (Verdict.FAIL, "replace part") if full else (Verdict.WARN, "watch")
        limit = f"< {threshold} pages" if full else f"< {_NEARLY:.0%} of {threshold} pages"
        findings.append(finding_on(ID, verdict, measured, words, limit, _KERNEL, action))
    return findings


def _pages_of_unknown_threshold(device: str, pages: int) -> list[Finding]:
    """Judge bad pages if neither amd-smi nor the driver gives the threshold: a default may be near."""
    words = (
        f"{pages} bad page{'s' * (pages != 1)} of memory, and how many AMD allows is not known: amd-smi of "
        "ROCm 7 gives it, and debugfs to root"
    )
    measured = Measurement("bad_pages", pages, "pages", device)
    if not pages:
        return []
    if pages < _NEARLY * _LEAST_THRESHOLD:
        return [finding_on(ID, Verdict.SKIP, measured, words)]
    limit = f"< {_NEARLY:.0%} of {_LEAST_THRESHOLD} pages"
    return [finding_on(ID, Verdict.WARN, measured, words, limit, _DEFAULT_THRESHOLD, "watch")]
