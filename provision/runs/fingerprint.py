"""Fingerprint of the parts that a validation result depends on (pure): if one changes, a pass expires.

A check with another driver, firmware, GPU or link width effectively ran on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from provision.desired.vendors import SILENT_GPUS

# part → (the observed fact, the key of its entries); the complete list of parts
PARTS: Mapping[str, tuple[str, str | None]] = {
    "driver.loaded_version": ("driver.loaded_version", None),
    "driver.userspace_version": ("driver.userspace_version", None),
    "driver.flavour": ("driver.flavour", None),
    "kernel.release": ("kernel.release", None),
    "gpu.address": ("gpu.pci", "address"),
    "gpu.device_id": ("gpu.pci", "device_id"),
    "gpu.subsystem_id": ("gpu.pci", "subsystem_id"),
    "gpu.link_width": ("gpu.pci", "link_width"),
    "gpu.link_width_max": ("gpu.pci", "link_width_max"),
    "gpu.nvswitch_count": ("gpu.nvswitch_count", None),
    "gpu.uuid": ("firmware.gpu_uuid", None),
    "firmware.gpu_vbios": ("firmware.gpu_vbios", None),
    "firmware.gpu_gsp": ("firmware.gpu_gsp", None),
    "firmware.bios_version": ("firmware.bios_version", None),
    "firmware.cpu_microcode": ("firmware.cpu_microcode", None),
    "rdma.boards": ("firmware.rdma", "board_id"),
    "rdma.firmware": ("firmware.rdma", "firmware"),
    "rdma.link_width": ("firmware.rdma", "link_width"),
    "nccl.version": ("package.libnccl2.version", None),
    "nccl.version (rpm)": ("package.libnccl.version", None),
}
FACTS = frozenset(fact for fact, _ in PARTS.values())
# Parts of one vendor's GPUs, compared only if both observations requested them.
OF_VENDORS: Mapping[str, tuple[str, str | None]] = {
    "amdgpu.loaded_version": ("amdgpu.loaded_version", None),
    "amdgpu.rocm": ("amdgpu.rocm", None),
    "amdgpu.unique_id": ("amdgpu.devices", "unique_id"),
    "amdgpu.vbios": ("amdgpu.devices", "vbios"),
}
# GPUs that do not respond to the driver. They are not compared with the past: a valid result was measured on
# GPUs that responded, whether its version recorded this part or not.
SILENT = frozenset(SILENT_GPUS.values())
_WITHOUT_GPUS = frozenset({"network_ports", "disk_speed"})

_SOFTWARE = frozenset(
    {"driver.loaded_version", "driver.userspace_version", "driver.flavour", "kernel.release"}
)
_GPUS = frozenset(
    {"gpu.address", "gpu.device_id", "gpu.subsystem_id", "gpu.link_width", "gpu.link_width_max", "gpu.uuid"}
) | {"firmware.gpu_vbios", "firmware.gpu_gsp"}
_PATHS = frozenset({"gpu.nvswitch_count", "firmware.bios_version", "firmware.cpu_microcode"})
_CARDS = frozenset({"rdma.boards", "rdma.firmware", "rdma.link_width"})

# check → the parts it depends on; a check that is not listed depends on all.
DEPENDS: Mapping[str, frozenset[str]] = {
    "gpu_inventory": _SOFTWARE | _GPUS,
    "gpu_burn": _SOFTWARE | _GPUS,
    "memory_bandwidth": _SOFTWARE | _GPUS,
    "dcgm_diag": _SOFTWARE | _GPUS,
    "network_ports": _CARDS,
    "rdma_loopback": _SOFTWARE | _GPUS | _PATHS | _CARDS,
    "disk_speed": frozenset({"kernel.release", "firmware.bios_version"}),
    "versions": _SOFTWARE | _CARDS | {"firmware.gpu_vbios", "firmware.gpu_gsp", "firmware.bios_version"},
    "host_health": _SOFTWARE | _GPUS | _PATHS | _CARDS,
    "p2p_bandwidth": _SOFTWARE | _GPUS | _PATHS,
    "nccl_all_reduce": frozenset(PARTS),
}


def depends(check: str) -> frozenset[str]:
    """Return the parts that a check's result depends on."""
    return DEPENDS.get(check, frozenset(PARTS))


@dataclass(frozen=True)
class Fingerprint:
    """The observed state of a node: part → value, and part → why it could not be read."""

    values: Mapping[str, Any]
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a short digest, equal for equal fingerprints."""
        text = json.dumps([self.values, self.unknown], sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

    def record(self) -> dict[str, Any]:
        """Return the fingerprint as JSON data."""
        return {"values": dict(self.values), "unknown": dict(self.unknown)}


def from_record(record: Mapping[str, Any]) -> Fingerprint:
    """Parse the result of `record`. Raises KeyError, TypeError or ValueError for malformed data."""
    return Fingerprint(
        dict(record["values"]), {str(part): str(why) for part, why in record["unknown"].items()}
    )


def of(facts: Mapping[str, Any], problems: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint in a node's facts and problems.
    A fact that is in neither mapping counts as unanswered; a vendor's fact may not have been requested."""
    values: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    optional = {
        part: source
        for part, source in {**OF_VENDORS, **{fact: (fact, None) for fact in SILENT}}.items()
        if source[0] in facts or source[0] in problems or source[0].partition(".")[0] in problems
    }
    for part, (fact, key) in {**PARTS, **optional}.items():
        if fact in facts:
            value = facts[fact]
            if key is not None and isinstance(value, list):
                value = [entry.get(key) if isinstance(entry, dict) else None for entry in value]
            values[part] = value
        else:
            probe = problems.get(fact) or problems.get(fact.rpartition(".")[0])
            unknown[part] = (
                probe or problems.get(fact.partition(".")[0]) or "the node did not answer this fact"
            )
    return Fingerprint(values, unknown)


@dataclass(frozen=True)
class Change:
    """A part that has changed; `unknown`: why it cannot be compared."""

    part: str
    then: Any
    now: Any
    unknown: str = ""

    def __str__(self) -> str:
        """Format the change: `driver.loaded_version 570.124.06 → 580.126.09`, `gpu.link_width[5] 16 → 8`."""
        if self.unknown:
            return f"{self.part} {self.unknown}"
        if isinstance(self.then, list) and isinstance(self.now, list):
            if len(self.then) != len(self.now):
                return f"{self.part} {len(self.then)} → {len(self.now)} entries"
            where = [
                number
                for number, pair in enumerate(zip(self.then, self.now, strict=True))
                if pair[0] != pair[1]
            ]
            first = f"{self.part}[{where[0]}] {_word(self.then[where[0]])} → {_word(self.now[where[0]])}"
            return first + (f" and {len(where) - 1} more" if len(where) > 1 else "")
        return f"{self.part} {_word(self.then)} → {_word(self.now)}"


def _word(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:59] + "…"


def changes(check: str, then: Fingerprint, now: Fingerprint) -> list[Change]:
    """Return why a check's earlier result no longer applies to the node; empty while it does.

    A part that was or is unreadable counts as changed, since its equality is unknown.
    """
    changed = []
    parts = [{*one.values, *one.unknown} for one in (then, now)]
    both = (
        () if check in _WITHOUT_GPUS else [part for part in OF_VENDORS if all(part in one for one in parts)]
    )
    for part in (*PARTS, *both):
        if part in PARTS and part not in depends(check):
            continue
        if part in now.unknown:
            changed.append(Change(part, None, None, f"cannot be read now: {now.unknown[part]}"))
        elif part in then.unknown or part not in then.values:
            why = then.unknown.get(part, "it was not observed")
            changed.append(Change(part, None, now.values.get(part), f"was not known then: {why}"))
        elif then.values[part] != now.values.get(part):
            changed.append(Change(part, then.values[part], now.values.get(part)))
    for part in () if check in _WITHOUT_GPUS else sorted(SILENT):
        if part in now.unknown:
            changed.append(Change(part, None, None, f"cannot be read now: {now.unknown[part]}"))
        elif silent := now.values.get(part):
            changed.append(Change("gpu.silent", None, silent, _word(silent)))
    return changed


@dataclass(frozen=True)
class Result:
    """The newest result of one check on one node, with the node's fingerprint then (`known`).
    `at`: time of the measurement, ISO 8601 UTC; `run`: name of the run folder."""

    check: str
    verdict: str
    at: str
    run: str
    known: Fingerprint

    @property
    def vouches(self) -> bool:
        """Return whether the result clears the node: a warning needs attention, not a repair."""
        return self.verdict in ("pass", "warn")


@dataclass(frozen=True, slots=True)
class Standing:
    """Current value of one check for one node.
    `result`: None if the check never ran there; `changes`: why the result expired; `judged`: whether any
    check judged the node, in which case a check that did not apply is not missing."""

    node: str
    check: str
    result: Result | None
    changes: tuple[Change, ...] = ()
    judged: bool = True

    @property
    def holds(self) -> bool:
        if self.result is None or self.changes:
            return False
        return self.result.vouches or (self.result.verdict == "skip" and self.judged)

    def record(self) -> dict[str, Any]:
        """Return JSON data."""
        result = self.result
        return {
            "node": self.node,
            "check": self.check,
            "verdict": result.verdict if result else None,
            "at": result.at if result else None,
            "run": result.run if result else None,
            "holds": self.holds,
            "changes": [{**asdict(change), "text": str(change)} for change in self.changes],
        }


def standings(
    node: str, checks: Sequence[str], results: Mapping[str, Result], now: Fingerprint
) -> list[Standing]:
    """Return the current value of a node's results, for each of `checks` and each check that ran (pure)."""
    current = []
    judged = any(result.verdict != "skip" for result in results.values())
    for check in dict.fromkeys([*checks, *results]):
        result = results.get(check)
        gone = changes(check, result.known, now) if result else ()
        current.append(Standing(node, check, result, tuple(gone), judged))
    return current
