"""GPU memory for perftest's programs: whether they get it, and what they say."""

import os
import sys

import cuda


def gpu(node, options: dict):
    """The GPU whose memory is used, after what perftest says of it; None when CUDA has no such GPU."""
    print("initializing CUDA")
    gpus = [] if cuda.error(node) else cuda.devices(node)
    number = int(options["cuda"]) if options["cuda"].isdigit() else -1
    if not 0 <= number < len(gpus):
        print(f"cuInit(0) returned {cuda.error(node) or 100}")
        return None
    print("Listing all CUDA devices in system:")
    for index, one in enumerate(gpus):
        print("CUDA device {}: PCIe address is {}:00".format(index, one["bus"]))
    print(f"\nPicking device No. {number}")
    print(f"[pid = {os.getpid()}, dev = {number}] device name = [{node.sku['name']}]")
    print("creating CUDA Ctx\nmaking it the current CUDA Ctx\nCUDA device integrated: 0")
    return gpus[number]


def registers(node, options: dict) -> bool:
    """Whether the kernel lets a card reach GPU memory: through DMA-BUF, or nvidia-peermem."""
    if node.fault("gpudirect_off"):
        return False
    if options.get("dmabuf"):
        return node.driver()[1] == "open"
    return node.loaded("nvidia_peermem")


def no_memory() -> int:
    """What perftest says when it gets none; its exit status."""
    for line in ("Couldn't allocate MR with error=14", "failed to create mr", "Failed to create MR"):
        print(line, file=sys.stderr)
    print(" Couldn't create IB resources", file=sys.stderr)
    return 1
