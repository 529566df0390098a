"""A fleet done by two workers, each its half, ends as one done by one controller; and workers on a bad day.

The workers are machines of the lab's network (network namespaces with an SSH server of their own) that see
this machine's files: the interpreter that runs the tests is theirs, too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from provision.errors import ExitCode
from provision.lab import network
from provision.lab.spec import NodeSpec
from tests.lab.conftest import running_lab
from tests.lab.gpuprov_up import Operator, said

if TYPE_CHECKING:
    from tests.lab.conftest import Lab

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NODES = tuple(NodeSpec(f"gpu-{number:02d}", "h100-sxm") for number in range(1, 5))
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
        self.log = (self.folder / "sshd.log").open("wb")
        self._sshd = subprocess.Popen(
            ["ip", "netns", "exec", self._namespace, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)],
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
        found = []
        for pid in network.namespace_pids(self._namespace):
            line = Path(f"/proc/{pid}/cmdline")
            if line.exists() and text in line.read_bytes().replace(b"\0", b" ").decode():
                found.append(pid)
        return found

    def stop(self) -> None:
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


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("workers", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def workers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    folder = tmp_path_factory.mktemp("workers")
    both = [Worker(lab, folder, "worker-a", 201), Worker(lab, folder, "worker-b", 202)]
    yield both
    for worker in both:
        worker.stop()


@pytest.fixture
def one(lab: Lab, tmp_path: Path) -> Operator:
    """The controller alone."""
    return operator(lab, tmp_path, "one", {}, {})


@pytest.fixture
def two(lab: Lab, tmp_path: Path, workers: list[Worker]) -> Operator:
    """The same fleet with a worker for each half."""
    python = interpreter(tmp_path, "python")
    return operator(lab, tmp_path, "two", halves(workers), {w.name: w.variables(python) for w in workers})


def halves(workers: list[Worker]) -> dict[str, str]:
    return {node.name: workers[number % 2].name for number, node in enumerate(NODES)}


def operator(
    lab: Lab, folder: Path, name: str, chosen: dict[str, str], workers: dict[str, dict[str, Any]]
) -> Operator:
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["gpu_nodes"]["vars"].update(ROLE)
    for node, worker in chosen.items():
        inventory["gpu_nodes"]["hosts"][node]["gpuprov_worker"] = worker
    if workers:
        inventory["gpuprov_workers"] = {"hosts": workers}
    path = folder / f"{name}.yml"
    path.write_text(yaml.safe_dump(inventory))
    return Operator(path, folder / f"runs-{name}")


def newest(runs: Path, verb: str) -> Path:
    return max(runs.glob(f"*-{verb}"))


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


def events(run: Path) -> Counter[tuple[str, ...]]:
    names = ("node", "role", "task", "kind")
    return Counter(tuple(str(row[name]) for name in names) for row in rows(run, "events"))


def outcomes(run: Path) -> dict[str, dict[str, Any]]:
    return {row.pop("node"): row for row in rows(run, "outcomes") if row.pop("time")}


def test_up_by_two_workers_is_up_by_one_controller(
    lab: Lab, one: Operator, two: Operator, workers: list[Worker]
) -> None:
    first = one.call("up", "--yes")
    assert first.returncode == ExitCode.OK, said(first)
    for node in lab.nodes:
        node.as_root(UNDO)
    marks = {node.name: node.run("date +%s").stdout.strip() for node in lab.nodes}
    second = two.call("up", "--yes")
    assert second.returncode == ExitCode.OK, said(second)

    alone, shared = newest(one.runs, "up"), newest(two.runs, "up")
    assert any(event[3] == "changed" for event in events(alone))
    assert events(shared) == events(alone)
    assert outcomes(shared) == outcomes(alone)
    assert rows(shared, "drifts")[0]["fact"] == rows(alone, "drifts")[0]["fact"]
    # Each node was reached by its worker, and by nobody else.
    addresses = {worker.name: worker.address for worker in workers}
    for node in lab.nodes:
        log = node.as_root(f"journalctl --no-pager -q -u ssh -S @{marks[node.name]} | grep Accepted").stdout
        logins = Counter(re.findall(r"from (\S+) port", log))
        assert logins.pop(addresses[halves(workers)[node.name]]) > 2
        assert logins.pop(network.bridge_address(lab.record.octet)) <= 2  # our own: `date`, and this look
        assert not logins


def timeless(run: Path) -> dict[str, Any]:
    """A report without its times, its name and the inventory's, and how long its nodes are up."""
    report = json.loads((run / "report.json").read_text())
    for name in ("started", "finished", "run_id", "inventory"):
        del report[name]
    for node in report["nodes"]:
        for check in node["checks"]:
            del check["seconds"]
            check["measurements"] = [m for m in check["measurements"] if m["metric"] != "uptime"]
    return dict(report)


def test_validate_by_two_workers_is_validate_by_one_controller(one: Operator, two: Operator) -> None:
    for stands in (one, two):
        done = stands.call("validate", "--stage", "quick")
        assert done.returncode in (ExitCode.OK, ExitCode.UNHEALTHY), said(done)
    alone, shared = timeless(newest(one.runs, "validate")), timeless(newest(two.runs, "validate"))
    assert len(alone["nodes"]) == len(NODES)
    assert all(len(node["checks"]) > 2 and not node["error"] for node in alone["nodes"])
    assert shared == alone


def begin(stands: Operator, *arguments: str) -> subprocess.Popen[str]:
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


def test_nodes_of_a_killed_worker_are_failed_and_the_others_go_on(
    lab: Lab, two: Operator, workers: list[Worker]
) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(two, "--no-canary", "--max-failures", "100%")
    wait_for(workers[1], "ansible-playbook")
    for pid in workers[1].processes("provision.worker_entry"):
        os.kill(pid, signal.SIGKILL)
    text, _ = process.communicate(timeout=400)
    assert process.returncode == ExitCode.UNHEALTHY, text
    ended = outcomes(newest(two.runs, "up"))
    for node, worker in halves(workers).items():
        if worker == "worker-a":
            assert ended[node]["status"] == "done", text
        else:
            assert ended[node]["status"] == "failed", text
            assert "worker worker-b: the connection ended too early" in ended[node]["message"]
    wait_for(workers[1], "ansible-playbook", running=False)  # nothing goes on without its controller

    again = two.call("up", "--yes")
    assert again.returncode == ExitCode.OK, said(again)


def test_an_interrupt_here_ends_ansible_there(lab: Lab, two: Operator, workers: list[Worker]) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(two, "--no-canary")
    for worker in workers:
        wait_for(worker, "ansible-playbook")
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, text
    for worker in workers:
        wait_for(worker, "ansible-playbook", running=False, seconds=30)
        wait_for(worker, "provision.worker_entry", running=False, seconds=30)


def test_a_worker_of_another_version_or_with_another_host_key_is_not_used(
    lab: Lab, tmp_path: Path, workers: list[Worker]
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text("import provision\nprovision.__version__ = '0.0.1'\n")
    pythons = [interpreter(tmp_path, "old", f"{older}:"), interpreter(tmp_path, "python")]
    workers[1].know((workers[0].folder / "host_key.pub").read_text())
    try:
        found = {w.name: w.variables(python) for w, python in zip(workers, pythons, strict=True)}
        stands = operator(lab, tmp_path, "wrong", halves(workers), found)
        done = stands.call("validate", "--stage", "quick")
    finally:
        workers[1].know((workers[1].folder / "host_key.pub").read_text())
    assert done.returncode == ExitCode.INCOMPLETE, said(done)
    assert "worker worker-a: it has gpuprov 0.0.1, and here it is" in said(done)
    assert f"{pythons[0]} -m pip install gpuprov==" in said(done)
    assert f"worker worker-b: the host key of {workers[1].address} CHANGED" in said(done)
