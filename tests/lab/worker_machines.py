"""Workers for lab nodes: separate machines with Debian 13's Receptor, and inventories that name them.

They are network namespaces in the lab's network and see this machine's files, including the interpreter that
runs the tests. The controller and the others reach only worker-a, so the others are two hops away.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpuprov_lab import network
from tests.lab.gpuprov_up import ROOT, Operator
from tests.support.processes import command_of
from tests.support.receptor import PROGRAM, TLS_CLIENT, RealMesh

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

# One small role: these tests are about the worker, not about the role.
ROLE = {
    "gpuprov_roles": ["host_settings"],
    "host_settings_time_sync": "none",
    "host_settings_cpu_governor": None,
}
UNDO = "rm -f /etc/sysctl.d/*gpuprov*"
# A node has Debian 13's packages; its Receptor is one static program.
_DOWNLOAD = """\
set -e
cd $(mktemp -d)
apt-get -qq -o Acquire::Retries=3 update >&2
apt-get -qq -o Acquire::Retries=3 download receptor >&2
dpkg-deb --fsys-tarfile receptor_*.deb | tar -xO ./usr/bin/receptor | base64 -w0
"""


class Worker:
    """A machine in the lab's network with its own address and Receptor."""

    def __init__(self, lab: Lab, name: str, index: int) -> None:
        self.name = name
        self.namespace = f"{lab.record.place.namespace_prefix}{name}"
        network.ensure_namespace(self.namespace, lab.record.octet, index)
        self.address = network.node_address(lab.record.octet, index)

    def processes(self, text: str) -> list[int]:
        """Return its processes with `text` in their command line."""
        return [pid for pid in network.namespace_pids(self.namespace) if text in command_of(pid)]

    def kill_work(self) -> None:
        """Kill gpuprov's processes there, as the kernel does when memory runs out."""
        for pid in self.processes("provision.remote.worker_program.worker_entry"):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill all its processes, as in a power cut."""
        for pid in network.namespace_pids(self.namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass
class Machines:
    """The workers of a lab, and their mesh with the controller."""

    workers: list[Worker]
    mesh: RealMesh

    def __getitem__(self, index: int) -> Worker:
        return self.workers[index]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def stop(self, worker: Worker) -> None:
        worker.stop()
        self.mesh.processes[worker.name].wait(timeout=10)

    def start(self, worker: Worker) -> None:
        self.mesh.begin(worker.name)
        self.mesh.wait()

    def variables(self, name: str) -> dict[str, Any]:
        return {"gpuprov_receptor_socket": self.mesh.worker_socket(name)}


def program(lab: Lab, folder: Path) -> str:
    """Return the path of Debian 13's Receptor, or of GPUPROV_TEST_RECEPTOR."""
    if PROGRAM is not None:
        return PROGRAM
    file = folder / "receptor"
    file.write_bytes(base64.b64decode(lab.nodes[0].as_root(_DOWNLOAD).stdout))
    file.chmod(0o755)
    return str(file)


def command(folder: Path, name: str, more: str = "") -> Path:
    """Write the program that a worker's Receptor starts, with this gpuprov."""
    path = folder / name
    entry = "-P -m provision.remote.worker_program.worker_entry"
    path.write_text(f"#!/bin/sh\nPYTHONPATH={more}{ROOT} exec {sys.executable} {entry}\n")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def workers_of(lab: Lab, folder: Path, count: int = 2) -> Iterator[Machines]:
    every = [Worker(lab, f"worker-{'abc'[number]}", 201 + number) for number in range(count)]
    mesh = RealMesh(
        folder,
        command(folder, "work"),
        tuple(worker.name for worker in every),
        every[0].address,
        {worker.name: ["ip", "netns", "exec", worker.namespace] for worker in every},
        program(lab, folder),
    )
    try:
        yield Machines(every, mesh)
    finally:
        mesh.end()
        for worker in every:
            worker.stop()


def halves(lab: Lab, workers: Iterable[Worker]) -> dict[str, list[str]]:
    """Assign one worker to each node, in rotation."""
    names = [worker.name for worker in workers]
    return {node.name: [names[at % len(names)]] for at, node in enumerate(lab.record.nodes)}


def operator(
    lab: Lab,
    folder: Path,
    name: str,
    chosen: Mapping[str, Sequence[str]],
    machines: Machines | None,
    variables: Mapping[str, Any] = ROLE,
) -> Operator:
    """Write an inventory of the lab's nodes with these `variables`; `chosen`: node → its workers."""
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["gpu_nodes"]["vars"].update(variables)
    for node, workers in chosen.items():
        inventory["gpu_nodes"]["hosts"][node]["gpuprov_receptor_node"] = list(workers)
    if machines is not None:
        ours = {"gpuprov_receptor_socket": machines.mesh.socket, "gpuprov_receptor_tls_client": TLS_CLIENT}
        inventory["gpu_nodes"]["vars"].update(ours)
        hosts = {worker.name: machines.variables(worker.name) for worker in machines}
        inventory["gpuprov_workers"] = {"hosts": hosts}
    path = folder / f"{name}.yml"
    path.write_text(yaml.safe_dump(inventory))
    return Operator(path, folder / f"runs-{name}")


def newest(runs: Path, verb: str) -> Path:
    """Return the newest run folder of this verb."""
    return max(runs.glob(f"*-{verb}"))


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    """Return a run's records from a JSON Lines file."""
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


def outcomes(run: Path) -> dict[str, dict[str, Any]]:
    """Return node → its outcome in an `up`."""
    return {row.pop("node"): row for row in rows(run, "outcomes") if row.pop("time")}


def begin(stands: Operator, *arguments: str) -> subprocess.Popen[str]:
    """Start `up` without waiting for it, with stdout and stderr merged."""
    return subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "up", str(stands.inventory), "--yes", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(stands.runs), "COLUMNS": "4000"},
    )


def wait_for(worker: Worker, text: str, running: bool = True, seconds: float = 300) -> list[int]:
    """Wait until the worker has a process with `text`, or no longer has one."""
    deadline = time.monotonic() + seconds
    while bool(found := worker.processes(text)) != running:
        assert time.monotonic() < deadline, f"{worker.name}: {text}: {found}"
        time.sleep(0.2)
    return found
