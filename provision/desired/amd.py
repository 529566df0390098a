"""What was read of AMD's Instinct GPUs (provision/node/observe/amdgpu.py), in words. Nothing is judged here:
no check of them exists yet. What is conspicuous is named with its GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from provision.desired.skus import all_skus
from provision.text import many, one_line

FACTS = frozenset({"amdgpu.devices", "amdgpu.loaded_version", "amdgpu.rocm", "amd_smi.gpus"})
_WORDS = 80  # letters of one text of a node
_NAMED = 4  # GPUs named one by one
_NO_LINK = ("Unknown", "Unknown speed")

Device = Mapping[str, Any]


def seen(gpuprov_node: Mapping[str, Any], facts: Mapping[str, Any], problems: Mapping[str, str]) -> str:
    """All that is known of the node's GPUs, in one line."""
    unread = [f"{name} unread ({problems[name]})" for name in sorted(FACTS & problems.keys())]
    return ", ".join([*_software(facts), *_hardware(gpuprov_node, facts), *unread])


def _devices(facts: Mapping[str, Any], name: str = "amdgpu.devices") -> list[Device]:
    found = facts.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _software(facts: Mapping[str, Any]) -> Iterator[str]:
    if "amdgpu.loaded_version" in facts:
        version = _text(facts["amdgpu.loaded_version"])
        yield f"driver amdgpu {version}" if version else "driver amdgpu not loaded"
    if "amdgpu.rocm" in facts:
        version = _text(facts["amdgpu.rocm"])
        yield f"ROCm {version}" if version else "no ROCm in /opt/rocm"


def _hardware(gpuprov_node: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    devices = _devices(facts)
    if not devices:
        return
    sku = all_skus().get(str(gpuprov_node["gpu"].get("sku")))
    if sku is not None and sku.devices_per_module > 1:
        yield f"{len(devices) / sku.devices_per_module:g} modules of {sku.devices_per_module} GPUs"
    yield from _alike(devices, _memory)
    yield from _alike(devices, _units)
    yield from _alike(devices, _partitions)
    yield from _alike(devices, _link)
    yield from _alike(devices, _xgmi)
    yield from _alike(devices, _errors)
    yield from _alike(devices, _pages)
    yield from _of_some(devices, _without_driver)
    yield from _told(devices, facts)
    yield from _of_some(devices, _unread)


def _told(devices: Sequence[Device], facts: Mapping[str, Any]) -> Iterator[str]:
    """What amd-smi says beside: of all that are on the bus it should list each."""
    if "amd_smi.gpus" not in facts:
        return
    listed = _devices(facts, "amd_smi.gpus")
    if facts["amd_smi.gpus"] is None:
        yield "no amd-smi"
        return
    known = {_text(one.get("address")) for one in listed}
    silent = [_text(one.get("address")) for one in devices if _text(one.get("address")) not in known]
    if silent:
        yield f"amd-smi does not list {_named(silent)}"
    yield from _alike(listed, _power)
    yield from _alike(listed, _ecc)


def _alike(devices: Sequence[Device], words: Callable[[Device], str]) -> Iterator[str]:
    """What holds for all of them once, else each value with the GPUs that have it."""
    groups: dict[str, list[str]] = {}
    for one in devices:
        groups.setdefault(words(one), []).append(_text(one.get("address")))
    for value, addresses in groups.items():
        if value:
            yield value if len(groups) == 1 else f"{value} ({_named(addresses)})"


def _of_some(devices: Sequence[Device], words: Callable[[Device], str]) -> Iterator[str]:
    """What is to be said of some, each value with the GPUs it is said of."""
    groups: dict[str, list[str]] = {}
    for one in devices:
        groups.setdefault(words(one), []).append(_text(one.get("address")))
    yield from (f"{_named(addresses)} {value}" for value, addresses in groups.items() if value)


def _named(addresses: Sequence[str]) -> str:
    if len(addresses) <= _NAMED:
        return " ".join(addresses)
    return f"{addresses[0]} and {len(addresses) - 1} more"


def _memory(one: Device) -> str:
    size = _number(one.get("memory_bytes"))
    return f"{size / 2**30:.4g} GiB each" if size else "memory unknown"


def _units(one: Device) -> str:
    units = _number(one.get("compute_units"))
    return f"{units} compute units each" if units else "not in the topology of the compute driver"


def _partitions(one: Device) -> str:
    """Only what is not the whole GPU as one."""
    modes = [_text(one.get(name)) for name in ("compute_partition", "memory_partition")]
    return "" if modes[0] in ("", "SPX") and modes[1] in ("", "NPS1") else "/".join(filter(None, modes))


def _link(one: Device) -> str:
    speed, width = _text(one.get("link_speed")).removesuffix(" PCIe"), _number(one.get("link_width"))
    if not speed or speed in _NO_LINK or not width:
        return "PCIe link unknown"
    most = _number(one.get("link_width_max"))
    return f"PCIe {speed} x{width}" + (f" of x{most}" if most and most != width else "")


def _xgmi(one: Device) -> str:
    links, peers = _number(one.get("xgmi_links")), _number(one.get("xgmi_peers"))
    return "" if links is None else f"{many(links, 'xGMI link')} to {many(peers or 0, 'GPU')} each"


def _errors(one: Device) -> str:
    count = _number(one.get("uncorrected"))
    if count is None:
        return "uncorrected errors not counted"
    blocks = _text(one.get("blocks"))
    return many(count, "uncorrected error") + (f" ({blocks})" if blocks else "")


def _pages(one: Device) -> str:
    pages = _number(one.get("bad_pages"))
    return f"{many(pages, 'bad page')} of memory" if pages else ""


def _without_driver(one: Device) -> str:
    return "" if one.get("driver") == "amdgpu" else "not taken by the driver amdgpu"


def _unread(one: Device) -> str:
    return f"unread: {_text(one.get('unread'))}" if one.get("unread") else ""


def _power(one: Device) -> str:
    limit, most = _number(one.get("power_limit_w")), _number(one.get("power_limit_max_w"))
    if not limit:  # the second die of a module has none of its own
        return ""
    return f"power limit {limit} W" + (f" of {most} W" if most and most != limit else "") + " each"


def _ecc(one: Device) -> str:
    return "ECC of memory off" if one.get("memory_ecc") == "DISABLED" else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    """A node's text as one short, printable line."""
    return one_line(value, _WORDS) if isinstance(value, str) else ""
