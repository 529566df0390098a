"""Runs one simulated tool: `run.py TOOL ARGS…`; `new`, `fault`, `mounts`, `boot` are the lab's own.

Exit statuses are the real tools'; 2 with one line on stderr for an invalid request to the lab itself.
"""

import importlib
import io
import os
import signal
import sys
import time
from pathlib import Path

# -I leaves the script's own folder out of the path, and with it the site packages of the node.
HERE = str(Path(__file__).resolve().parent)
sys.path.insert(0, HERE)
if not os.access(HERE, os.W_OK):  # on a node, where each tool would otherwise compile all its imports
    sys.pycache_prefix = "/var/cache/silicon"

import devices  # noqa: E402
from state import Node, StateError, folder_from_environment  # noqa: E402

GARBAGE = (
    "\x00\x7fELF\x02\x01\ufffd\x1b[31m%s%n<<<\nSegmentation fault (core dumped)\n"
    '{"nvbandwidth": [null, \n\tGPU ???: \x07\n'
)


def _tools() -> dict:
    """Return name -> module and function, of which only the running tool's is imported."""
    collectives = ("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf")
    tools = {
        "boot": ("boot", "boot"),
        "dmesg": ("dmesg", "dmesg"),
        "mounts": ("mounts", "mounts"),
        "modprobe": ("modprobe", "modprobe"),
        "rmmod": ("modprobe", "rmmod"),
        "nvidia-smi": ("nvidia_smi.program", "nvidia_smi"),
        "gpu_burn": ("gpu_burn", "gpu_burn"),
        "gpu-burn": ("gpu_burn", "gpu_burn"),
        "nvbandwidth": ("nvbandwidth", "nvbandwidth"),
        "nv-fabricmanager": ("fabricmanager", "fabricmanager"),
        "nvidia-persistenced": ("persistenced", "persistenced"),
        "nvcc": ("nvcc", "nvcc"),
        "ibv_devinfo": ("ibv_devinfo", "ibv_devinfo"),
        "nvme": ("host_tools", "nvme"),
        "docker": ("host_tools", "docker"),
        "ib_write_bw": ("perftest.ib_write_bw", "ib_write_bw"),
        "ib_write_lat": ("perftest.ib_write_lat", "ib_write_lat"),
        "dcgmi": ("dcgmi", "dcgmi"),
        "node_exporter": ("node_exporter", "node_exporter"),
        "nv-hostengine": ("dcgm.hostengine", "hostengine"),
        "dcgm-exporter": ("dcgm.exporter", "exporter"),
        "fio": ("fio", "fio"),
        "python3": ("training", "python3"),
        "amd-smi": ("amd.smi", "amd_smi"),
        "rocm-smi": ("amd.rocm_smi", "rocm_smi"),
        "rocminfo": ("amd.rocminfo", "rocminfo"),
        "amd-ctk": ("amd.ctk", "amd_ctk"),
        "amd-container-runtime": ("amd.ctk", "amd_container_runtime"),
        "rvs": ("amd.rvs", "rvs"),
        "TransferBench": ("amd.transferbench", "transferbench"),
        "nvidia-ctk": ("containers.nvidia_ctk", "nvidia_ctk"),
        "nvidia-cdi-hook": ("containers.cdi_hook", "nvidia_cdi_hook"),
        "nvidia-container-runtime": ("containers.container_runtime", "nvidia_container_runtime"),
    }
    tools.update({name: ("nccl.nccl_tests", name) for name in collectives})
    return tools


def main(arguments: list) -> int:
    """Run the tool that the command line names."""
    if not arguments:
        print("usage: run.py TOOL ARGUMENTS", file=sys.stderr)
        return 2
    tool, rest = arguments[0], arguments[1:]
    if tool in ("new", "fault"):
        import commands

        return getattr(commands, tool)(rest)
    if tool not in _tools():
        print(
            f"run.py: there is no simulated {tool!r}; known: {', '.join(sorted(_tools()))}", file=sys.stderr
        )
        return 2
    try:
        node = Node(folder_from_environment())
    except StateError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    node.count_run()
    if tool not in ("boot", "dmesg", "modprobe", "rmmod", "nvidia-ctk", "amd-ctk"):
        devices.confine(node)
    return _run(node, "gpu_burn" if tool == "gpu-burn" else tool, rest)


def _run(node, tool: str, rest: list) -> int:
    module, name = _tools()[tool]
    run = getattr(importlib.import_module(module), name)
    broken = {
        one["id"]: one
        for one in node.faults
        if one.get("tool") == tool and one.get("args", "") in " ".join(rest)
    }
    if "tool_missing" in broken:
        print(f"/bin/sh: 1: exec: {tool}: not found", file=sys.stderr)
        return 127
    if "tool_slow" in broken:
        time.sleep(broken["tool_slow"]["seconds"] / node.speed)
    if tool == "nvidia-smi" and node.fault("slow_first_call"):
        time.sleep(node.fault("slow_first_call")["seconds"] / node.speed)
    if "tool_hang" in broken:
        _hang(broken["tool_hang"]["stubborn"] == "yes")
    if "tool_garbage" in broken:
        sys.stdout.buffer.write(GARBAGE.encode("utf-8", "replace") + bytes(range(128, 160)))
        return 0
    if "tool_truncated" in broken:
        return _truncated(lambda: run(node, rest), broken["tool_truncated"]["percent"])
    return run(node, rest)


def _hang(stubborn: bool) -> None:
    if stubborn:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(3600)


def _truncated(run, percent: int) -> int:
    real, sys.stdout = sys.stdout, io.StringIO()
    try:
        run()
        text = sys.stdout.getvalue()
    finally:
        sys.stdout = real
    sys.stdout.write(text[: len(text) * percent // 100])
    return 0


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader is gone; print nothing more at exit
        status = 141
    sys.exit(status)
