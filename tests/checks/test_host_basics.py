"""Basic machine checks of host_health: memory, CPUs, services, file systems, NCCL variables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.fleet.majority import Voter
from provision.checks.host import host_basics, versions
from provision.checks.judge import Finding, Verdict
from provision.errors import ParseError
from tests.support.checks import make_node

FACTS: dict[str, Any] = {
    **{"memory.installed_gib": 2048, "cpu.online": 192, "service.running": ["munge", "slurmd"]},
    **{
        "file.read_only_mounts": [],
        "file.free_space": [{"path": "/", "free_percent": 40, "free_inodes_percent": 90}],
    },
    "file.nccl_variables": [],
}


def left(space: int, inodes: int) -> dict[str, Any]:
    return {"file.free_space": [{"path": "/var", "free_percent": space, "free_inodes_percent": inodes}]}


DECLARED: dict[str, Any] = {
    **{"gpuprov_expected_memory_gib": 2048, "gpuprov_expected_cpus": 192},
    "gpuprov_expected_services": ["munge", "slurmd.service"],
}


def judge(facts: dict[str, Any] | None = None, **variables: Any) -> list[Finding]:
    node = replace(make_node(**variables), facts={**FACTS, **(facts or {})})
    return [one for rule in host_basics.RULES for one in rule("host_health", node)]


def told(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(one.verdict.value, one.metric, one.action) for one in findings]


def test_a_machine_as_declared_and_one_that_declares_nothing_have_nothing_to_tell() -> None:
    assert judge(**DECLARED) == []
    poor = {"memory.installed_gib": 16, "cpu.online": 2, "service.running": []}
    assert judge(poor) == [], "what is not declared is for the fleet to tell"
    assert judge({"memory.installed_gib": 2016}, **DECLARED) == [], "the firmware keeps a share"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"memory.installed_gib": 1984}, ("fail", "installed_gib", "reseat or check cable")),
        ({"cpu.online": 191}, ("fail", "online", "fix configuration")),
        ({"service.running": ["munge"]}, ("fail", "service.slurmd", "fix configuration")),
        ({"file.read_only_mounts": ["/scratch"]}, ("fail", "read_only", "investigate")),
        (
            {"file.free_space": [{"path": "/var", "free_percent": 0, "free_inodes_percent": 9}]},
            ("fail", "free_percent", "fix configuration"),
        ),
        (
            {"file.free_space": [{"path": "/", "free_percent": 4, "free_inodes_percent": 9}]},
            ("warn", "free_percent", "fix configuration"),
        ),
        (
            {"file.free_space": [{"path": "/", "free_percent": 9, "free_inodes_percent": 0}]},
            ("fail", "free_inodes_percent", "fix configuration"),
        ),
    ],
)
def test_each_lack_is_told(facts: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert told(judge(facts, **DECLARED)) == [expected]


def test_what_is_declared_and_cannot_be_read_is_no_pass() -> None:
    for facts in ({"memory.installed_gib": None}, {"memory.installed_gib": "much"}):
        with pytest.raises(ParseError):
            judge(facts, **DECLARED)
    unread = replace(
        make_node(**DECLARED),
        facts={},
        problems=dict.fromkeys(("file", "cpu", "memory", "service"), "timed out"),
    )
    for rule in host_basics.RULES:
        with pytest.raises(ParseError, match="could not be read"):
            rule("host_health", unread)


def test_a_run_of_an_older_version_is_judged_as_it_was() -> None:
    assert [one for rule in host_basics.RULES for one in rule("host_health", make_node())] == []


@pytest.mark.parametrize(
    ("name", "value", "warned"),
    [
        ("NCCL_P2P_DISABLE", "1", True),
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_IB_DISABLE", "1", True),
        ("NCCL_SHM_DISABLE", "1", True),
        ("NCCL_NET", "Socket", True),
        ("NCCL_NET", "IB", False),
        ("NCCL_P2P_LEVEL", "LOC", True),
        ("NCCL_P2P_LEVEL", "NVL", False),
        ("NCCL_NVLS_ENABLE", "0", True),
        ("NCCL_DEBUG", "INFO", False),
    ],
)
def test_a_variable_that_holds_nccl_back_is_told_with_its_place(name: str, value: str, warned: bool) -> None:
    findings = judge(
        {"file.nccl_variables": [{"file": "/etc/environment", "line": 3, "name": name, "value": value}]}
    )
    assert [one.verdict for one in findings] == [Verdict.WARN] * warned
    for one in findings:
        assert f"/etc/environment:3 sets {name}={value} " in one.message
    declared = {
        "file.nccl_variables": [
            {"file": "/etc/environment", "line": 3, "name": "NCCL_NET", "value": "Socket"}
        ]
    }
    assert judge(declared, gpuprov_nccl_net="Socket") == []


def test_a_node_with_less_memory_than_its_peers_is_named() -> None:
    def voter(memory: int, cpus: int = 192) -> Voter:
        gpus = [{"device_id": "10de:2330"}] * 8
        system = {"os.id": "debian", "os.version_id": "13", "gpu.pci": gpus, "firmware.system": "X"}
        return Voter("h100-sxm", {**system, "memory.installed_gib": memory, "cpu.online": cpus})

    fleet = versions.Versions()
    for number in range(5):
        fleet.add(f"gpu-{number}", voter(2048 if number else 1984, 96 if number == 4 else 192))
    found, _ = fleet.found()
    assert {node: [(one.metric, one.value, one.action) for one in rows] for node, rows in found.items()} == {
        "gpu-0": [("memory.installed_gib", 1984, "investigate")],
        "gpu-4": [("cpu.online", 96, "investigate")],
    }
