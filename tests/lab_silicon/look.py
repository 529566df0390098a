"""Observation of a simulated node without a lab: its surfaces in a tree at a lab node's mount points."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuprov_lab
from provision.remote import node_program, protocol

RUN = Path(gpuprov_lab.__file__).with_name("silicon") / "run.py"
MOUNTS = {
    "sys_pci": "sys/bus/pci/devices",
    "sys_module": "sys/module",
    "proc_driver": "proc/driver",
    "proc_modules": "proc/modules",
    "proc_cpuinfo": "proc/cpuinfo",
    "proc_uptime": "proc/uptime",
    "proc_self_limits": "proc/self/limits",
    "run_timesync": "run/systemd/timesync",
    "sys/class": "sys/class",
    "sys/devices/system": "sys/devices/system",
    "sys/kernel/iommu_groups": "sys/kernel/iommu_groups",
}
TOOLS = ("ibv_devinfo",)
# adjtimex(2) is not a file: the kernel's own flag is unsynchronised, as on a fresh machine.
CLOCK = "kernel_clock = lambda: (0x40, 16000000)"


@dataclass(frozen=True)
class Look:
    """The facts of one observation, and the reasons for missing ones."""

    facts: dict[str, Any]
    problems: dict[str, str]


def look_of(node: Any, facts: Collection[str]) -> Look:
    """Run the program for nodes on the surfaces of a simulated node (the fixture's Silicon)."""
    for name, inside in MOUNTS.items():
        point = node.root / inside
        if (node.state / name).exists() and not point.is_symlink():
            point.parent.mkdir(parents=True, exist_ok=True)
            point.symlink_to(node.state / name)
    for tool in TOOLS:
        words = [
            f"SILICON_STATE={node.state}",
            f"SILICON_ROOT={node.root}",
            sys.executable,
            "-I",
            "-S",
            str(RUN),
        ]
        file = node.root / "usr/bin" / tool
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/sh\nexec env {shlex.join([*words, tool])} "$@"\n')
        file.chmod(0o755)
    (node.root / "dev/shm").mkdir(parents=True, exist_ok=True)
    (node.root / "usr/bin/dockerd").touch(0o755)
    request = {"facts": sorted(facts), "root": str(node.root)}
    text = node_program.packed_for(facts) + f"\n\n{CLOCK}\nmain({request!a})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=text.encode("ascii"), capture_output=True, timeout=60
    )
    assert done.stderr == b"", done.stderr
    document = json.loads(protocol.unframed(done.stdout))
    return Look(document["facts"], document["problems"])
