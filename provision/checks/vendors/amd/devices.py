"""AMD's GPUs as the driver shows them in sysfs (the facts amdgpu.*), without any program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Measurement, fact
from provision.checks.judge import Finding, Verdict
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_log import bus_address
from provision.errors import ParseError

FACTS = ("amdgpu.devices", "amdgpu.loaded_version", "amdgpu.rocm")

# metric → (key of an entry, unit)
_NUMBERS = {
    "compute_units": ("compute_units", "units"),
    "pcie_width": ("link_width", "lanes"),
    "pcie_width_max": ("link_width_max", "lanes"),
    "ecc_uncorrectable": ("uncorrected", "errors"),
    "ecc_corrected": ("corrected", "errors"),
    "ecc_deferred": ("deferred", "errors"),
    "bad_pages": ("bad_pages", "pages"),
    "bad_pages_in_use": ("bad_pages_in_use", "pages"),
    "bad_page_threshold": ("bad_page_threshold", "pages"),
    "xgmi_links": ("xgmi_links", "links"),
}
_TEXTS = {
    "serial": "serial",
    "uuid": "unique_id",
    "vbios": "vbios",
    "ecc_blocks": "blocks",
    "unread": "unread",
}
_WHOLE = ("", "SPX", "NPS1")


def entries(node: CheckNode) -> list[Mapping[str, Any]]:
    """Return the fact amdgpu.devices. Raises ParseError if it is unreadable or of another form."""
    listed = fact(node, "amdgpu.devices")
    if not isinstance(listed, list) or not all(
        isinstance(one, dict) and isinstance(one.get("address"), str) for one in listed
    ):
        raise ParseError("amdgpu.devices is not a list of GPUs", "run the check again")
    return listed


def loaded(node: CheckNode) -> str | None:
    """Return the version of the loaded driver, or None if it is not loaded. Raises ParseError."""
    version = fact(node, "amdgpu.loaded_version")
    if version is not None and (not isinstance(version, str) or not version):
        raise ParseError(f"amdgpu.loaded_version is not a text: {version!r:.60}", "run the check again")
    return version


def tools(node: CheckNode) -> str:
    """Return the folder of AMD's validation tools, separate from the core from ROCm 7.12 on."""
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", str(node.facts.get("amdgpu.rocm") or ""))
    if numbers is None or (int(numbers[1]), int(numbers[2])) < (7, 12):
        return "/opt/rocm/bin"
    return f"/opt/rocm/extras-{numbers[1]}/bin"


def partitioned(node: CheckNode) -> str:
    """Return how the node's GPUs are partitioned; empty if all are whole or this is unknown."""
    try:
        measurements = measured(entries(node), kernel_incidents.devices(node))
        return next((str(one.value) for one in measurements if one.metric == "partition"), "")
    except ParseError:
        return ""


def left_out(check: str, modes: Any, why: str = "a test of whole GPUs does not apply") -> list[Finding]:
    """Return the finding that skips a check on partitioned GPUs."""
    message = f"GPUs are partitioned ({modes}): {why}"
    return [Finding(check, Verdict.SKIP, "node", message, "partition", modes)]


def links(node: CheckNode) -> dict[tuple[str, str], int] | None:
    """Return the number of xGMI links for each ordered pair of GPUs; None if it is uncertain.

    The driver's row of numbers has no addresses: it has a number for each GPU of the same hive, which links
    reach directly or via other GPUs. The row is read in bus order, and trusted only if no GPU has a link to
    itself, both ends give the same number, and the links match the compute driver's topology, which has
    addresses. A card without a bridge has no row and no links.
    """
    listed, gpus = entries(node), kernel_incidents.devices(node)
    names = [gpus.get(bus_address(str(one["address"])), "") for one in listed]
    if not all(names) or any(one.get("xgmi_to") is None for one in listed):
        return None
    to = {
        name: {gpus.get(bus_address(at), "") for at in str(one["xgmi_to"]).split()}
        for name, one in zip(names, listed, strict=True)
    }
    counts = dict.fromkeys(((one, other) for one in names for other in names if one != other), 0)
    for name, one in zip(names, listed, strict=True):
        together = _hive(name, to)
        hive = [other for other in names if other in together]
        row = _row(one.get("xgmi_row"))
        if row is None and not to[name]:
            row = [0]
        if row is None or len(row) != len(hive):
            return None
        linked = {other for other, count in zip(hive, row, strict=True) if count}
        if name in linked or linked != to[name]:
            return None
        counts |= {(name, other): count for other, count in zip(hive, row, strict=True) if other != name}
    return counts if all(count == counts[other, one] for (one, other), count in counts.items()) else None


def _hive(name: str, to: Mapping[str, set[str]]) -> set[str]:
    """Return the GPUs that links reach from this one, directly or via others, including itself."""
    reached, more = {name}, to[name]
    while more - reached:
        reached |= more
        more = {end for one in reached for end in to.get(one, ())}
    return reached


def _row(text: Any) -> list[int] | None:
    """Parse the numbers of `0 1 1 1`; None for anything else."""
    words = text.split() if isinstance(text, str) else []
    return [int(word) for word in words] if words and all(word.isdecimal() for word in words) else None


def measured(found: Sequence[Mapping[str, Any]], gpus: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the measurements of each GPU. `gpus`: PCI address → device."""
    for one in found:
        device = gpus.get(bus_address(str(one["address"])))
        if device is None:
            continue  # it appeared between two readings
        if one.get("driver") != "amdgpu":
            yield Measurement("untaken", str(one.get("driver") or "no driver")[:40], "", device)
            continue
        yield Measurement("taken", True, "", device)
        for metric, (key, unit) in _NUMBERS.items():
            # A width of 0 lanes means nothing: the GPU is gone, or attached in another way.
            if (value := _number(one.get(key))) is not None and (value or unit != "lanes"):
                yield Measurement(metric, value, unit, device)
        if (size := _number(one.get("memory_bytes"))) is not None:
            yield Measurement("memory_total", size // 2**20, "MiB", device)
        for metric, key in (("pcie_speed", "link_speed"), ("pcie_speed_max", "link_speed_max")):
            if (speed := _speed(one.get(key))) is not None:
                yield Measurement(metric, speed, "GT/s", device)
        if one.get("fatal_error") is True:
            yield Measurement("pcie_fatal", True, "", device)
        for metric, key in _TEXTS.items():
            if isinstance(value := one.get(key), str) and value:
                yield Measurement(metric, value[:300], "", device)
        modes = [str(one.get(key) or "") for key in ("compute_partition", "memory_partition")]
        if any(mode not in _WHOLE for mode in modes):
            yield Measurement("partition", "/".join(filter(None, modes))[:40], "", device)


def _number(value: Any) -> int | None:
    plain = isinstance(value, int) and not isinstance(value, bool)
    return value if plain and 0 <= value < 2**63 else None


def _speed(value: Any) -> float | None:
    """Parse `32.0 GT/s PCIe` into GT/s; None if the link has no rate."""
    words = value.split() if isinstance(value, str) else []
    try:
        return float(words[0]) if words[1:2] == ["GT/s"] else None
    except ValueError:
        return None
