"""AMD's acceptance guide on simulated nodes: measurements find their fault and ignore look-alikes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.judge import Finding
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.vendors.amd import amd_acceptance, p2p_bandwidth
from tests.checks.amd_node import Said, node_of, said
from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.look import look_of
from tests.lab_silicon.silicon import Silicon

FACTS = (
    "amdgpu.devices",
    "amdgpu.kernel_parameters",
    "amdgpu.loaded_version",
    "amdgpu.rocm",
    "gpu.count",
    "gpu.pci",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Silicon:
    """Return a node with eight MI300X and instant waits; tests clear the faults they set."""
    return booted(tmp_path_factory.mktemp("mi300x"), "mi300x")


def booted(folder: Path, sku: str) -> Silicon:
    one = Silicon(folder / "state", folder / "root")
    (one.root / "usr/share/gpu-burn").mkdir(parents=True)
    words = ["--sku", sku, "--name", "gpu-01", "--seed", "7", "--speed", "100000", "--network", "none"]
    assert one.run("new", "--dir", str(one.state), *words).returncode == 0
    return installed(one).boot()


def described(node: Silicon) -> NodeFacts:
    seen = look_of(node, FACTS)
    assert seen.problems == {}
    return node_of(seen.facts)


def printed(node: Silicon, check: Any, facts: NodeFacts) -> Mapping[str, Output]:
    """Return the output of a check's commands on the node; programs that no role installs are missing."""
    found = {}
    for one in check.commands(facts.check_node, {}):
        if one.argv[0] == "/bin/sh" and one.name != "rvs_config":
            found[one.name] = Output(one.name, one.argv, 127, "", "", 1.0)
            continue
        if one.name == "rvs_config":
            listed = re.findall(r"- +(\d+)\]", node.printed("rvs", "-g"))
            *_, iet, mem = one.argv
            node.file(one.argv[5][1:], "actions:\n" + "".join(mem % (gpu, gpu) for gpu in listed) + iet)
            continue
        done = node.run(Path(one.argv[0]).name, *one.argv[1:], timeout=120, **one.env)
        found[one.name] = Output(one.name, one.argv, done.returncode, done.stdout, done.stderr, 1.0)
    return found


def judged(node: Silicon, check: Any, *faults: str) -> list[Finding]:
    node.fault("clear")
    node.break_(*faults)
    facts = described(node)
    raw = Raw("gpu-01", check.ID, tuple(printed(node, check, facts).values()))
    return list(node_judge.judge_check(facts, raw, facts.limits()).findings)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("two_way_slow a=2 b=5", {("fail", "gpu2-gpu5", "p2p_both_ways", "reset GPU")}),
        ("two_way_once a=2 b=5", set()),
        ("all_to_all_slow factor=0.8", {("fail", "node", "all_to_all", "investigate")}),
        ("collective_slow factor=0.8", set()),  # RCCL is slow, but copies are not
    ],
)
def test_copies_that_share_links(node: Silicon, fault: str, found: Said) -> None:
    assert said(judged(node, p2p_bandwidth, fault)) == found


@pytest.mark.parametrize(
    "sku",
    [
        "mi210",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("mi250", "mi300a", "mi325x", "mi355x")),
    ],
)
def test_healthy_nodes_reach_amds_minima_of_copies(tmp_path: Path, sku: str) -> None:
    found = judged(booted(tmp_path, sku), p2p_bandwidth)
    assert {one for one in said(found) if one[0] != "warn"} == set()
    assert "p2p_both_ways" in {one.metric for one in found}


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("power_short gpu=3 factor=0.8", {("fail", "gpu3", "power", "investigate")}),
        ("power_cap_site percent=80", set()),  # the site set a lower limit: not judged
        ("memory_pattern gpu=6 test=3", {("fail", "gpu6", "memory_errors", "replace part")}),
        ("memory_pattern gpu=6 test=1", {("fail", "gpu6", "memory_errors", "replace part")}),
        ("ras_corrected_few gpu=6", set()),
        ("memory_slow gpu=2 factor=0.7", {("fail", "gpu2", "memory_stress", "investigate")}),
    ],
)
def test_power_and_patterns_of_memory(node: Silicon, fault: str, found: Said) -> None:
    assert said(judged(node, amd_acceptance, fault)) == found


def test_a_fatal_pcie_error_is_read_of_configuration_space(node: Silicon) -> None:
    node.fault("clear")
    node.break_("pcie_fatal gpu=3", "pcie_unsupported gpu=5")
    known = look_of(node, FACTS).facts
    assert [one["fatal_error"] for one in known["amdgpu.devices"]] == [gpu == 3 for gpu in range(8)]
    assert all("=" in word for word in known["amdgpu.kernel_parameters"])
    place = node.state / "sys_pci" / known["amdgpu.devices"][3]["address"] / "config"
    for space in (b"\xff" * 4096, place.read_bytes()[:64], b""):  # off the bus, without root, empty
        place.write_bytes(space)
        assert look_of(node, FACTS).facts["amdgpu.devices"][3]["fatal_error"] is None
    node.fault("clear")
