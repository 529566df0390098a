"""Basics of three identical machines: memory, processors, services, file systems, NCCL's variables.

`validate`, `drift` and the node itself report exactly the faults: once with nothing declared, against the
peers, and once as declared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab

ONE, TWO, THREE = NAMES = ("basic-01", "basic-02", "basic-03")
CHECKS = ("host_health", "versions")
HEALTH: dict[str, Any] = {
    "gpuprov_roles": ["node_health"],
    "node_health_enabled": True,
    "node_health_kernel_log": False,
}
UNIT = "[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

# For each node: the damage by a user or a broken part, and the command that undoes it.
BREAK = {
    ONE: "echo '/dev/sdz1 /data ext4 defaults 0 2' >> /etc/fstab; mkdir -p /data; "
    "mount -t tmpfs -o ro data /data; "
    "mount -t tmpfs -o size=64k full /var/tmp; head -c 200000 /dev/zero > /var/tmp/fill || true",
    TWO: "echo NCCL_P2P_DISABLE=1 >> /etc/environment; "
    "mkdir -p /etc/systemd/system/slurmd.service.d; "
    "printf '[Service]\\nEnvironment=NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO\\n' "
    "> /etc/systemd/system/slurmd.service.d/nccl.conf",
    THREE: "systemctl stop sitewatch.service",
}
REPAIR = {
    ONE: "umount /data /var/tmp; sed -i '/sdz1/d' /etc/fstab",
    TWO: "sed -i /^NCCL/d /etc/environment; rm -r /etc/systemd/system/slurmd.service.d",
    THREE: "systemctl start sitewatch.service",
}
# (node, metric, verdict) found in any case, declared or not.
PLAIN = {
    (ONE, "read_only", "fail"),
    (ONE, "free_percent", "fail"),
    (TWO, "nccl_p2p_disable", "warn"),
    (TWO, "nccl_ib_disable", "warn"),
}
PEERS = {(TWO, "memory.installed_gib", "warn"), (THREE, "cpu.online", "warn")}
DECLARED = {
    (TWO, "installed_gib", "fail"),
    (THREE, "online", "fail"),
    (THREE, "service.sitewatch", "fail"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield three bare nodes with a service of the site; RDMA cards also bring simulated memory."""
    nodes = tuple(NodeSpec(name, "l40s", network="ib") for name in NAMES)
    with running_lab("basics", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        for node in running.nodes:
            node.as_root(
                f"printf '{UNIT}' > /etc/systemd/system/sitewatch.service; "
                "systemctl enable --now sitewatch.service"
            )
        yield running


@pytest.fixture(scope="module", params=[False, True], ids=["undeclared", "declared"])
def fleet(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return an operator of the nodes after `up`, with their basic settings declared or not."""
    folder = tmp_path_factory.mktemp("declared" if request.param else "plain")
    declared = yaml.safe_load(lab.inventory.read_text())
    cpus = int(lab.nodes[0].run("getconf _NPROCESSORS_ONLN").stdout)
    basics = {
        "gpuprov_expected_memory_gib": 1024,
        "gpuprov_expected_cpus": cpus,
        "gpuprov_expected_services": ["sitewatch"],
    }
    for name in NAMES:
        declared["gpu_nodes"]["hosts"][name].update({**HEALTH, **(basics if request.param else {})})
    (folder / "nodes.yml").write_text(yaml.safe_dump(declared))
    operator = Operator(folder / "nodes.yml", tmp_path_factory.mktemp("runs"))
    done = operator.call("up", "--yes", "--no-canary", timeout=1200)
    assert done.returncode == ExitCode.OK, said(done)
    for node in lab.nodes:
        node.as_root("systemctl stop gpuprov-node-health.timer")
    return operator


def by_validate(operator: Operator) -> set[tuple[str, str, str]]:
    done = operator.call("validate", "--json", "--checks", ",".join(CHECKS))
    assert done.stdout.strip(), done.stderr
    return {
        (node["node"], finding["metric"], finding["verdict"])
        for node in json.loads(done.stdout)["nodes"]
        for check in node["checks"]
        for finding in check["findings"]
        if finding["verdict"] not in ("pass", "skip")
    }


def by_itself(node: LabNode) -> set[tuple[str, str, str]]:
    node.as_root("rm -f /var/lib/gpuprov/node-health/state.json; systemctl start gpuprov-node-health.service")
    rows = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)["findings"]
    return {
        (node.name, row["metric"], row["verdict"])
        for row in rows
        if row["check"] in CHECKS and row["verdict"] not in ("pass", "skip")
    }


def by_drift(operator: Operator) -> set[tuple[str, str]]:
    """Return (node, fact) that deviates from the declaration or the peers, except the stopped timer."""
    found = json.loads(operator.call("drift", "--json").stdout)
    rows = [*found["drifts"], *found["majority"]["outliers"]]
    return {(row["node"], row["fact"]) for row in rows if "node-health" not in row["fact"]}


@pytest.fixture
def broken(lab: Lab, fleet: Operator) -> Iterator[dict[str, set[Any]]]:
    """Yield each command's findings on the broken nodes that were absent before."""

    def look() -> dict[str, set[Any]]:
        return {
            "validate": by_validate(fleet),
            "drift": by_drift(fleet),
            "itself": {row for node in lab.nodes for row in by_itself(node)},
        }

    before = look()
    for node in lab.nodes:
        node.as_root(BREAK[node.name])
    lab.node(TWO).fault("memory_module_missing", module=5)
    lab.node(THREE).fault("cpus_offline", count=1)
    try:
        yield {command: found - before[command] for command, found in look().items()}
    finally:
        for node in lab.nodes:
            node.heal()
            node.run(f"sudo sh -c {json.dumps(REPAIR[node.name])}", check=False)
    assert by_drift(fleet) == before["drift"]


def test_what_is_wrong_is_named_by_every_command_and_nothing_else(
    broken: dict[str, set[Any]], fleet: Operator
) -> None:
    declared = "sitewatch" in Path(fleet.inventory).read_text()
    assert broken["itself"] == PLAIN | (DECLARED if declared else set())
    assert broken["validate"] == PLAIN | PEERS | (DECLARED if declared else set())
    facts = {(TWO, "memory.installed_gib"), (THREE, "cpu.online")}
    assert broken["drift"] == facts | ({(THREE, "service.sitewatch.active")} if declared else set())
