"""A controller and workers with a real Receptor each, on this machine, and what each of them costs.

Their settings are those of docs/mesh.md: TLS with certificates of one authority on both sides, work that is
signed and verified, and the program for workers as the one type of work. Needs Receptor: in PATH, or where
GPUPROV_TEST_RECEPTOR says.
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
_AT_REST = 30.0  # seconds for the units of a command that is over to be gone
_LONG = "86400"  # seconds: a Receptor runs until it is ended


@dataclass(frozen=True)
class WorkerMesh:
    """Receptors that are up: a controller's, and one for each of WORKERS."""

    real: RealMesh

    def use(self, installed: Path) -> None:
        """Have workers run the gpuprov of this folder."""
        link = _installed(self.real.folder)
        link.unlink(missing_ok=True)
        link.symlink_to(installed)

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each Receptor so far, by its name in the mesh, with all that it has run. Waits until
        no unit is at work."""
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
        """These nodes behind all workers, which share them evenly."""
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
    """A mesh in which both workers connect to the controller. What Receptor keeps of units is in memory, as
    the role has it. Raises FailedError where there is no Receptor."""
    if PROGRAM is None:
        raise FailedError(MISSING)
    with tempfile.TemporaryDirectory(prefix="gpb-mesh-", dir=memory_folder()) as name:
        folder = Path(name)
        command = folder / "work"
        command.write_text(f"#!/bin/sh\nPYTHONPATH={_installed(folder)} exec {sys.executable} {_ENTRY}\n")
        command.chmod(0o755)
        # What a unit leaves behind becomes a child of tree_cost.py, so that its CPU is not lost.
        counted = [sys.executable, "-I", "-S", str(TREE_COST)]
        inside = {one: [*counted, str(folder / f"{one}.cost"), _LONG] for one in (CONTROLLER, *WORKERS)}
        mesh = RealMesh(folder, command, WORKERS, inside=inside, hub=CONTROLLER)
        try:
            yield WorkerMesh(mesh)
        finally:
            mesh.end()


def _installed(folder: Path) -> Path:
    """A link to the gpuprov that workers run."""
    return folder / "installed"


def _at_work(pid: int) -> bool:
    """Whether the Receptor below this process runs anything: beside it and tree_cost.py something lives."""
    return sum(_lives(each) for each in below(pid)) > 2


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
