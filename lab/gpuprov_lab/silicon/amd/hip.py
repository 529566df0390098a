"""What the HIP runtime tells a program that starts: an error, or the GPUs it may use, in its own order."""

import os
import sys

import noise

from amd import readings

NO_DEVICE = 100
NAMES = {NO_DEVICE: ("hipErrorNoDevice", "no ROCm-capable device is detected")}


def cannot_start(node, program: str, library: str) -> bool:
    """Say what the dynamic linker says when ROCm is not there; True then. The status is 127."""
    if (node.root / "opt/rocm").is_dir():
        return False
    print(
        f"{program}: error while loading shared libraries: {library}: cannot open shared object file: "
        "No such file or directory",
        file=sys.stderr,
    )
    return True


def error(node) -> int:
    """What hipGetDeviceCount returns: 0, or a key of NAMES."""
    return 0 if devices(node) else NO_DEVICE


def devices(node) -> list:
    """The GPUs in HIP's order, as ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES leave them: an unknown entry
    ends the list.

    On some machines the order is the bus's (AMD's MI300X of 05:00.0, 26:00.0, …), on others it is not (an
    MI350X with 75:00.0 as its first): so on half of the lab's nodes.
    """
    found = readings.answering(node) if node.loaded("amdgpu") else []
    if noise.fraction("hip", node.seed, node.name) < 0.5:
        found = sorted(found, key=lambda gpu: noise.fraction("hip", node.seed, node.name, gpu["slot"]))
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        wanted = os.environ.get(name)
        if wanted is None:
            continue
        chosen = []
        for word in wanted.split(","):
            gpu = _named(node, found, word.strip())
            if gpu is None:
                break
            chosen.append(gpu)
        found = chosen
    return found


def _named(node, gpus: list, word: str):
    """The GPU of this number, or of this unique number (GPU-1A2B…, ROCR-Runtime amd_filter_device.cpp)."""
    if word.isdigit():
        return gpus[int(word)] if int(word) < len(gpus) else None
    unique = word.upper().partition("GPU-")[2]
    return next(
        (gpu for gpu in gpus if unique and readings.identity(node, gpu)["unique_id"].upper() == unique), None
    )
