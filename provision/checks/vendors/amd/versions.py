"""versions of nodes with AMD's GPUs: driver, ROCm and firmware, compared across the fleet.

The driver and ROCm are released separately and work with several versions of each other, so different
versions are no fault; compatibility is checked before installation (provision/data/compatibility.yml).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output, fact
from provision.checks.host.versions import ID as ID
from provision.checks.host.versions import not_compared
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd.devices import loaded
from provision.errors import ParseError

SUMMARY = "driver, ROCm, kernel and firmware like those of the fleet's other nodes"
NEEDS: tuple[str, ...] = ()
_COMPARED = (
    *("amdgpu.loaded_version", "amdgpu.rocm", "amdgpu.devices", "kernel.release"),
    *("firmware.bios_version", "firmware.system", "firmware.rdma"),
)
FACTS: tuple[str, ...] = _COMPARED


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return []


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:  # noqa: ARG001 - the contract
    """Return the versions of the node itself."""
    versions = {name: node.facts.get(name) for name in ("amdgpu.loaded_version", "amdgpu.rocm")}
    return [Measurement(name, value[:80], "") for name, value in versions.items() if isinstance(value, str)]


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],  # noqa: ARG001 - the contract
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    findings = not_compared(node, _COMPARED)
    try:
        driver, rocm = loaded(node), fact(node, "amdgpu.rocm")
    except ParseError as error:
        return [*findings, unmeasured(ID, f"{error.what}; {error.fix}")]
    if driver is None:
        message = "the driver amdgpu is not loaded: it has no version"
        return [*findings, unmeasured(ID, message, action="fix configuration")]
    words = f"driver amdgpu {driver}, " + (
        f"ROCm {rocm}" if isinstance(rocm, str) else "no ROCm in /opt/rocm"
    )
    return [*findings, Finding(ID, Verdict.PASS, "node", words, "versions")]
