"""The cost of `gpuprov up` on bare nodes, compared with earlier roles under plain ansible-playbook.

Both bring the same bare lab node (8 x H100, Debian 13; needs root) from nothing to the same state, in turns.
The floor is the roles, modules and playbook of revision FLOOR with pipelining and a given description of the
node: it observes nothing before, verifies nothing afterwards, and does not reboot, while `up` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.costs import ROOT, Cost, FailedError, cost_of, environment, gpuprov
from benchmarks.results import Options, Result, Rounds, number

FLOOR = "360de97"
LAB, NODE = "bench-roles", "bare-01"
# Roles that `up` skips here because none of their variables is declared.
UNDECLARED = "gpu_settings,gpudirect_rdma,package_lock"


def old_roles(folder: Path) -> Path:
    """Extract FLOOR's roles, modules and playbook. Raises FailedError when FLOOR is not in the history."""
    command = ["git", "-C", str(ROOT), "archive", FLOOR, "roles", "playbooks", "provision/node/modules"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    if done.returncode:
        raise FailedError(f"{FLOOR} is not in this checkout: git fetch --unshallow")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def bare_node(folder: Path) -> Path:
    """Start a fresh lab of one bare node and return its inventory."""
    inventory = folder / "inventory.yml"
    lab("down", "--lab", LAB)
    lab("up", "--lab", LAB, "--fresh", "--node", f"{NODE}=h100-sxm", "--inventory", str(inventory))
    return inventory


def lab(*words: str) -> None:
    done = subprocess.run(gpuprov("lab", *words), capture_output=True, text=True, check=False, timeout=600)
    if done.returncode and words[0] != "down":
        raise FailedError(f"gpuprov lab {words[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def described() -> dict[str, Any]:
    """Return the description of the node that the old roles need."""
    return {
        "os": {
            "id": "debian",
            "version_id": "13",
            "codename": "trixie",
            "family": "debian",
            "arch": "x86_64",
        },
        "kernel": {"release": os.uname().release},
        "gpu": {"sku": "h100-sxm", "count": 8, "architecture": "hopper", "fabric": "nvswitch", "pci_ids": []},
    }


def plain(folder: Path, inventory: Path) -> Cost:
    """Run plain ansible-playbook with the old roles."""
    (folder / "described.json").write_text(json.dumps({"gpuprov_node": described()}))
    command = ["ansible-playbook", "-i", str(inventory), "-e", f"@{folder}/described.json"]
    command += ["--skip-tags", UNDECLARED, str(folder / "playbooks/up.yml")]
    settings = {
        "ANSIBLE_LIBRARY": str(folder / "provision/node/modules"),
        "ANSIBLE_ROLES_PATH": str(folder / "roles"),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_STDOUT_CALLBACK": "minimal",
        "ANSIBLE_NOCOLOR": "1",
    }
    return succeeded(cost_of(command, environment={**environment(folder), **settings}), "ansible-playbook")


def up(folder: Path, inventory: Path) -> Cost:
    command = gpuprov("up", str(inventory), "--yes")
    return succeeded(cost_of(command, environment=environment(folder)), "gpuprov up")


def succeeded(cost: Cost, name: str) -> Cost:
    if cost.code:
        raise FailedError(f"{name} ended with {cost.code}:\n{(cost.output + cost.trouble)[-3000:]}")
    return cost


def measure(options: Options) -> Iterator[Result]:
    """Measure both from a bare node, in turns."""
    if os.geteuid():
        raise FailedError("lab nodes need root")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cpu, wall = Rounds(), Rounds()
    before = old_roles(options.folder / "old")
    try:
        for _ in range(1 if options.quick else min(options.rounds, 3)):
            for name in ("plain", "up"):
                inventory = bare_node(options.folder)
                cost = plain(before, inventory) if name == "plain" else up(options.folder, inventory)
                cpu.add(name, cost.controller)
                wall.add(name, cost.wall)
    finally:
        lab("down", "--lab", LAB)
    floor = f"the roles of {FLOOR} under plain ansible-playbook"
    what = "`up` of a bare node with 8 x H100, controller CPU"
    note = f"plain: {number(cpu.median('plain'))} s of CPU"
    yield Result("roles.cpu", what, floor, cpu.ratios("up", "plain"), note)
    note = f"plain: {number(wall.median('plain'))} s, without the reboot"
    yield Result("roles.wall", "the same, wall time", floor, wall.ratios("up", "plain"), note)
