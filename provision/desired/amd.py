"""The facts of AMD's Instinct GPUs (provision/node/observe/amdgpu.py) in words, for `plan` and `drift`.

Conspicuous values are named with their GPU and not judged: provision/checks/vendors/amd does that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.desired.skus import all_skus
from provision.text import many, one_line

FACTS = frozenset({"amdgpu.devices", "amdgpu.loaded_version", "amdgpu.rocm", "amd_smi.gpus"})
_WORDS = 80  # letters of one text of a node
_NAMED = 4  # GPUs named one by one
_NO_LINK = ("Unknown", "Unknown speed")

Device = Mapping[str, Any]


@dataclass(frozen=True)
class _Said:
    """What is to be said of a GPU in one respect; empty: nothing."""

    text: str
    conspicuous: bool = False


def seen(gpuprov_node: Mapping[str, Any], facts: Mapping[str, Any], problems: Mapping[str, str]) -> str:
    """All that is known of the node's GPUs, in one line: first what of it is conspicuous, since reports cut
    long lines."""
    conspicuous, usual = [], list(_software(gpuprov_node, facts))
    devices, listed = _devices(facts, "amdgpu.devices"), _devices(facts, "amd_smi.gpus")
    if devices and isinstance(facts.get("amd_smi.gpus"), list):
        answering = {_text(one.get("address")) for one in listed}
        silent = [address for address in _addresses(devices) if address not in answering]
        if silent:
            conspicuous.append(f"amd-smi does not list {_named(silent)}")
    for entries, words in (*((devices, each) for each in _OF_DRIVER), *((listed, each) for each in _OF_TOOL)):
        groups: dict[_Said, list[Device]] = {}
        for one in entries:
            groups.setdefault(words(one), []).append(one)
        most = max(groups, key=lambda said: len(groups[said]), default=None)
        for said, members in groups.items():
            where = "" if len(members) == len(entries) else f" ({_named(_addresses(members))})"
            if said.text and (said.conspicuous or said != most):
                conspicuous.append(said.text + where)
            elif said.text:
                usual.append(said.text + (f" ({len(members)} of {len(entries)})" if where else ""))
    unread = [f"{name} unread ({problems[name]})" for name in sorted(FACTS & problems.keys())]
    return ", ".join([*unread, *conspicuous, *usual])


def _devices(facts: Mapping[str, Any], name: str) -> list[Device]:
    found = facts.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _addresses(devices: Sequence[Device]) -> list[str]:
    return [_text(one.get("address")) for one in devices]


def _named(addresses: Sequence[str]) -> str:
    if len(addresses) <= _NAMED:
        return " ".join(addresses)
    return f"{addresses[0]} and {len(addresses) - 1} more"


def _software(gpuprov_node: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    if "amdgpu.loaded_version" in facts:
        version = _text(facts["amdgpu.loaded_version"])
        yield f"driver amdgpu {version}" if version else "driver amdgpu not loaded"
    if "amdgpu.rocm" in facts:
        version = _text(facts["amdgpu.rocm"])
        yield f"ROCm {version}" if version else "no ROCm in /opt/rocm"
    if facts.get("amd_smi.gpus", ()) is None:
        yield "no amd-smi"
    sku = all_skus().get(str(gpuprov_node["gpu"].get("sku")))
    if sku is not None and sku.devices_per_module > 1:
        modules = int(gpuprov_node["gpu"]["count"]) / sku.devices_per_module
        yield f"{modules:g} modules of {sku.devices_per_module} GPUs"


def _memory(one: Device) -> _Said:
    size = _number(one.get("memory_bytes"))
    return _Said(f"{size / 2**30:.4g} GiB each") if size else _Said("memory unknown", conspicuous=True)


def _units(one: Device) -> _Said:
    units = _number(one.get("compute_units"))
    missing = "not in the topology of the compute driver"
    return _Said(f"{units} compute units each") if units else _Said(missing, conspicuous=True)


def _partitions(one: Device) -> _Said:
    """Only what is not the whole GPU as one."""
    modes = [_text(one.get(name)) for name in ("compute_partition", "memory_partition")]
    whole = modes[0] in ("", "SPX") and modes[1] in ("", "NPS1")
    return _Said("" if whole else "/".join(filter(None, modes)))


def _link(one: Device) -> _Said:
    speed, width = _text(one.get("link_speed")).removesuffix(" PCIe"), _number(one.get("link_width"))
    if not speed or speed in _NO_LINK or not width:
        return _Said("PCIe link unknown", conspicuous=True)
    most = _number(one.get("link_width_max"))
    narrow = bool(most) and most != width
    return _Said(f"PCIe {speed} x{width}" + (f" of x{most}" if narrow else ""), conspicuous=narrow)


def _xgmi(one: Device) -> _Said:
    links, peers = _number(one.get("xgmi_links")), _number(one.get("xgmi_peers"))
    if links is None:
        return _Said("")
    # The dies of an MI250 have different numbers of links, as their machine is wired.
    text = "xGMI" if _in_module(one) else many(links, "xGMI link")
    return _Said(f"{text} to {many(peers or 0, 'GPU')} each", conspicuous=not links)


def _in_module(one: Device) -> bool:
    return any(
        one.get("device_id") in sku.pci_ids and sku.devices_per_module > 1 for sku in all_skus().values()
    )


def _errors(one: Device) -> _Said:
    count = _number(one.get("uncorrected"))
    if count is None:
        return _Said("uncorrected errors not counted", conspicuous=True)
    blocks = _text(one.get("blocks"))
    text = many(count, "uncorrected error") + (f" ({blocks})" if blocks else "")
    return _Said(text, conspicuous=count > 0)


def _pages(one: Device) -> _Said:
    pages = _number(one.get("bad_pages"))
    return _Said(f"{many(pages, 'bad page')} of memory" if pages else "", conspicuous=True)


def _without_driver(one: Device) -> _Said:
    taken = one.get("driver") == "amdgpu"
    return _Said("" if taken else "not taken by the driver amdgpu", conspicuous=True)


def _unread(one: Device) -> _Said:
    return _Said(f"unread: {_text(one.get('unread'))}" if one.get("unread") else "", conspicuous=True)


def _power(one: Device) -> _Said:
    limit, most = _number(one.get("power_limit_w")), _number(one.get("power_limit_max_w"))
    if not limit:  # the second die of a module has none of its own
        return _Said("")
    return _Said(f"power limit {limit} W" + (f" of {most} W" if most and most != limit else "") + " each")


def _ecc(one: Device) -> _Said:
    return _Said("ECC of memory off" if one.get("memory_ecc") == "DISABLED" else "", conspicuous=True)


_Words = Callable[[Device], _Said]
_OF_DRIVER: Sequence[_Words] = [
    _errors, _pages, _without_driver, _link, _memory, _units, _partitions, _xgmi, _unread
]  # fmt: skip
_OF_TOOL: Sequence[_Words] = [_ecc, _power]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    """A node's text as one short, printable line."""
    return one_line(value, _WORDS) if isinstance(value, str) else ""
