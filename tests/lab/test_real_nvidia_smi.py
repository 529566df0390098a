"""NVIDIA's own nvidia-smi on an H100 with driver 550 and an A100 with 470, with one of them broken."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab import fleet, real_smi
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.printers import simulated

DRIVERS = {"gpu-01": "550.163.01", "gpu-02": "470.256.02"}
ROLES = ["nvidia_repository", "nvidia_driver", "nvlink", "node_health"]
CHECK = "gpu_inventory"
LOST = {"nvidia_smi.silent"}
TIMER = "service.gpuprov-node-health.timer.active"
# Node, fault, the metric that only nvidia-smi shows, and the facts that drift.
FAULTS: tuple[tuple[str, str, str, set[str]], ...] = (
    ("gpu-01", "row_remap_pending gpu=3", "remap_pending", set()),
    ("gpu-01", "ecc_uncorrectable gpu=3 count=4", "ecc_uncorrectable", set()),
    ("gpu-01", "nvlink_down gpu=3 link=5", "nvlink_links", set()),
    (
        "gpu-01",
        "gpu_off_bus gpu=3",
        "unanswered",
        {*LOST, "nvidia_smi.fabric.state", "nvidia_smi.fabric.status"},
    ),
    ("gpu-02", "throttle gpu=3", "throttle", set()),
    ("gpu-02", "gpu_silent gpu=3", "unanswered", LOST),
)
LOOKALIKES = (
    *("ecc_aggregate_old gpu=3", "remapped_clean gpu=3", "pcie_replays_old gpu=3", "monitoring_agent"),
    "nvlink_errors_old gpu=3 link=1",
)
# A program that works on all GPUs: clocks are throttled only under load.
LOADED = """
import json, os, time
mark = {"tool": "train", "pid": os.getpid(), "since": time.time() - 60, "slots": list(range(8))}
open(f"/var/lib/silicon/run/load.{os.getpid()}", "w").write(json.dumps(mark))
time.sleep(600)
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if why := real_smi.missing():
        pytest.skip(why)
    nodes = (
        NodeSpec("gpu-01", "h100-sxm", "ubuntu2404", real_nvidia_smi=True),
        NodeSpec("gpu-02", "a100-sxm-80", "ubuntu2404", real_nvidia_smi=True),
    )
    with running_lab("realsmi", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    declared = yaml.safe_load(lab.inventory.read_text())
    for name, driver in DRIVERS.items():
        own = {"nvidia_driver_version": driver, "gpuprov_roles": ROLES, "node_health_enabled": True}
        if driver.startswith("470"):  # 470 has no open module
            own["nvidia_driver_flavour"] = "proprietary"
        declared["gpu_nodes"]["hosts"][name].update(own)
    path = lab.inventory.with_name("drivers.yml")
    path.write_text(yaml.safe_dump(declared))
    one = Operator(path, tmp_path_factory.mktemp("runs"))
    done = one.call("up", "--yes", "--no-canary", timeout=1500)
    assert done.returncode == ExitCode.OK, said(done)
    for node in lab.nodes:  # its runs of nvidia-smi would change the noise of readings
        node.as_root("systemctl stop gpuprov-node-health.timer")
    return one


@contextlib.contextmanager
def broken(node: LabNode, *faults: str) -> Iterator[None]:
    """Set these faults on the node, but restore the kernel log, so that only nvidia-smi reveals them."""
    log = node.place.silicon / "kmsg"
    before = log.read_bytes()
    load = None
    try:
        for fault in faults:
            name, *parameters = fault.split()
            node.fault(name, **dict(one.split("=") for one in parameters))
            if name == "throttle":
                load = node.as_root(
                    f"setsid python3 -c {shlex.quote(LOADED)} >/dev/null 2>&1 & echo $!; sleep 1"
                )
        log.write_bytes(before)
        yield
    finally:
        node.heal()
        log.write_bytes(before)
        if load:
            node.as_root(f"kill {load.stdout.strip()}; rm -f /var/lib/silicon/run/load.*")


def validated(operator: Operator) -> dict[str, set[tuple[str, str]]]:
    """Return node → (metric, device) of `validate`'s findings, except passes and the metric processes."""
    done = operator.call("validate", "--json", "--checks", CHECK)
    return {
        node["node"]: {
            (finding["metric"], finding["device"])
            for check in node["checks"]
            for finding in check["findings"]
            if finding["verdict"] not in ("pass", "skip") and finding["metric"] != "processes"
        }
        for node in json.loads(done.stdout)["nodes"]
    }


def drifted(operator: Operator) -> set[tuple[str, str]]:
    """Return node and fact of each drift, except the timer, which these tests stop."""
    drifts = json.loads(operator.call("drift", "--json").stdout)["drifts"]
    return {(drift["node"], drift["fact"]) for drift in drifts} - {(name, TIMER) for name in DRIVERS}


def own_findings(node: LabNode) -> set[tuple[str, str]]:
    """Return the same from a first run of the node's health program."""
    node.as_root("rm -f /var/lib/gpuprov/node-health/state.json; systemctl start gpuprov-node-health.service")
    rows: list[dict[str, Any]] = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)["findings"]
    loud = [row for row in rows if row["verdict"] != "skip" and row["metric"] != "processes"]
    return {(row["metric"], row["device"]) for row in loud}


def test_healthy_nodes_and_look_alikes_pass(operator: Operator, lab: Lab) -> None:
    assert {one["nvidia_smi"] for one in fleet.status(lab.record)} == {"real"}
    with contextlib.ExitStack() as stack:
        for node in lab.nodes:
            text = node.run("nvidia-smi --version || nvidia-smi").stdout
            assert DRIVERS[node.name] in text
            stack.enter_context(broken(node, *LOOKALIKES))
        assert validated(operator) == {"gpu-01": set(), "gpu-02": set()}
        assert drifted(operator) == set()
        assert [own_findings(node) for node in lab.nodes] == [set(), set()]


@pytest.mark.parametrize(
    ("name", "fault", "metric", "facts"), FAULTS, ids=[one[1].split()[0] for one in FAULTS]
)
def test_a_fault_is_named_on_its_node_alone(
    name: str, fault: str, metric: str, facts: set[str], operator: Operator, lab: Lab
) -> None:
    (other,) = set(DRIVERS) - {name}
    with broken(lab.node(name), fault):
        assert validated(operator) == {name: {(metric, "gpu3")}, other: set()}
        assert drifted(operator) == {(name, fact) for fact in facts}
        assert own_findings(lab.node(name)) == {(metric, "gpu3")}
        assert own_findings(lab.node(other)) == set()


def elements(differences: list[str]) -> set[str]:
    """Return the names of differing elements, except heat and power, which are noisy in each run."""
    found = {re.sub(r"^\d+ x ", "", one).partition(": ")[0] for one in differences}
    return {one for one in found if not re.search(r"(_temp|power_draw)$", one)}


def printed(node: LabNode, words: tuple[str, ...]) -> str:
    (node.place.silicon / "counter").write_text(simulated.COUNTER)
    done: subprocess.CompletedProcess[str] = node.run(f"sudo nvidia-smi {shlex.join(words)}", check=False)
    return done.stdout


@pytest.mark.usefixtures("operator")  # runs `up` first
@pytest.mark.parametrize("fault", ["", "row_remap_pending gpu=3"])
def test_the_simulator_prints_the_same_of_these_nodes(fault: str, lab: Lab) -> None:
    """Allow only differences that tests/printers/differences.yml explains."""
    for node in lab.nodes:
        real, aside = (node.place.silicon / name for name in ("real", "aside"))
        with broken(node, *filter(None, [fault])):
            for words in simulated.COMMANDS:
                theirs = printed(node, words)
                real.rename(aside)
                try:
                    ours = printed(node, words)
                finally:
                    aside.rename(real)
                found = elements(simulated.differences(theirs, ours))
                allowed = elements(simulated.listed(DRIVERS[node.name], " ".join(words)))
                assert found <= allowed, (node.name, words)
