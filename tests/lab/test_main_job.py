"""The main workflow on real nodes, end to end: bare, provisioned, validated, broken, repaired.

The tests run in the order written: each starts from the state that the previous one left, as in an operator's
day. The bare nodes and their `up` are in tests/lab/images.py; the rest runs on nodes started from its result.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import FLEET, Images
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield three nodes in the state that `up` leaves."""
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("main", FLEET, inventory, images=images.declared()) as running:
        yield running


def named(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], str]:
    """Return (node, device) → verdict of each finding of `validate --json`, except passes and skips."""
    report = json.loads(done.stdout)
    return {
        (node["node"], finding["device"]): finding["verdict"]
        for node in report["nodes"]
        for check in node["checks"]
        for finding in check["findings"]
        if finding["verdict"] not in {"pass", "skip"}
    }


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in json.loads(done.stdout)["nodes"]}


def drifted(done: subprocess.CompletedProcess[str]) -> set[tuple[str, str, str]]:
    """Return (node, role, fact) of each drift of `drift --json`."""
    return {(d["node"], d["role"], d["fact"]) for d in json.loads(done.stdout)["drifts"]}


def test_a_bare_fleet_drifts_and_its_plan_says_why(images: Images) -> None:
    assert images.up()["drift before"].returncode == ExitCode.DRIFT
    planned = images.up()["plan"]
    assert planned.returncode == ExitCode.OK, said(planned)
    assert "nvidia_driver" in planned.stdout
    assert "validation_tools" in planned.stdout


def test_up_brings_bare_nodes_to_what_was_declared(images: Images) -> None:
    done = images.up()["up"]
    assert done.returncode == ExitCode.OK, said(done)
    again = images.up()["drift after"]
    assert again.returncode == ExitCode.OK, said(again)


def test_up_on_a_converged_fleet_runs_no_playbook(operator: Operator) -> None:
    done = operator.call("up")
    assert done.returncode == ExitCode.OK, said(done)
    assert "already as declared" in done.stdout + done.stderr
    assert operator.records("events") == []


def test_a_healthy_fleet_passes_every_check(operator: Operator) -> None:
    done = operator.call("validate", "--json")
    assert done.returncode == ExitCode.OK, said(done)
    assert named(done) == {}
    assert set(verdicts(done).values()) == {"pass"}


def test_both_faults_of_one_node_are_named_and_nothing_else(operator: Operator, lab: Any) -> None:
    node = lab.node("gpu-03")
    node.fault("burn_errors", gpu=5)
    node.fault("slow_pair", a=2, b=6, factor=0.6)
    try:
        done = operator.call("validate", "--json")
    finally:
        node.heal()
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    devices = {where: verdict for where, verdict in named(done).items() if where[1] != "node"}
    assert devices == {("gpu-03", "gpu5"): "fail", ("gpu-03", "gpu2-gpu6"): "fail"}, said(done)
    assert {name for name, verdict in verdicts(done).items() if verdict != "pass"} == {"gpu-03"}


BREAKAGES = {
    # an administrator's command on a node -> the (node, role, fact) that must be reported
    ("gpu-01", "apt-mark unhold nvidia-driver-cuda"): ("nvidia_driver", "package.nvidia-driver-cuda.held"),
    ("gpu-01", "systemctl stop nvidia-persistenced"): ("nvidia_driver", "service.nvidia-persistenced.active"),
    ("gpu-01", "sed -i '1i # edited' /etc/modprobe.d/*nouveau*.conf"): ("nvidia_driver", "modprobe.d"),
    ("gpu-03", "sed -i 's/memlock .*/memlock 64/' /etc/security/limits.d/*gpuprov*"): ("rdma", "limits.d"),
    ("gpu-03", "rm /usr/share/keyrings/*cuda*"): ("nvidia_repository", "pgp_key"),
}


def test_five_things_broken_by_hand_are_named_and_repaired(operator: Operator, lab: Any) -> None:
    for (name, command), _ in BREAKAGES.items():
        lab.node(name).run(f"sudo sh -c {json.dumps(command)}")
    found = operator.call("drift", "--json")
    assert found.returncode == ExitCode.DRIFT, said(found)
    seen = drifted(found)
    for (name, command), (role, fact) in BREAKAGES.items():
        assert any(n == name and r == role and fact in f for n, r, f in seen), (command, seen)
    assert {node for node, _, _ in seen} == {"gpu-01", "gpu-03"}

    repaired = operator.call("up")
    assert repaired.returncode == ExitCode.OK, said(repaired)
    events = operator.records("events")
    assert {event["node"] for event in events if event["node"]} == {"gpu-01", "gpu-03"}
    ran = {(event["node"], event["role"]) for event in events if event["role"]}
    assert ("gpu-01", "rdma") not in ran, "up repairs what drifted, and nothing else"
    assert operator.call("drift").returncode == ExitCode.OK


@pytest.mark.parametrize("verb", ["up", "validate", "drift"])
def test_a_node_that_is_off_is_named_and_the_others_are_finished(
    operator: Operator, lab: Any, verb: str
) -> None:
    lab.node("gpu-02").power_off()
    try:
        done = operator.call(verb, *(["--checks", "gpu_inventory"] if verb == "validate" else []))
    finally:
        lab.node("gpu-02").power_on()
    assert done.returncode == ExitCode.INCOMPLETE, said(done)
    assert "gpu-02" in done.stdout + done.stderr
    if verb == "validate":
        report = json.loads((operator.newest(verb) / "report.json").read_text())
        assert {n["node"]: n["verdict"] for n in report["nodes"]} == {
            "gpu-01": "pass",
            "gpu-02": "error",
            "gpu-03": "pass",
        }


@pytest.mark.parametrize(
    ("fault", "parameters", "check", "verdict"),
    [
        ("tool_garbage", {"tool": "nvbandwidth"}, "p2p_bandwidth", "error"),
        ("tool_hang", {"tool": "nvbandwidth"}, "p2p_bandwidth", "error"),
        ("burn_errors", {"gpu": 3}, "gpu_burn", "fail"),
    ],
)
def test_garbage_and_hangs_are_error_and_a_faulty_gpu_is_fail(
    operator: Operator, lab: Any, fault: str, parameters: dict[str, Any], check: str, verdict: str
) -> None:
    node = lab.node("gpu-01")
    node.fault(fault, **parameters)
    try:
        done = operator.call("validate", "--nodes", "gpu-01", "--checks", check, "--timeout", "10", "--json")
    finally:
        node.heal()
    assert done.returncode == (ExitCode.UNHEALTHY if verdict == "fail" else ExitCode.INCOMPLETE), said(done)
    assert verdicts(done) == {"gpu-01": verdict}
