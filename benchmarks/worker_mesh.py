"""A controller and workers on this machine, each with a real Receptor, and the CPU cost of each.

Their settings are those of docs/mesh.md: TLS with certificates of one authority on both sides, signed and
verified work, and the program for workers as the only type of work. Needs Receptor, in PATH or named by
GPUPROV_TEST_RECEPTOR.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.costs import TREE_COST
from benchmarks.light_nodes import below, cpu_of
from benchmarks.nodes import FailedError, Nodes
from provision.remote.ansible.handover import memory_folder
from tests.support.receptor import CONTROLLER, PROGRAM, TLS_CLIENT, RealMesh

WORKERS = ("worker-a", "worker-b")
MISSING = (
    "there is no receptor: install Debian 13's package of that name, or name one in GPUPROV_TEST_RECEPTOR"
)
_ENTRY = "-P -m provision.remote.worker_program.worker_entry"
_AT_REST = 30.0  # seconds until the units of an ended command must be gone
_LONG = "86400"  # seconds, a limit that is never reached: a Receptor runs until it is ended


@dataclass(frozen=True)
class WorkerMesh:
    """Running Receptors: the controller's, and one for each of WORKERS."""

    real: RealMesh

    def use(self, installed: Path) -> None:
        """Make workers run the gpuprov of this folder."""
        link = _installed(self.real.folder)
        link.unlink(missing_ok=True)
        link.symlink_to(installed)

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each Receptor with all its children so far, by its name in the mesh.
        Waits until all units have ended."""
        end = time.monotonic() + _AT_REST
        while any(_at_work(process.pid) for process in self.real.processes.values()):
            if time.monotonic() > end:
                raise FailedError(f"units are still at work after {_AT_REST:.0f} s")
            time.sleep(0.05)
        return {
            name: sum(cpu_of(pid) for pid in below(process.pid))
            for name, process in self.real.processes.items()
        }

    def inventory(self, nodes: Nodes, folder: Path, **variables: object) -> Path:
        """Write an inventory of these nodes behind all workers, which share them evenly."""
        ours = {
            "gpuprov_receptor_node": list(WORKERS),
            "gpuprov_receptor_socket": self.real.socket,
            "gpuprov_receptor_tls_client": TLS_CLIENT,
        }
        path = nodes.inventory(folder, **ours, **variables)
        hosts = {name: {"gpuprov_receptor_socket": self.real.worker_socket(name)} for name in WORKERS}
        inventory = json.loads(path.read_text())
        inventory["all"]["children"] = {"gpuprov_workers": {"hosts": hosts}}
        path.write_text(json.dumps(inventory, indent=1))
        return path


@contextlib.contextmanager
def worker_mesh() -> Iterator[WorkerMesh]:
    """Start a mesh in which both workers connect to the controller; unit data is kept in memory.
    Raises FailedError if Receptor is not installed."""
    if PROGRAM is None:
        raise FailedError(MISSING)
    with tempfile.TemporaryDirectory(prefix="gpb-mesh-", dir=memory_folder()) as name:
        folder = Path(name)
        command = folder / "work"
        command.write_text(f"#!/bin/sh\nPYTHONPATH={_installed(folder)} exec {sys.executable} {_ENTRY}\n")
        command.chmod(0o755)
        # Processes that a unit leaves behind become children of tree_cost.py, which counts their CPU.
        counted = [sys.executable, "-I", "-S", str(TREE_COST)]
        inside = {one: [*counted, str(folder / f"{one}.cost"), _LONG] for one in (CONTROLLER, *WORKERS)}
        mesh = RealMesh(folder, command, WORKERS, inside=inside, hub=CONTROLLER)
        try:
            yield WorkerMesh(mesh)
        finally:
            mesh.end()


def _installed(folder: Path) -> Path:
    """Return the link to the gpuprov that workers run."""
    return folder / "installed"


def _at_work(pid: int) -> bool:
    """Whether this Receptor runs anything: more than Receptor itself and tree_cost.py is alive."""
    return sum(_lives(each) for each in below(pid)) > 2


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
