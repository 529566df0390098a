"""A foreign program on a GPU: allocates memory through CUDA's driver library, prints `holding`, and sleeps.

`hold_memory.py INDEX MIB SECONDS`. It ends by itself after SECONDS, whatever became of its parent. Standard
library only. Calls and their order: CUDA Driver API, cuInit, cuDeviceGet, cuCtxCreate_v2, cuMemAlloc_v2.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time


def hold(index: int, mib: int, seconds: int) -> str | None:
    """Take the memory and keep it; the exit status is 1 with CUDA's number when it does not come."""
    # CUDA numbers GPUs by speed by default; the index is nvidia-smi's.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        steps = cuda.cuInit, cuda.cuDeviceGet, cuda.cuCtxCreate_v2, cuda.cuMemAlloc_v2
    except (OSError, AttributeError) as error:
        return f"CUDA's driver library cannot be used: {error}"
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    arguments: tuple[tuple[object, ...], ...] = (
        (ctypes.c_uint(0),),
        (ctypes.byref(device), ctypes.c_int(index)),
        (ctypes.byref(context), ctypes.c_uint(0), device),
        (ctypes.byref(memory), ctypes.c_size_t(mib * 1024 * 1024)),
    )
    for step, given in zip(steps, arguments, strict=True):
        status = step(*given)
        if status:
            return f"{step.__name__} returned {status}"
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    time.sleep(seconds)
    return None


if __name__ == "__main__":
    sys.exit(hold(*map(int, sys.argv[1:4])))
