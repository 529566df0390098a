"""A program of perftest, server and client, independent of the measured quantity.

On one node the two meet through a file in the node's state, on two nodes over TCP (socket.py). The measuring
part is a module with NAME, DEFAULTS (of its options), KEY (`rate` or `latency`), refusal(options),
between(node, options, card) for one end's part, alone(node, options, card, gpu) for loopback, row(options,
value), seconds(row), head(options, card, server) and table(options, row).
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import cuda
from amd import hip
from load import Load, wait
from state import write_atomically

from perftest import options as perftest_options
from perftest import socket as perftest_socket


def run(node, program, arguments: list) -> int:
    """Run the program and return its exit status."""
    if arguments in (["-V"], ["--version"]):
        print("Version: 6.24")
        return 1  # as the real program does
    try:
        options = perftest_options.parse(node, arguments, program.DEFAULTS)
        program.refusal(options)
    except perftest_options.UsageError as why:
        perftest_options.explain(program.NAME, why)
        return 1
    except perftest_options.UnsupportedError:
        print(" Unsupported memory type")
        print(" Parser function exited with Error", file=sys.stderr)
        return 1
    except perftest_options.RefusedError as why:
        print(why, file=sys.stderr)
        print(" Parser function exited with Error", file=sys.stderr)
        return 1
    card = perftest_options.card(node, options)
    if card is None:
        return 1
    if options["host"]:
        return _client(node, program, options, card)
    with perftest_socket.bound(node, options["port"]) as listener:
        return _server(node, program, options, card, listener)


def _meeting(node, port: int) -> Path:
    return node.folder / "run" / f"perftest.{port}"


def _server(node, program, options: dict, card: dict, listener) -> int:
    # A waiting server, seen by its socket or its output, may get a client at once, which must find the file.
    meeting = _meeting(node, options["port"])
    write_atomically(meeting, json.dumps({"pid": os.getpid(), "device": card["name"]}))
    try:
        if listener is not None:
            listener.listen(1)
        print("\n************************************")
        print("* Waiting for client to connect... *")
        print("************************************")
        sys.stdout.flush()
        while True:
            agreed = None
            if listener is None:
                time.sleep(0.02)
            else:
                agreed = perftest_socket.answer(node, listener, _myself(node, program, options, card))
            if agreed:
                met = {"row": None if "lost" in agreed else program.row(options, agreed[program.KEY])}
                break
            try:
                met = json.loads(meeting.read_text())
            except (OSError, ValueError):
                continue
            if "row" in met:
                break
    finally:
        with contextlib.suppress(OSError):
            meeting.unlink()
    if met["row"] is None:
        return _no_memory() if _of_gpu(options) else 1
    program.head(options, card, server=True)
    program.table(options, met["row"])
    return 0


def _myself(node, program, options: dict, card: dict) -> dict:
    return {"name": node.name, program.KEY: program.between(node, options, card)}


def _client(node, program, options: dict, card: dict) -> int:
    if perftest_socket.is_remote(options["host"]):
        return _client_of_another(node, program, options, card)
    meeting = _meeting(node, options["port"])
    # With a socket there is nothing to wait for: perftest tries once.
    for _ in range(1 if str(node.root) == "/" else 100):
        if meeting.exists():
            break
        time.sleep(0.05)
    try:
        met = json.loads(meeting.read_text())
    except (OSError, ValueError):
        return _nobody(options)
    gpu = None
    if _of_gpu(options):
        gpu = _rocm_gpu(node, options) if "rocm" in options else _gpu(node, options)
        if gpu is None or not _registers(node, options):
            _answer(meeting, met, None)
            return _no_device() if gpu is None and "rocm" in options else _no_memory()
    row = program.row(options, program.alone(node, options, card, gpu))
    with Load(node, program.NAME, [gpu] if gpu else []):
        wait(node, program.seconds(row))
    program.head(options, card, server=False)
    program.table(options, row)
    _answer(meeting, met, row)
    return 0


def _client_of_another(node, program, options: dict, card: dict) -> int:
    mine = _myself(node, program, options, card)
    with perftest_socket.asked(node, options["host"], options["port"], mine) as agreed:
        if agreed is None:
            return _nobody(options)
        row = program.row(options, agreed[program.KEY])
        wait(node, program.seconds(row))
    program.head(options, card, server=False)
    program.table(options, row)
    return 0


def _nobody(options: dict) -> int:
    print(f"Couldn't connect to {options['host']}:{options['port']}", file=sys.stderr)
    print(" Unable to open file descriptor for socket connection", file=sys.stderr)
    print(" Unable to init the socket connection", file=sys.stderr)
    return 1


def _answer(meeting: Path, met: dict, row) -> None:
    write_atomically(meeting, json.dumps(dict(met, row=row)))


def _of_gpu(options: dict) -> bool:
    return "cuda" in options or "rocm" in options


def _rocm_gpu(node, options: dict):
    """Return the GPU like `_gpu`, if perftest was built with ROCm (src/rocm_memory.c)."""
    gpus = hip.devices(node)
    number = int(options["rocm"]) if options["rocm"].isdigit() else -1
    if not gpus:
        print(f"hipDeviceGetCount() returned {hip.NO_DEVICE}")
        return None
    if not 0 <= number < len(gpus):
        print(f"Requested ROCm device {number} but found only {len(gpus)} device(s)")
        return None
    gpu = gpus[number]
    bus = int(gpu["address"].split(":")[1], 16)
    print(
        f"Using ROCm Device with ID: {number}, Name: {node.sku['name']}, PCI Bus ID: {bus:#x}, "
        f"GCN Arch: {node.sku['gfx']}:sramecc+:xnack-"
    )
    if options.get("dmabuf"):
        print(
            "using DMA-BUF for GPU buffer address at 0x7f2a40000000 aligned at 0x7f2a40000000 with aligned "
            "size 67108864"
        )
        print("dmabuf export addr 0x7f2a40000000 67108864 to dmabuf fd 12 offset 0")
    print("allocated 67108864 bytes of GPU buffer at 0x7f2a40000000")
    return gpu


def _no_device() -> int:
    """Print perftest's error if the runtime has no such GPU; returns the exit status."""
    print("Couldn't initialize ROCm device\nFailed to init memory", file=sys.stderr)
    print(" Couldn't create IB resources", file=sys.stderr)
    return 1


def _gpu(node, options: dict):
    """Print perftest's lines about the GPU and return it; None if CUDA has no such GPU."""
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


def _registers(node, options: dict) -> bool:
    """Whether the kernel lets a card access GPU memory: through DMA-BUF, or nvidia-peermem."""
    if node.fault("gpudirect_off"):
        return False
    if "rocm" in options:  # the kernel's own driver registers no memory, so only DMA-BUF works
        return bool(options.get("dmabuf"))
    if options.get("dmabuf"):
        return node.driver()[1] == "open"
    return node.loaded("nvidia_peermem")


def _no_memory() -> int:
    """Print perftest's error if it gets no memory; returns the exit status."""
    for line in ("Couldn't allocate MR with error=14", "failed to create mr", "Failed to create MR"):
        print(line, file=sys.stderr)
    print(" Couldn't create IB resources", file=sys.stderr)
    return 1
