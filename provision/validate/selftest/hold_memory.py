"""Stand-in for a foreign program: allocates memory through CUDA or HIP, prints `holding`, and sleeps.

`hold_memory.py GPU MIB SECONDS`; GPU is nvidia-smi's index, or the PCI address of an AMD GPU. It ends by
itself after SECONDS even if its parent died. Standard library only. Calls and their order: CUDA Driver API,
cuInit, cuDeviceGet, cuCtxCreate_v2, cuMemAlloc_v2; HIP runtime API, hipDeviceGetByPCIBusId, hipSetDevice,
hipMalloc.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from functools import partial


def hold(index: int, mib: int, seconds: int) -> str | None:
    """Allocate memory through CUDA and hold it; return an error with CUDA's status if that fails."""
    # CUDA numbers GPUs by speed by default; the index is nvidia-smi's.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        steps: list[partial[int]] = [
            partial(cuda.cuInit, ctypes.c_uint(0)),
            partial(cuda.cuDeviceGet, ctypes.byref(device), ctypes.c_int(index)),
            partial(cuda.cuCtxCreate_v2, ctypes.byref(context), ctypes.c_uint(0), device),
            partial(cuda.cuMemAlloc_v2, ctypes.byref(memory), ctypes.c_size_t(mib * 1024 * 1024)),
        ]
    except (OSError, AttributeError) as error:
        return f"CUDA's driver library cannot be used: {error}"
    return _called(steps, seconds)


def hold_hip(address: str, mib: int, seconds: int) -> str | None:
    """Allocate memory on the AMD GPU at this PCI address and hold it; HIP numbers GPUs in its own order."""
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        os.environ.pop(name, None)
    hip, why = None, ""
    for library in ("libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"):
        try:
            hip = ctypes.CDLL(library)
            break
        except OSError as error:
            why = str(error)
    if hip is None:
        return f"HIP's library cannot be used: {why}"
    device, memory = ctypes.c_int(), ctypes.c_void_p()
    try:
        status = hip.hipDeviceGetByPCIBusId(ctypes.byref(device), address.encode())
        if status:
            return f"hipDeviceGetByPCIBusId returned {status}"
        size = ctypes.c_size_t(mib * 1024 * 1024)
        steps: list[partial[int]] = [
            partial(hip.hipSetDevice, device),
            partial(hip.hipMalloc, ctypes.byref(memory), size),
        ]
    except AttributeError as error:
        return f"HIP's library cannot be used: {error}"
    return _called(steps, seconds)


def _called(steps: Sequence[partial[int]], seconds: int) -> str | None:
    """Call each step, then hold the memory; return the first failing step with its status."""
    for step in steps:
        status = step()
        if status:
            return f"{step.func.__name__} returned {status}"
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    time.sleep(seconds)
    return None


if __name__ == "__main__":
    of_amd = ":" in sys.argv[1]
    most = (int(sys.argv[2]), int(sys.argv[3]))
    sys.exit(hold_hip(sys.argv[1], *most) if of_amd else hold(int(sys.argv[1]), *most))
