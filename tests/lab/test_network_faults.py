"""A node with RDMA cards and drives: `up` installs the tools, and a healthy node passes.
The shipped limits apply; exactly each fault of a card, a disk or a tool is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, flagged, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab

NAME = "gpu-01"
VARIABLES: dict[str, Any] = {
    "gpuprov_roles": ["nvidia_repository", "rdma", "nvidia_driver", "nvlink", "validation_tools"],
    "gpuprov_expected_nics": 8,
    "gpuprov_expected_nvmes": 4,
    "validation_tools_dcgm_level": 2,
    "validation_tools_scratch_dir": "/var/tmp",
}
# No role installs these; an administrator who needs the checks does.
PACKAGES = "fio nvme-cli datacenter-gpu-manager-4-cuda13"
# A site's own limits: gpuprov ships none for disks, and a metric without a limit cannot pass.
DISK = {
    "sku": "h100-sxm",
    "thresholds": {
        f"disk_speed.{way}": {
            **{"limit": limit, "unit": "MB/s", "direction": "at_least"},
            **{"kind": "measured", "date": "2026-09", "source": "this site's drives"},
        }
        for way, limit in (("write", 2000), ("read", 5000))
    },
}
PORTS, LOOPBACK, RAIL, DISKS, DCGM = (
    "network_ports",
    "rdma_loopback",
    "nccl_network",
    "disk_speed",
    "dcgm_diag",
)
Validate = Callable[..., tuple[int, set[tuple[str, str, str]]]]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec(NAME, "h100-sxm", network="ib"),)
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("nics", nodes, inventory, images={NAME: images.h100()}) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    folder = tmp_path_factory.mktemp("inventory")
    declared = yaml.safe_load(lab.inventory.read_text())
    declared["gpu_nodes"]["hosts"][NAME].update(VARIABLES)
    (folder / "nodes.yml").write_text(yaml.safe_dump(declared))
    (folder / "disk.yml").write_text(yaml.safe_dump(DISK))
    operator = Operator(folder / "nodes.yml", tmp_path_factory.mktemp("runs"))
    lab.node(NAME).as_root(f"apt-get install --yes --no-install-recommends {PACKAGES}", timeout=300)
    return operator


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node(NAME)


@pytest.fixture
def validate(operator: Operator) -> Validate:
    """Return exit code, and (check, device, verdict) of all findings except passes and skips."""

    def run(*checks: str) -> tuple[int, set[tuple[str, str, str]]]:
        limits = operator.inventory.with_name("disk.yml")
        done = operator.call("validate", "--json", "--checks", ",".join(checks), "--thresholds", str(limits))
        (seen,) = json.loads(done.stdout)["nodes"]
        assert {check["check"] for check in seen["checks"]} == set(checks)
        return done.returncode, flagged(done, "skip")

    return run


@pytest.mark.usefixtures("operator")
def test_cards_stand_in_sysfs_beside_what_the_kernel_has_and_after_a_reboot_as_well(node: LabNode) -> None:
    node.reboot()
    shown = node.run("ls /sys/class/infiniband /sys/class/net /sys/class/tty").stdout.split()
    assert {"mlx5_0", "mlx5_8", "ens28np0", "lo", "console"} <= set(shown)
    assert node.run("cat /sys/class/infiniband/mlx5_3/device/vendor").stdout == "0x15b3\n"
    assert node.run("systemctl is-system-running").stdout == "running\n"


@pytest.mark.parametrize(
    ("program", "package"),
    [
        ("ib_write_bw", "perftest"),
        ("ibv_devinfo", "ibverbs-utils"),
        ("fio", "fio"),
        ("nvme", "nvme-cli"),
        ("dcgmi", "datacenter-gpu-manager-4-core"),
    ],
)
@pytest.mark.usefixtures("operator")
def test_each_tool_is_a_packages(program: str, package: str, node: LabNode) -> None:
    path = node.as_root(f"command -v {program}").stdout.strip()
    assert node.run(f"dpkg-query --search {path}").stdout == f"{package}: {path}\n"


def test_a_healthy_node_passes(validate: Validate) -> None:
    assert validate(PORTS, LOOPBACK, RAIL, DISKS, DCGM) == (ExitCode.OK, set())


FAULTS: list[tuple[str, dict[str, Any], list[str], set[tuple[str, str, str]]]] = [
    ("port_down", {"nic": 1}, [PORTS, LOOPBACK], {(PORTS, "mlx5_1", "fail")}),
    ("nic_missing", {"nic": 2}, [PORTS], {(PORTS, "node", "fail")}),
    ("nic_slow", {"nic": 3, "factor": 0.5}, [PORTS, LOOPBACK], {(LOOPBACK, "mlx5_3", "fail")}),
    ("gpudirect_slow", {"nic": 6}, [LOOPBACK], {(LOOPBACK, "mlx5_6", "fail")}),
    ("disk_slow", {}, [DISKS], {(DISKS, "node", "fail")}),
    ("dcgm_fails", {"gpu": 5}, [DCGM], {(DCGM, "gpu5", "fail")}),
    ("tool_truncated", {"tool": "fio"}, [DISKS], {(DISKS, "node", "error")}),
    ("tool_garbage", {"tool": "dcgmi"}, [DCGM], {(DCGM, "node", "error")}),
    ("tool_garbage", {"tool": "ib_write_bw"}, [LOOPBACK], {(LOOPBACK, "node", "error")}),
]


@pytest.mark.parametrize(
    ("fault", "parameters", "checks", "expected"),
    FAULTS,
    ids=[f"{fault[0]}-{fault[1].get('tool', fault[2][-1])}" for fault in FAULTS],
)
def test_a_fault_is_named_and_nothing_else(
    fault: str,
    parameters: dict[str, Any],
    checks: list[str],
    expected: set[tuple[str, str, str]],
    node: LabNode,
    validate: Validate,
) -> None:
    node.fault(fault, **parameters)
    try:
        code, found = validate(*checks)
    finally:
        node.heal()
    assert found == expected
    failed = any(verdict == "fail" for _, _, verdict in expected)
    assert code == (ExitCode.UNHEALTHY if failed else ExitCode.INCOMPLETE)


def test_ninety_flaps_of_this_morning_are_counted_in_their_window_and_not_since_boot(
    operator: Operator, node: LabNode
) -> None:
    """20 losses in 51 days are no finding; 90 more within a day fail the port."""
    port, before, now = "mlx5_4", {"days": 51, "count": 20}, {"days": 52, "count": 110}

    def is_at(moment: dict[str, int]) -> None:
        node.heal()
        node.fault("long_uptime", days=moment["days"])
        node.fault("port_flaps", nic=4, count=moment["count"])

    def by_validate() -> set[tuple[str, str, str]]:
        done = operator.call("validate", "--json", "--checks", PORTS)
        (seen,) = json.loads(done.stdout)["nodes"]
        return told(finding for check in seen["checks"] for finding in check["findings"])

    def by_itself() -> set[tuple[str, str, str]]:
        node.as_root("systemctl start gpuprov-node-health.service")
        rows = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)["findings"]
        return told(row for row in rows if row["check"] == PORTS and not row["clean"])

    def told(findings: Iterable[dict[str, Any]]) -> set[tuple[str, str, str]]:
        return {
            (one["device"], one["verdict"], one["message"])
            for one in findings
            if one["verdict"] not in ("pass", "skip")
        }

    flaps = {(port, "fail", f"{port} has lost its link 90 times in 1 day: it flaps")}
    health: dict[str, Any] = {
        "node_health_enabled": True,
        "gpuprov_roles": [*VARIABLES["gpuprov_roles"], "node_health"],
    }
    try:
        node.reboot()  # runs from before a reboot prove nothing
        is_at(before)
        assert by_validate() == set()
        is_at(now)
        assert by_validate() == flaps  # against the stored run
        standing = json.loads(operator.call("drift", "--json").stdout)["validation"]["not_validated"]
        assert (PORTS, "fail") in {(row["check"], row["verdict"]) for row in standing}
        is_at(before)
        done = operator.call("up", "--yes", **health)
        assert done.returncode == ExitCode.OK, said(done)
        node.as_root("systemctl stop gpuprov-node-health.timer gpuprov-node-health-kernel.service")
        node.reboot()
        node.as_root("systemctl stop gpuprov-node-health.timer gpuprov-node-health-kernel.service")
        node.as_root("rm -f /var/lib/gpuprov/node-health/ports.json")
        is_at(before)
        assert by_itself() == set()
        is_at(now)
        assert by_itself() == flaps
        assert by_validate() == flaps  # against the node's own stored results
        assert (by_itself(), by_itself()) == (flaps, flaps)  # the third run counts (debounce.yml, link-state)
        done = operator.call("status")
        assert (done.returncode, "90 times in 1 day" in said(done)) == (ExitCode.UNHEALTHY, True), said(done)
    finally:
        node.heal()
        node.run("sudo systemctl stop gpuprov-node-health.timer", check=False)
        node.reboot()


def test_ports_that_are_all_switched_off_are_seen_by_validate_drift_and_the_node_itself(
    operator: Operator, node: LabNode, validate: Validate
) -> None:
    ports = [{"device": f"mlx5_{number}", "link_layer": "InfiniBand"} for number in range(8)]
    health: dict[str, Any] = {
        "node_health_enabled": True,
        "gpuprov_roles": [*VARIABLES["gpuprov_roles"], "node_health"],
    }

    def of_itself(**declared: Any) -> set[tuple[str, str, str]]:
        done = operator.call("up", "--yes", **health, **declared)
        assert done.returncode == ExitCode.OK, said(done)
        node.fault("ports_off")
        node.as_root("systemctl start gpuprov-node-health.service")
        rows = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)["findings"]
        return {
            (row["check"], row["device"], row["verdict"])
            for row in rows
            if row["check"] == PORTS and row["verdict"] != "skip" and not row["clean"]
        }

    try:
        undeclared = {(PORTS, "node", "warn")}
        assert of_itself() == undeclared
        assert validate(PORTS)[1] == undeclared
        node.heal()
        each = {(PORTS, port["device"], "fail") for port in ports}
        assert of_itself(rdma_expected_ports=ports) == each
        done = operator.call("validate", "--json", "--checks", PORTS, rdma_expected_ports=ports)
        assert (done.returncode, flagged(done, "skip")) == (ExitCode.UNHEALTHY, each)
        drifted = operator.drifted(rdma_expected_ports=ports)
        assert {f"rdma.{port['device']}/1.state" for port in ports} <= set(drifted)
    finally:
        node.heal()
        node.as_root("systemctl stop gpuprov-node-health.timer")


def test_a_worn_drive_is_named(node: LabNode, validate: Validate) -> None:
    """Other findings of host_health depend on the machine below the lab: its limits, its IOMMU."""
    drives = {f"nvme{number}" for number in range(4)}
    node.fault("nvme_worn", drive=1)
    try:
        _, found = validate("host_health")
    finally:
        node.heal()
    assert {row for row in found if row[1] in drives} == {("host_health", "nvme1", "warn")}
