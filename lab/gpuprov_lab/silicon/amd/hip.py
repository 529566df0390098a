"""The HIP runtime's result for a starting program: an error, or the GPUs it may use, in HIP's order."""

import os
import sys

import noise

from amd import readings

NO_DEVICE = 100
NAMES = {NO_DEVICE: ("hipErrorNoDevice", "no ROCm-capable device is detected")}


def cannot_start(node, program: str, library: str) -> bool:
    """Print the dynamic linker's error and return True if ROCm is not installed. The status is 127."""
    if (node.root / "opt/rocm").is_dir():
        return False
    print(
        f"{program}: error while loading shared libraries: {library}: cannot open shared object file: "
        "No such file or directory",
        file=sys.stderr,
    )
    return True


def error(node) -> int:
    """Return the result of hipGetDeviceCount: 0, or a key of NAMES."""
    return 0 if devices(node) else NO_DEVICE


def devices(node) -> list:
    """Return the GPUs in HIP's order, filtered by ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES.

    An unknown entry ends the list. On some machines the order is the bus's (AMD's MI300X of 05:00.0, 26:00.0,
    …), on others it is not (an MI350X that begins with 75:00.0), so half of the lab's nodes differ.
    """
    found = readings.answering(node) if node.loaded("amdgpu") else []
    if noise.fraction("hip", node.seed, node.name) < 0.5:
        found = sorted(found, key=lambda gpu: noise.fraction("hip", node.seed, node.name, gpu["slot"]))
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        visible = os.environ.get(name)
        if visible is None:
            continue
        chosen = []
        for word in visible.split(","):
            gpu = _named(node, found, word.strip())
            if gpu is None:
                break
            chosen.append(gpu)
        found = chosen
    return found


def _named(node, gpus: list, word: str):
    """Find a GPU by index or by unique id (GPU-1A2B…, ROCR-Runtime amd_filter_device.cpp)."""
    if word.isdigit():
        return gpus[int(word)] if int(word) < len(gpus) else None
    unique = word.upper().partition("GPU-")[2]
    return next(
        (gpu for gpu in gpus if unique and readings.identity(node, gpu)["unique_id"].upper() == unique), None
    )
