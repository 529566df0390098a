"""Workers for lab nodes: machines beside them, each with Debian 13's Receptor, and inventories that name
them.

They are network namespaces in the lab's network and see this machine's files: the interpreter that runs the
tests is theirs, too. The controller and the others reach worker-a alone: to them it is two hops.
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

# One small role: what is tried here is who does it, not what it does.
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
    """A machine beside the nodes, with an address and a Receptor of its own."""

    def __init__(self, lab: Lab, name: str, index: int) -> None:
        self.name = name
        self.namespace = f"{lab.record.place.namespace_prefix}{name}"
        network.ensure_namespace(self.namespace, lab.record.octet, index)
        self.address = network.node_address(lab.record.octet, index)

    def processes(self, text: str) -> list[int]:
        """Those of its processes whose command line has `text`."""
        return [pid for pid in network.namespace_pids(self.namespace) if text in command_of(pid)]

    def kill_work(self) -> None:
        """As the kernel does to a machine without memory: what gpuprov runs there is killed."""
        for pid in self.processes("provision.remote.worker_program.worker_entry"):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """No process of it is left, as after a power cut."""
        for pid in network.namespace_pids(self.namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@dataclass
class Machines:
    """The workers of a lab, and the mesh that they and the controller make."""

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
    """Debian 13's Receptor, or the one that GPUPROV_TEST_RECEPTOR names."""
    if PROGRAM is not None:
        return PROGRAM
    file = folder / "receptor"
    file.write_bytes(base64.b64decode(lab.nodes[0].as_root(_DOWNLOAD).stdout))
    file.chmod(0o755)
    return str(file)


def command(folder: Path, name: str, more: str = "") -> Path:
    """What a worker's Receptor starts, with this gpuprov."""
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
    """Each node's one worker, dealt like cards."""
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
    """An inventory of the lab's nodes with these `variables`; `chosen`: node → its workers."""
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
    """The run folder of the last one of this verb."""
    return max(runs.glob(f"*-{verb}"))


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    """What a run keeps line by line."""
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


def outcomes(run: Path) -> dict[str, dict[str, Any]]:
    """How it ended for each node of an `up`."""
    return {row.pop("node"): row for row in rows(run, "outcomes") if row.pop("time")}


def begin(stands: Operator, *arguments: str) -> subprocess.Popen[str]:
    """`up` that is not waited for: stdout and stderr are one."""
    return subprocess.Popen(
        [sys.executable, "-m", "provision.cli", "up", str(stands.inventory), "--yes", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(stands.runs), "COLUMNS": "4000"},
    )


def wait_for(worker: Worker, text: str, running: bool = True, seconds: float = 300) -> list[int]:
    """Until the worker has a process with `text`, or none any more."""
    deadline = time.monotonic() + seconds
    while bool(found := worker.processes(text)) != running:
        assert time.monotonic() < deadline, f"{worker.name}: {text}: {found}"
        time.sleep(0.2)
    return found
