"""gpuprov's support for the GPUs of each vendor, and the messages about unsupported GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.node.description import DEFAULT_VENDOR, MIXED

NAMES = {"nvidia": "NVIDIA", "amd": "AMD"}
CHECKED = ("nvidia", "amd")  # vendors with GPUs that the checks measure
# Roles for the host itself, whatever GPUs it has.
HOST_ROLES = ("host_settings", "rdma", "package_lock")

NO_GPU = "no NVIDIA GPU on the PCI bus"
NO_GPU_FIX = "check power and seating (lspci -d 10de:)"
NO_GPU_ON_PURPOSE = (
    "none on purpose: leave it out with --nodes, or set nvidia_driver_require_gpu: false and "
    "gpuprov_expected_gpus: 0"
)

# By vendor: the message about a node without one of its GPUs, and the remedy.
WITHOUT: Mapping[str, tuple[str, str]] = {
    "nvidia": (NO_GPU, f"{NO_GPU_FIX}; {NO_GPU_ON_PURPOSE}"),
    "amd": (
        "no AMD Instinct GPU on the PCI bus",
        "check power and seating (lspci -d 1002:); none on purpose: leave it out with --nodes, or set "
        "amdgpu_driver_require_gpu: false and gpuprov_expected_gpus: 0",
    ),
}

# The stack of a node that declares none.
DEFAULT_STACKS = {"nvidia": "r580-cuda12.9", "amd": "amdgpu30.30-rocm7.2"}
# The fact that lists the GPUs on the bus that do not answer their driver.
SILENT_GPUS = {"nvidia": "nvidia_smi.silent", "amd": "amd_smi.silent"}
# The vendor's own log, which its return process requires: part of its files' names, and how to make it.
# AMD's packages have no program for it; its documents name this script.
RETURN_LOGS: Mapping[str, tuple[str, str]] = {
    "nvidia": (
        "nvidia-bug-report",
        "run `sudo nvidia-bug-report.sh` on the node, put the\nnvidia-bug-report.log.gz it writes",
    ),
    "amd": (
        "rocm_techsupport",
        "take rocm_techsupport.sh from\nhttps://github.com/amddcgpuce/rocmtechsupport, run `sudo sh "
        "./rocm_techsupport.sh > rocm_techsupport.log 2>&1`\non the node, put rocm_techsupport.log",
    ),
}

LEAVE_OUT = "leave it out with --nodes"
HOST_ONLY = f"or list its roles for the host alone as gpuprov_roles: [{', '.join(HOST_ROLES)}]"


def only_observed(gpuprov_node: Mapping[str, Any]) -> bool:
    """Return whether no check measures the machine's GPUs, as with several vendors together."""
    return gpuprov_node["gpu"].get("vendor") not in (None, *CHECKED)


def not_provisioned(gpuprov_node: Mapping[str, Any]) -> bool:
    """Return whether no role provisions the machine's GPUs, as with several vendors together."""
    return gpuprov_node["gpu"].get("vendor") not in (None, *NAMES)


def gpus(gpuprov_node: Mapping[str, Any]) -> str:
    """Describe the machine's GPUs, which are of one vendor: `8 AMD Instinct MI300X`."""
    gpu = gpuprov_node["gpu"]
    unknown = f"{NAMES[gpu['vendor']]} GPUs ({', '.join(gpu['pci_ids'])})"
    name = next(iter(gpu.get("product_names", ())), unknown)
    return f"{gpu['count']} {name}"


def not_measured(gpuprov_node: Mapping[str, Any]) -> str:
    """Return the line of a check that does not support the machine's GPUs."""
    if gpuprov_node["gpu"].get("vendor") == DEFAULT_VENDOR:
        return "a test of AMD's GPUs alone"
    return f"not measured on {NAMES.get(gpuprov_node['gpu'].get('vendor'), 'these')} GPUs yet"


def cannot(gpuprov_node: Mapping[str, Any], what: str) -> str:
    """Return a line about GPUs that gpuprov cannot provision or check (`what`).
    Example: `8 AMD Instinct MI300X: observed; gpuprov cannot provision AMD GPUs yet`."""
    gpu = gpuprov_node["gpu"]
    if gpu.get("vendor") == MIXED:
        return f"GPUs of several vendors ({', '.join(gpu['pci_ids'])}): observed; gpuprov cannot {what} them"
    return f"{gpus(gpuprov_node)}: observed; gpuprov cannot {what} {NAMES[gpu['vendor']]} GPUs yet"
