"""host_health of nodes with AMD's GPUs: the machine around them is judged as everybody's. Whether RDMA cards
and containers reach the GPUs is not measured yet, and said to be not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.amd.devices import loaded
from provision.checks.check import CheckNode, Command, Measurement
from provision.checks.host import host_health, host_rules
from provision.checks.host.host_health import ID as ID
from provision.checks.host.host_health import parse as parse
from provision.checks.host.host_rules import finding
from provision.checks.judge import Finding, Verdict
from provision.checks.network.rdma_port import entries
from provision.checks.thresholds import Threshold

SUMMARY = "the module amdgpu, memlock, /dev/shm, ACS, IOMMU, governor, clock, memory errors, NVMe"
NEEDS: tuple[str, ...] = ()
FACTS: tuple[str, ...] = ("amdgpu.loaded_version",)


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return host_health.of_drives(node)


def judge_module(check: str, node: CheckNode) -> list[Finding]:
    """Whether the driver has the GPUs."""
    if loaded(node) is not None:
        return []
    message = "the kernel module amdgpu is not loaded: no program can use the GPUs"
    return [finding(check, Verdict.FAIL, message, "module", "none")]


def judge_gpudirect(check: str, node: CheckNode) -> list[Finding]:
    """Not measured, where there are cards that could reach GPU memory."""
    if not entries(node, "hca.ports") or node.variables.get("gpudirect_rdma_method") == "none":
        return []
    message = "not measured on AMD GPUs yet: whether RDMA cards reach GPU memory"
    return [finding(check, Verdict.SKIP, message, "gpudirect")]


RULES: tuple[host_rules.Rule, ...] = (
    judge_module,
    judge_gpudirect,
    *(host_rules.judge_memlock, host_rules.judge_shm, host_rules.judge_pci),
    *(host_rules.judge_governor, host_rules.judge_clock),
)


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    container = []
    if image := node.variables.get("gpuprov_container_image"):
        message = f"not measured on AMD GPUs yet: whether a container of {image} sees the GPUs"
        container.append(finding(ID, Verdict.SKIP, message, "container_gpus"))
    return host_health.judge_by(RULES, node, measurements, container)
