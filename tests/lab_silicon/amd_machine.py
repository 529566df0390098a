"""A simulated machine with AMD GPUs that has the driver and ROCm installed."""

from __future__ import annotations

import platform

from gpuprov_lab.elf import kernel_module
from tests.lab_silicon.silicon import Silicon

DRIVER = "6.12.12"


def installed(node: Silicon, rocm: str = "6.4.1-83") -> Silicon:
    """Install the files that the packages of the driver and of ROCm leave on disk."""
    place = node.root / "lib/modules" / platform.release() / "updates/dkms"
    place.mkdir(parents=True)
    (place / "amdgpu.ko").write_bytes(kernel_module("amdgpu", DRIVER, "open", platform.release()))
    node.file("opt/rocm/.info/version", rocm + "\n")
    return node
