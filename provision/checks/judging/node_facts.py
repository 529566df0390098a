"""Observed facts of a node before its checks run, and the variables that checks may read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.checks import thresholds
from provision.checks.check import CheckNode
from provision.checks.thresholds import Threshold
from provision.desired import vendors
from provision.errors import InventoryError

# The variables that checks may read. Never add all of a node's variables: some are passwords.
_VARIABLES = (
    *("nvidia_driver_source", "nvidia_driver_version", "nvidia_driver_flavour", "nvidia_driver_persistence"),
    "nvidia_driver_enabled",
    *("gpuprov_ignore_majority", "gpuprov_pcie_width", "gpuprov_rack", "gpuprov_nccl_net"),
    "gpu_settings_compute_mode",
    "gpu_settings_ecc",
    "gpu_settings_mig",
    *("gpu_settings_power_limit", "amd_gpu_settings_power_limit"),
    *("gpuprov_expected_gpus", "gpuprov_expected_nics", "gpuprov_expected_nvmes", "gpuprov_pci_addresses"),
    *("gpuprov_expected_memory_gib", "gpuprov_expected_cpus", "gpuprov_expected_services"),
    *("gpuprov_container_image", "host_settings_cpu_governor", "gpudirect_rdma_method"),
    *("rdma_enabled", "rdma_expected_ports", "rdma_memlock", "rdma_mtu", "rdma_roce_gid_index"),
)
_VARIABLE_PREFIXES = ("validation_tools_", "amd_validation_tools_")


def for_checks(variable: str) -> bool:
    """Return whether checks may read this variable."""
    return variable in _VARIABLES or variable.startswith(_VARIABLE_PREFIXES)


@dataclass(frozen=True)
class NodeFacts:
    """The state of one node before its checks run: an entry of facts.jsonl.

    `error`: why no check can run on the node; `missing_gpus`: it has none of its declared GPUs. `problems`:
    why a fact could not be read.
    """

    node: str
    facts: Mapping[str, Any]
    gpuprov_node: Mapping[str, Any]
    variables: Mapping[str, Any]
    error: str = ""
    unreachable: bool = False
    missing_gpus: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Why no check can run on the node, beginning with its state."""
        return f"unreachable: {self.error}" if self.unreachable else self.error

    @property
    def without_gpus(self) -> bool:
        """Whether the node has no GPU, as declared, so that only its network can be measured."""
        return bool(self.gpuprov_node) and not self.error and not self.gpuprov_node["gpu"]["count"]

    @property
    def lanes(self) -> int | None:
        """Number of PCIe lanes of its GPU slots, if the inventory states it."""
        lanes = self.variables.get("gpuprov_pcie_width")
        return lanes if isinstance(lanes, int) else None

    def limits(self, override: Path | None = None) -> Mapping[str, Threshold]:
        """Return the node's thresholds; `override`: a user's file. Raises ThresholdError."""
        if not self.gpuprov_node:
            return {}
        return thresholds.for_sku(self.check_node.sku, override, self.lanes)

    @property
    def check_node(self) -> CheckNode:
        return CheckNode(self.node, self.gpuprov_node, self.variables, self.facts, self.problems)


def node_facts_of(
    name: str,
    facts: Mapping[str, Any],
    problems: Mapping[str, str],
    gpuprov_node: Mapping[str, Any],
    declared: Mapping[str, Any],
) -> NodeFacts:
    """Build the facts of a reachable node, with the reason if checks cannot run on it."""
    addresses = [str(gpu["address"]) for gpu in facts.get("gpu.pci") or ()]
    every_variable = {**declared, "gpuprov_pci_addresses": addresses}
    variables = {key: value for key, value in every_variable.items() if for_checks(key)}
    expected = variables.get("gpuprov_expected_gpus", 0)
    if not isinstance(expected, int) or isinstance(expected, bool) or expected < 0:
        raise InventoryError(
            f"gpuprov_expected_gpus of {name} is {expected!r}", "give the number of GPUs, without quotes"
        )
    none_wanted = "gpuprov_expected_gpus" in variables and not expected
    none = f"{vendors.NO_GPU} → {vendors.NO_GPU_FIX}"
    error = "" if gpuprov_node["gpu"]["count"] or none_wanted else none
    missing = bool(error and expected)
    if error and not missing:
        error += f"; {vendors.NO_GPU_ON_PURPOSE}"
    if vendors.only_observed(gpuprov_node):
        error = f"{vendors.cannot(gpuprov_node, 'check')} → {vendors.LEAVE_OUT}"
    return NodeFacts(name, facts, gpuprov_node, variables, error, missing_gpus=missing, problems=problems)
