"""Imports of checks and fact probes that the program looks up by name, so that packing includes them."""

from __future__ import annotations

from provision.checks.gpu import gpu_answers as gpu_answers
from provision.checks.gpu import gpu_inventory as gpu_inventory
from provision.checks.host import host_health as host_health
from provision.checks.host import versions as versions
from provision.checks.network import network_ports as network_ports
from provision.checks.vendors.amd import gpu_answers as amd_gpu_answers
from provision.checks.vendors.amd import gpu_inventory as amd_gpu_inventory
from provision.checks.vendors.amd import host_health as amd_host_health
from provision.checks.vendors.amd import versions as amd_versions
from provision.node.observe import amdgpu as amdgpu
from provision.node.observe import clock as clock
from provision.node.observe import container_runtime as container_runtime
from provision.node.observe import cpu as cpu
from provision.node.observe import driver as driver
from provision.node.observe import edac as edac
from provision.node.observe import fabric as fabric
from provision.node.observe import file as file
from provision.node.observe import firmware as firmware
from provision.node.observe import hca as hca
from provision.node.observe import kernel as kernel
from provision.node.observe import limits as limits
from provision.node.observe import memory as memory
from provision.node.observe import module as module
from provision.node.observe import nvme as nvme
from provision.node.observe import pci as pci
from provision.node.observe import service as service

__all__ = [
    "amd_gpu_answers",
    "amd_gpu_inventory",
    "amd_host_health",
    "amd_versions",
]  # their modules' names are used by other checks too
