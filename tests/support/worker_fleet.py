"""Two nodes and the workers that reach them, set up for tests of the mesh."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from provision import paths
from provision.fleet import Fleet, Node
from provision.remote import workers
from tests.support.receptor import TLS_CLIENT, RealMesh, StandIn
from tests.support.sshd import Sshd

ROOT = paths.PACKAGE.parent
ENTRY = "-P -m provision.remote.worker_program.worker_entry"


def interpreter(folder: Path, before: str = "") -> Path:
    """Write the program that a worker's Receptor starts; it imports this gpuprov."""
    path = folder / "worker"
    path.write_text(f"#!/bin/sh\n{before}\nPYTHONPATH={ROOT} exec {sys.executable} {ENTRY}\n")
    path.chmod(0o755)
    return path


def inventory(sshd: Sshd, made: StandIn | RealMesh, names: Any = "worker-a", **variables: Any) -> Fleet:
    """Return a fleet of two nodes, both served by this sshd, and the workers."""
    more = {
        "gpuprov_receptor_node": names,
        "gpuprov_receptor_socket": made.socket,
        "gpuprov_receptor_tls_client": TLS_CLIENT,
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
    }
    nodes = {name: sshd.node(name, **{**more, **variables}) for name in ("gpu-01", "gpu-02")}
    both = {
        name: Node(name, (workers.GROUP,), {"gpuprov_receptor_socket": made.worker_socket(name)})
        for name in ("worker-a", "worker-b")
    }
    groups = {"all": (*nodes, *both), "gpu_nodes": tuple(nodes), workers.GROUP: tuple(both)}
    return Fleet(Path("inventory.yml"), {**nodes, **both}, groups)


def linked(fleet: Fleet, **overrides: Any) -> Fleet:
    nodes, apart = workers.apart(fleet)
    return workers.linked(nodes, apart, overrides)


def asking(fleet: Fleet, program: str, **variables: Any) -> dict[str, dict[str, Any]]:
    """Return the input of observe.yml: a program for each node."""
    return {
        name: {**node.variables, "gpuprov_observe_program": program, **variables}
        for name, node in fleet.nodes.items()
    }
