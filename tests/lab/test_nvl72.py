"""Trays of two NVL72 racks with NVLink domains of equal clique number: healthy ones pass.
`validate`, `drift`, `plan`, `up` and the node report a tray in no domain or not in its rack's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, flagged, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

RACKS = {"tray-01": "r1", "tray-02": "r1", "tray-03": "r1", "tray-11": "r2", "tray-12": "r2"}
ROLES = {"gpuprov_roles": ["nvidia_driver", "nvlink", "node_health"]}
NO_DOMAIN = {"nvidia_smi.without_cluster", "nvidia_smi.without_clique"}
CHECK = "gpu_inventory"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def declare(lab: Lab) -> Path:
    """Write the inventory of a lab's racks."""
    declared = yaml.safe_load(lab.inventory.read_text())
    for node in lab.nodes:
        rack = RACKS[node.name]
        trays = [other.address for other in lab.nodes if RACKS[other.name] == rack]
        own = {"gpuprov_rack": rack, "nvlink_imex_nodes": trays, "node_health_enabled": True, **ROLES}
        declared["gpu_nodes"]["hosts"][node.name].update(own)
    path = lab.inventory.with_name("racks.yml")
    path.write_text(yaml.safe_dump(declared))
    return path


def _up(lab: Lab, folder: Path) -> dict[str, Any]:
    done = Operator(declare(lab), folder / "tray-runs").call(
        "up", "--yes", timeout=1500, gpuprov_roles=["nvidia_repository", *ROLES["gpuprov_roles"]]
    )
    assert done.returncode == ExitCode.OK, said(done)
    return {}


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    tray = images.made("tray", (NodeSpec("tray-01", "gb200"),), {}, _up)["images"]["tray-01"]
    nodes = tuple(NodeSpec(name, "gb200") for name in RACKS)
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("nvl", nodes, inventory, images=dict.fromkeys(RACKS, tray)) as running:
        for node in running.nodes:
            if RACKS[node.name] == "r2":
                node.fault("nvl72_rack")
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    operator = Operator(declare(lab), tmp_path_factory.mktemp("runs"))
    done = operator.call("up", "--yes", timeout=1500)
    assert done.returncode == ExitCode.OK, said(done)
    return operator


def named(operator: Operator) -> dict[str, set[tuple[str, str]]]:
    """Return tray -> (metric, verdict) of the findings of `validate` that did not pass."""
    done = operator.call("validate", "--json", "--checks", CHECK)
    trays = json.loads(done.stdout)["nodes"]
    found = {
        tray["node"]: {
            (finding["metric"], finding["verdict"])
            for check in tray["checks"]
            for finding in check["findings"]
            if finding["verdict"] not in ("pass", "skip")
        }
        for tray in trays
    }
    assert set(found) == set(RACKS)
    return {tray: findings for tray, findings in found.items() if findings}


def test_two_racks_with_one_clique_number_are_healthy(operator: Operator, lab: Lab) -> None:
    query = "nvidia-smi --query-gpu=fabric.clusterUuid,fabric.cliqueId --format=csv,noheader"
    domains = {node.name: {*node.run(query).stdout.splitlines()} for node in lab.nodes}
    (one,), (two,) = domains["tray-01"], domains["tray-11"]
    assert one != two
    assert one.rpartition(",")[2] == two.rpartition(",")[2]
    assert domains == {tray: {one if rack == "r1" else two} for tray, rack in RACKS.items()}
    assert named(operator) == {}
    drift = operator.call("drift")
    assert drift.returncode == ExitCode.OK, said(drift)


def test_a_tray_in_no_domain_is_named_by_every_command_and_by_itself(operator: Operator, lab: Lab) -> None:
    tray = lab.node("tray-02")
    tray.fault("nvlink_domain", what="none")
    try:
        assert named(operator) == {"tray-02": {("fabric_domain", "fail")}}
        done = operator.call("validate", "--json", "--checks", CHECK, "--limit", "tray-02")
        assert flagged(done, "skip") == {(CHECK, "node", "fail")}
        drifts = json.loads(operator.call("drift", "--json").stdout)["drifts"]
        assert {(drift["node"], drift["fact"]) for drift in drifts} == {
            ("tray-02", fact) for fact in NO_DOMAIN
        }
        plan = operator.call("plan", "--limit", "tray-02")
        assert "NVLink clique" in said(plan), said(plan)
        up = operator.call("up", "--yes", "--limit", "tray-02")
        assert up.returncode == ExitCode.UNHEALTHY, said(up)
        assert "nvidia_smi.without_clique" in said(up), said(up)
        tray.as_root("systemctl start gpuprov-node-health.service")
        rows = json.loads(tray.as_root("cat /run/gpuprov/health.json").stdout)["findings"]
        own = {(row["check"], row["metric"], row["verdict"]) for row in rows if row["verdict"] == "fail"}
        assert own == {(CHECK, "fabric_domain", "fail")}
    finally:
        tray.heal("nvlink_domain")


@pytest.mark.parametrize("what", ["clique", "cluster"])
def test_a_lone_tray_in_another_domain_than_its_rack_fails(what: str, operator: Operator, lab: Lab) -> None:
    tray = lab.node("tray-03")
    tray.fault("nvlink_domain", what=what)
    try:
        assert named(operator) == {"tray-03": {("rack_domain", "fail")}}
    finally:
        tray.heal("nvlink_domain")


def test_a_rack_in_two_halves_warns_of_both(operator: Operator, lab: Lab) -> None:
    tray = lab.node("tray-12")
    tray.fault("nvlink_domain", what="clique")
    try:
        assert named(operator) == {half: {("rack_domain", "warn")} for half in ("tray-11", "tray-12")}
    finally:
        tray.heal("nvlink_domain")
