"""NCCL over six lab nodes in two racks, by real OpenMPI over the nodes' own ssh and a real Slurm.
Both identify a slow link and a hanging node, and leave nothing on any node.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab import silicon_state
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import ROOT, Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

RACKS = {"n1": "a", "n2": "a", "n3": "a", "n4": "b", "n5": "b", "n6": "b"}
CABLE = "reseat or check cable"
Report = dict[str, Any]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield nodes after `up` with OpenMPI; Slurm is installed, but there is no cluster yet."""
    nodes = tuple(NodeSpec(name, "h100-sxm", network="ib") for name in RACKS)
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("groups", nodes, inventory, images=dict.fromkeys(RACKS, images.with_slurm())) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    declared = yaml.safe_load(lab.inventory.read_text())
    for name, rack in RACKS.items():
        declared["gpu_nodes"]["hosts"][name]["gpuprov_rack"] = rack
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(declared))
    return Operator(inventory, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def measure(operator: Operator, lab: Lab) -> Iterator[Callable[..., tuple[int, Report]]]:
    def run(check: str, *arguments: str) -> tuple[int, Report]:
        before = [node.run("cat ~/.ssh/authorized_keys").stdout for node in lab.nodes]
        done = operator.call("validate", "--json", "--checks", check, *arguments)
        assert done.stdout.strip(), said(done)
        for node, keys in zip(lab.nodes, before, strict=True):
            nothing_left(node, keys)
        return done.returncode, json.loads(done.stdout)

    yield run
    for node in lab.nodes:
        if silicon_state.faults(node.place):
            node.heal()


LEFT = """
cat ~/.ssh/authorized_keys
ls /run/gpuprov-launch 2>&1
sudo pgrep --list-full '[a]ll_reduce_perf|[p]rted|[m]pirun|[s]run'
systemctl list-timers --all --no-legend | grep gpuprov
"""


def nothing_left(node: Any, keys: str) -> None:
    """Assert that a launch left no key, folder, process or timer."""
    found = node.run(LEFT, check=False).stdout
    assert found == f"{keys}ls: cannot access '/run/gpuprov-launch': No such file or directory\n", node.name


def verdicts(report: Report) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in report["nodes"]}


def fabric(report: Report) -> list[tuple[str, str, str]]:
    return [(finding["verdict"], finding["device"], finding["action"]) for finding in report["fabric"]]


def test_a_healthy_group_is_measured_once_and_passes(measure: Any) -> None:
    code, report = measure("nccl_group")
    assert (code, fabric(report)) == (ExitCode.OK, [])
    assert set(verdicts(report).values()) == {"pass"}
    values = {row["value"] for node in report["nodes"] for row in node["checks"][0]["measurements"]}
    assert len(values) == 1
    assert all(330 < value < 400 for value in values)


def test_a_slow_link_in_the_group_is_named_and_neither_end_is_accused(measure: Any, lab: Lab) -> None:
    lab.node("n3").fault("link_slow", peer="n4", factor=0.4)
    code, report = measure("nccl_group")
    assert code == ExitCode.UNHEALTHY
    assert fabric(report) == [("fail", "link n3-n4", CABLE)]
    assert verdicts(report) == {name: "warn" if name in ("n3", "n4") else "pass" for name in RACKS}


def test_a_node_that_hangs_is_named_and_what_it_left_running_is_ended(measure: Any, lab: Lab) -> None:
    lab.node("n5").fault("peers_hang")
    code, report = measure("nccl_group", "--timeout", "20")
    assert (code, fabric(report)) == (ExitCode.UNHEALTHY, [])
    assert verdicts(report) == {name: "fail" if name == "n5" else "pass" for name in RACKS}


def test_a_node_that_refuses_the_key_is_named_and_the_others_are_measured(measure: Any, lab: Lab) -> None:
    node = lab.node("n6")
    # Certificates of the launch's authority are refused; the operator's plain key is not.
    refuse = "echo 'CASignatureAlgorithms rsa-sha2-512' > /etc/ssh/sshd_config.d/no.conf"
    node.as_root(f"{refuse} && systemctl reload ssh")
    try:
        code, report = measure("nccl_pair")
    finally:
        node.as_root("rm /etc/ssh/sshd_config.d/no.conf && systemctl reload ssh")
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {name: "error" if name == "n6" else "pass" for name in RACKS}
    (told,) = [node for node in report["nodes"] if node["node"] == "n6"]
    assert "Permission denied (publickey)" in told["checks"][0]["findings"][0]["message"]


def test_when_the_controller_is_killed_the_nodes_close_it_themselves(operator: Operator, lab: Lab) -> None:
    before = [node.run("cat ~/.ssh/authorized_keys").stdout for node in lab.nodes]
    lab.node("n2").fault("peers_hang")
    words = [sys.executable, "-m", "provision.cli", "validate", str(operator.inventory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(operator.runs)}
    killed = subprocess.Popen(
        [*words, "--checks", "nccl_group"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        started = "sudo pgrep --full [a]ll_reduce_perf"
        until = time.monotonic() + 120
        while not lab.node("n6").run(started, check=False).stdout and time.monotonic() < until:
            time.sleep(0.5)
        assert lab.node("n6").run(started, check=False).stdout, "NCCL did not start"
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        lab.node("n2").heal()
    for node, keys in zip(lab.nodes, before, strict=True):
        assert "gpuprov-launch-" in node.run("cat ~/.ssh/authorized_keys").stdout
        # Start now what its timer would start in an hour.
        timer = "systemctl list-timers --all --no-legend 'gpuprov-launch-*'"
        (unit,) = [word for word in node.run(timer).stdout.split() if word.endswith(".service")]
        node.as_root(f"systemctl start {unit}")
        until = time.monotonic() + 60
        while "gpuprov-launch-" in node.run("cat ~/.ssh/authorized_keys").stdout:
            assert time.monotonic() < until, "the key is still there"
            time.sleep(0.5)
        node.as_root(f"systemctl stop {unit.replace('.service', '.timer')}")  # the timer would have elapsed
        nothing_left(node, keys)


@pytest.fixture(scope="module")
def slurm(lab: Lab) -> None:
    """Start Slurm on all nodes, for the last tests."""
    slurm_cluster.start(lab.nodes)


@pytest.mark.usefixtures("slurm")
def test_with_slurm_a_healthy_group_passes_as_its_job(measure: Any, lab: Lab, operator: Operator) -> None:
    code, report = measure("nccl_group")
    assert (code, fabric(report)) == (ExitCode.OK, [])
    assert set(verdicts(report).values()) == {"pass"}
    run = max(operator.runs.glob("*-validate"))
    assert "srun" in (run / "raw" / "n1" / "nccl_group.group.json").read_text()
    assert lab.node("n1").run("squeue --noheader").stdout == ""


@pytest.mark.usefixtures("slurm")
def test_with_slurm_the_slow_link_is_named_as_well(measure: Any, lab: Lab) -> None:
    lab.node("n3").fault("link_slow", peer="n4", factor=0.4)
    code, report = measure("nccl_group")
    assert code == ExitCode.UNHEALTHY
    assert fabric(report) == [("fail", "link n3-n4", CABLE)]


@pytest.mark.usefixtures("slurm")
def test_with_slurm_the_node_that_hangs_is_named_and_its_job_is_cancelled(measure: Any, lab: Lab) -> None:
    lab.node("n5").fault("peers_hang")
    code, report = measure("nccl_group", "--timeout", "20")
    assert (code, fabric(report)) == (ExitCode.UNHEALTHY, [])
    assert verdicts(report) == {name: "fail" if name == "n5" else "pass" for name in RACKS}
    assert lab.node("n1").run("squeue --noheader").stdout == ""
