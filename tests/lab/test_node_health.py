"""The role node_health on real nodes: the node judges itself as `validate` does.
It reports a broken GPU within its interval, and does not pile up hung programs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import network
from gpuprov_lab.spec import NodeSpec
from provision.checks.on_node.settings import CHECKS
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab

FREEZER = Path("/sys/fs/cgroup/freezer")
RUN = "systemctl start gpuprov-node-health.service"
ENABLED = {"node_health_enabled": True}
HANGS = float(os.environ.get("GPUPROV_TEST_HANGS", "200"))  # seconds for which nvidia-smi hangs
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield one H100 node after `up`, now with node_health."""
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    nodes = (NodeSpec("gpu-01", "h100-sxm"),)
    with running_lab("health", nodes, inventory, images={"gpu-01": images.h100()}) as running:
        done = Operator(inventory, tmp_path_factory.mktemp("first")).call("up", "--yes", **ENABLED)
        assert done.returncode == ExitCode.OK, said(done)
        yield running


@pytest.fixture
def node(lab: Lab) -> Iterator[LabNode]:
    """Yield the node without faults, and clear the effects of the test afterwards."""
    (one,) = lab.nodes
    yield one
    one.heal()
    one.as_root("systemctl stop gpuprov-node-health.timer; rm -f /var/lib/gpuprov/node-health/state.json")
    one.as_root(RUN)
    one.as_root("systemctl start gpuprov-node-health.timer")


def health(node: LabNode) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)
    return told


def counted(told: dict[str, Any]) -> list[str]:
    """Format the counting findings for a failure message."""
    return [
        f"{row['verdict']} {row['check']}.{row['metric']} {row['device']} {row['state']}: {row['message']}"
        for row in told["findings"]
        if row["verdict"] != "skip"
    ]


def test_a_second_up_changes_nothing(operator: Operator) -> None:
    done = operator.call("up", "--yes", "--full", **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    assert not [event for event in operator.records("events") if event["kind"] == "changed"]
    drift = operator.call("drift", **ENABLED)
    assert drift.returncode == ExitCode.OK, said(drift)


def test_a_stopped_timer_is_drift_and_up_starts_it(operator: Operator, node: LabNode) -> None:
    node.as_root("systemctl stop gpuprov-node-health.timer; rm /run/gpuprov/health.json")
    found = operator.drifted(**ENABLED)
    assert set(found) == {"service.gpuprov-node-health.timer.active", "node_health.result"}
    done = operator.call("up", "--yes", **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    assert health(node)["verdict"] == "pass", counted(health(node))


def test_the_node_judges_itself_as_validate_does(operator: Operator, node: LabNode) -> None:
    for fault, more in (("", {}), ("row_remap_failure", {"gpu": 2}), ("nvlink_down", {"gpu": 1, "link": 4})):
        if fault:
            node.fault(fault, **more)
        said_by_validate = json.loads(
            operator.call("validate", "--json", "--checks", ",".join(CHECKS)).stdout
        )["nodes"][0]
        node.as_root(RUN)
        told = health(node)
        findings = [one for check in said_by_validate["checks"] for one in check["findings"]]
        theirs = {
            (f["metric"], f["device"], f["verdict"]) for f in findings if f["verdict"] not in ("pass", "skip")
        }
        ours = {
            (f["metric"], f["device"], f["verdict"]) for f in told["findings"] if f["state"] != "clearing"
        }
        assert told["measured"] == said_by_validate["verdict"], counted(told)
        assert {row for row in ours if row[2] != "skip"} == theirs
        node.heal()


def test_a_lost_gpu_is_told_within_seventy_seconds_and_forgotten_after_a_reboot(node: LabNode) -> None:
    node.reboot()  # a failed row remap stays in the kernel's log until then
    node.as_root(RUN)
    assert health(node)["verdict"] == "pass", counted(health(node))
    node.fault("gpu_off_bus", gpu=3)
    began = time.monotonic()
    while health(node)["verdict"] != "fail":
        assert time.monotonic() - began < 70, counted(health(node))
        time.sleep(1)
    told = health(node)
    assert any("gpu3" in line for line in counted(told)), counted(told)
    metrics = node.as_root("cat /var/lib/prometheus/node-exporter/gpuprov.prom").stdout
    assert 'gpuprov_health_verdict{verdict="fail"} 1' in metrics
    nagios = node.run("sudo gpuprov-node-health nagios --last", check=False)
    assert (nagios.returncode, nagios.stdout[:17]) == (2, "GPUPROV CRITICAL ")
    drain = node.run("sudo gpuprov-node-health nhc --last", check=False)
    assert drain.returncode == 1
    assert drain.stdout.startswith("gpuprov: gpu3: "), drain.stdout
    node.heal()
    node.reboot()
    node.as_root(RUN)
    assert health(node)["verdict"] == "pass", counted(health(node))


def test_a_lost_gpu_is_told_within_seconds_by_the_kernel_log(node: LabNode) -> None:
    node.as_root("systemctl stop gpuprov-node-health.timer")
    assert health(node)["verdict"] == "pass", counted(health(node))
    assert node.run("systemctl is-active gpuprov-node-health-kernel").stdout == "active\n"
    began = time.monotonic()
    node.fault("gpu_off_bus", gpu=3)
    while health(node)["verdict"] != "fail":
        assert time.monotonic() - began < 10, counted(health(node))
        time.sleep(0.2)
    assert any("gpu3" in line for line in counted(health(node))), counted(health(node))
    node.heal()
    node.reboot()
    node.as_root(RUN)
    assert health(node)["verdict"] == "pass", counted(health(node))


def test_a_flood_of_errors_starts_a_few_runs_that_no_rule_counts(node: LabNode) -> None:
    node.as_root("systemctl stop gpuprov-node-health.timer")
    node.as_root("journalctl --rotate && journalctl --vacuum-time=1s")
    began = time.monotonic()
    while time.monotonic() - began < 32:
        node.fault("xid", gpu=1, code=63)
        node.heal()
    log = node.as_root("journalctl -u gpuprov-node-health.service -o cat").stdout
    starts = sum(line.startswith("Starting ") for line in log.splitlines())
    assert 2 <= starts <= 5, "one at once, then every ten seconds"
    assert not node.run("ls /run/gpuprov/early", check=False).stdout, "each run takes it away"
    node.reboot()


def test_without_the_kernel_log_the_timer_alone_runs_it(operator: Operator, node: LabNode) -> None:
    off = {**ENABLED, "node_health_kernel_log": False}
    assert set(operator.drifted(**off)) == {
        "service.gpuprov-node-health-kernel.service.enabled",
        "service.gpuprov-node-health-kernel.service.active",
    }
    done = operator.call("up", "--yes", **off)
    assert done.returncode == ExitCode.OK, said(done)
    assert node.run("systemctl is-active gpuprov-node-health-kernel", check=False).stdout == "inactive\n"
    done = operator.call("up", "--yes", **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    assert node.run("systemctl is-active gpuprov-node-health-kernel").stdout == "active\n"


@pytest.fixture
def frozen() -> Iterator[Any]:
    """Yield a function that freezes a program like a hung driver: state D, immune to KILL, until thawed."""
    group = FREEZER / "gpuprov-health-test"
    group.mkdir(exist_ok=True)

    def freeze(pid: int) -> None:
        (group / "tasks").write_text(f"{pid}\n")
        (group / "freezer.state").write_text("FROZEN\n")

    def thaw() -> None:
        (group / "freezer.state").write_text("THAWED\n")
        for pid in (group / "tasks").read_text().split():
            with contextlib.suppress(OSError):
                (FREEZER / "tasks").write_text(pid)

    freeze.thaw = thaw  # type: ignore[attr-defined]
    yield freeze
    thaw()
    end = time.monotonic() + 20
    while time.monotonic() < end and group.exists():
        thaw()
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.2)


def smi(lab: Lab) -> list[int]:
    """Return the host's process ids of nvidia-smi on the lab's node."""
    found = []
    for pid in network.namespace_pids(lab.nodes[0].place.namespace):
        with contextlib.suppress(OSError):
            if b"nvidia-smi" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def hanging(lab: Lab, seconds: float) -> int:
    """Wait for the hanging process of nvidia-smi, and return its id."""
    end = time.monotonic() + seconds
    while not smi(lab):
        assert time.monotonic() < end, "nvidia-smi was never started"
        time.sleep(0.1)
    (hung,) = smi(lab)
    return hung


def test_a_program_that_hangs_is_one_finding_and_one_process(lab: Lab, node: LabNode, frozen: Any) -> None:
    node.as_root("systemctl stop gpuprov-node-health.timer")
    node.as_root(RUN)
    assert health(node)["verdict"] == "pass", counted(health(node))
    node.fault("tool_hang", tool="nvidia-smi")
    node.as_root(f"{RUN} --no-block")
    frozen(hung := hanging(lab, 30))
    for _ in range(4):
        node.as_root(RUN, timeout=170)
        assert smi(lab) == [hung]
    told = health(node)
    assert told["verdict"] == "error", counted(told)
    assert (
        len([row for row in told["findings"] if row["state"] == "active" and row["verdict"] != "skip"]) == 1
    )
    assert told["seconds"] < 10, "nothing waits for it any more"
    node.heal()
    frozen.thaw()
    end = time.monotonic() + 30
    while smi(lab):
        assert time.monotonic() < end
        time.sleep(0.2)
    node.as_root(RUN)
    assert health(node)["verdict"] == "pass", counted(health(node))


@pytest.mark.timeout(HANGS + 900)
def test_while_a_program_hangs_nothing_piles_up_and_afterwards_the_node_is_well_without_help(
    lab: Lab, node: LabNode, frozen: Any
) -> None:
    """Leave the runs to the timer, every minute; the test does not touch the node."""
    node.fault("tool_hang", tool="nvidia-smi")
    frozen(hung := hanging(lab, 130))
    begun = time.monotonic()
    while (past := time.monotonic() - begun) < HANGS:
        assert smi(lab) == [hung]
        told = health(node)
        findings = [row for row in told["findings"] if row["state"] == "active" and row["verdict"] != "skip"]
        if past > 130:  # the run during which it hung has ended, and one more
            assert (told["verdict"], len(findings)) == ("error", 1), counted(told)
            assert told["seconds"] < 10, "nothing waits for it any more"
        time.sleep(5)
    node.heal()
    frozen.thaw()
    end = time.monotonic() + 200
    while (told := health(node))["verdict"] != "pass":
        assert time.monotonic() < end, counted(told)
        time.sleep(2)


def test_it_goes_without_a_trace(lab: Lab, operator: Operator) -> None:
    done = operator.call("up", "--yes", "--remove", "node_health", **ENABLED)
    assert done.returncode == ExitCode.OK, said(done)
    (one,) = lab.nodes
    places = (
        "/usr/local/sbin/gpuprov-node-health",
        "/usr/local/sbin/gpuprov-node-health-kernel",
        "/etc/gpuprov/node-health.json",
        "/var/lib/gpuprov/node-health",
    )
    left = one.as_root(f"ls -d {' '.join(places)} /run/gpuprov/health.json 2>/dev/null || true")
    assert left.stdout == ""
    assert "gpuprov-node-health" not in one.run("systemctl list-unit-files --no-pager").stdout
