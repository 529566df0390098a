"""Workers for lab nodes: machines beside them, each with an SSH server, and inventories that name them.

They are network namespaces in the lab's network and see this machine's files: the interpreter that runs the
tests is theirs, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from provision.lab import network
from tests.lab.gpuprov_up import ROOT, Operator
from tests.support.processes import command_of

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

# One small role: what is tried here is who does it, not what it does.
ROLE = {
    "gpuprov_roles": ["host_settings"],
    "host_settings_time_sync": "none",
    "host_settings_cpu_governor": None,
}
UNDO = "rm -f /etc/sysctl.d/*gpuprov*"
SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PrintMotd no
"""


class Worker:
    """A machine beside the nodes, with an address and an SSH server of its own."""

    def __init__(self, lab: Lab, folder: Path, name: str, index: int) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self._namespace = f"{lab.record.place.namespace_prefix}{name}"
        network.ensure_namespace(self._namespace, lab.record.octet, index)
        self.address = network.node_address(lab.record.octet, index)
        for key in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(command, check=True, timeout=30)
        self.know((self.folder / "host_key.pub").read_text())
        config = self.folder / "sshd_config"
        config.write_text(SSHD_CONFIG.format(address=self.address, folder=self.folder))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.start()

    def start(self) -> None:
        self.log = (self.folder / "sshd.log").open("ab")
        config = str(self.folder / "sshd_config")
        self._sshd = subprocess.Popen(
            ["ip", "netns", "exec", self._namespace, "/usr/sbin/sshd", "-D", "-e", "-f", config],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )

    def know(self, public_key: str) -> None:
        """Have the controller believe that this is the worker's host key."""
        kind, blob = public_key.split()[:2]
        (self.folder / "known_hosts").write_text(f"{self.address} {kind} {blob}\n")

    def variables(self, python: Path) -> dict[str, Any]:
        return {
            "ansible_host": self.address,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "user_key"),
            "ansible_ssh_common_args": f"-F none -o UserKnownHostsFile={self.folder / 'known_hosts'}"
            " -o GlobalKnownHostsFile=/dev/null -o IdentityAgent=none",
            "gpuprov_worker_python": str(python),
        }

    def processes(self, text: str) -> list[int]:
        """Those of its processes whose command line has `text`."""
        return [pid for pid in network.namespace_pids(self._namespace) if text in command_of(pid)]

    def kill_work(self) -> None:
        """As the kernel does to a machine without memory: what gpuprov runs there is killed."""
        for pid in self.processes("provision.remote.workers.worker_entry"):
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """No process of it is left, as after a power cut: nobody listens."""
        for pid in network.namespace_pids(self._namespace):
            os.kill(pid, signal.SIGKILL)
        self._sshd.wait(timeout=10)
        self.log.close()


def interpreter(folder: Path, name: str, more: str = "") -> Path:
    """An interpreter with this gpuprov, as a worker has one."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nPYTHONPATH={more}{ROOT} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def two_workers(lab: Lab, folder: Path) -> Iterator[list[Worker]]:
    both = [Worker(lab, folder, "worker-a", 201), Worker(lab, folder, "worker-b", 202)]
    try:
        yield both
    finally:
        for worker in both:
            worker.stop()


def halves(lab: Lab, workers: Sequence[Worker]) -> dict[str, str]:
    """Each node's worker, dealt like cards."""
    return {node.name: workers[at % len(workers)].name for at, node in enumerate(lab.record.nodes)}


def operator(
    lab: Lab,
    folder: Path,
    name: str,
    chosen: Mapping[str, str],
    workers: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, Any] = ROLE,
) -> Operator:
    """An inventory of the lab's nodes with these `variables`; `chosen`: node → its worker."""
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["gpu_nodes"]["vars"].update(variables)
    for node, worker in chosen.items():
        inventory["gpu_nodes"]["hosts"][node]["gpuprov_worker"] = worker
    if workers:
        inventory["gpuprov_workers"] = {"hosts": dict(workers)}
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
