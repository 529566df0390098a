"""A playbook of a single role for tests on lab nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from provision import paths
from provision.desired import stack
from tests.support.plays import recap

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ANSIBLE_LIBRARY": str(paths.MODULES),
        "ANSIBLE_ROLES_PATH": str(paths.ROLES),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
        "ANSIBLE_NOCOLOR": "1",
    }


def described(lab: Any) -> dict[str, Any]:
    """Return gpuprov's variables for each node, taken from the lab and not from the observer."""
    kinds = {"h100-sxm": ("hopper", "nvswitch"), "l40s": ("ada", "none")}
    hosts = {}
    for node in lab.nodes:
        architecture, fabric = kinds[node.sku]
        version, codename = {"debian13": ("13", "trixie"), "debian12": ("12", "bookworm")}[node.release]
        hosts[node.name] = {
            "gpuprov_run": "by hand",
            "gpuprov_node": {
                "os": {
                    **{"id": "debian", "version_id": version, "codename": codename},
                    **{"family": "debian", "arch": "x86_64"},
                },
                "kernel": {"release": os.uname().release},
                "gpu": {
                    **{"sku": node.sku, "count": 8, "architecture": architecture},
                    **{"fabric": fabric, "pci_ids": []},
                },
            },
        }
    return hosts


class Playbook:
    def __init__(self, lab: Any, folder: Path) -> None:
        self.inventories = [lab.inventory, folder / "nodes.json"]
        self.inventories[1].write_text(json.dumps({"all": {"hosts": described(lab)}}))

    def run(self, *arguments: str, **variables: Any) -> tuple[int, str, dict[str, dict[str, int]]]:
        """Return exit status, output, and per node the counts of ok, changed, failed, … tasks."""
        every = {**stack.load(stack.DEFAULT).variables, **variables}
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible-playbook"), str(paths.PLAYBOOKS / "up.yml")]
            + [word for inventory in self.inventories for word in ("-i", str(inventory))]
            + ["-e", json.dumps(every), *arguments],
            env={**environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
            capture_output=True,
            text=True,
            check=False,
            timeout=1400,
        )
        return done.returncode, done.stdout + done.stderr, recap(done.stdout)


SOURCES = {  # results of the real build, made without a compiler
    "gpu-burn": ("1.1", "all:\n\techo '#!/bin/sh' > gpu_burn\n\techo ptx > compare.ptx\n"),
    "nccl-tests": (
        "2.18.3",
        "all:\n\tmkdir -p build\n\tfor n in all_reduce all_gather reduce_scatter alltoall; do "
        "printf '#!/bin/sh\\n# %s\\n' '$(MPI) $(MPI_HOME)' > build/$${n}_perf; done\n",
    ),
    "nvbandwidth": ("0.8", "all:\n\techo '#!/bin/sh' > nvbandwidth\n"),
}
