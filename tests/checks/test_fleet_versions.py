"""Comparison of versions with the fleet's majority: deviations are named unless they are declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.node_facts import NodeFacts
from tests.support.fleet_versions import judge_fleet
from tests.support.stored import FACTS


def fleet(changed: Mapping[str, Mapping[str, Any]], count: int = 5) -> dict[str, NodeFacts]:
    """Build a fleet from deviating facts by node; `variables` among them holds its declared variables."""
    gpus = {"gpu": {"sku": "h100-sxm", "count": 8, "fabric": "nvswitch", "architecture": "hopper"}}
    nodes = {}
    for number in range(1, count + 1):
        name = f"gpu-{number}"
        facts = dict(changed.get(name, {}))
        variables = facts.pop("variables", {})
        nodes[name] = NodeFacts(name, {**FACTS, **facts}, gpus, variables)
    return nodes


def compared(seen: Mapping[str, NodeFacts]) -> tuple[dict[str, list[Finding]], tuple[str, ...]]:
    """Return the findings of each node, and the facts without a majority."""
    passed = (Finding("versions", Verdict.PASS, "node", "of one version"),)
    nodes = [
        NodeHealth(name, Verdict.PASS, (CheckResult("versions", Verdict.PASS, passed, (), 0.0),))
        for name in seen
    ]
    judged, ambiguous = judge_fleet(nodes, {name: one.check_node for name, one in seen.items()})
    assert [node.node for node in judged] == list(seen)
    for node in judged:
        assert node.verdict is node.checks[0].verdict
    return {
        node.node: [f for f in node.checks[0].findings if f.verdict is not Verdict.PASS] for node in judged
    }, ambiguous


def odd(changed: Mapping[str, Mapping[str, Any]], count: int = 5) -> dict[str, list[str]]:
    found, ambiguous = compared(fleet(changed, count))
    assert not ambiguous
    return {name: [f.metric for f in findings] for name, findings in found.items() if findings}


def test_a_fleet_that_is_alike_is_left_alone() -> None:
    assert odd({}) == {}


def test_who_differs_from_most_is_warned_of_with_both_values() -> None:
    found, _ = compared(fleet({"gpu-2": {"driver.loaded_version": "580.95.05"}}))
    (finding,) = found.pop("gpu-2")
    assert not any(found.values())
    assert (finding.verdict, finding.device, finding.action) == (Verdict.WARN, "node", "fix configuration")
    assert "580.95.05" in finding.message
    assert "4 of 5 (h100-sxm on debian 13) have 580.126.09" in finding.message
    assert finding.limit == "= 580.126.09"


def test_firmware_of_one_gpu_and_of_one_card_are_compared() -> None:
    cards = [dict(card) for card in FACTS["firmware.rdma"]]
    cards[3]["firmware"] = "28.39"
    vbios = ["96.00.89.00.01"] * 7 + ["96.00.74.00.01"]
    assert odd({"gpu-1": {"firmware.gpu_vbios": vbios}, "gpu-4": {"firmware.rdma": cards}}) == {
        "gpu-1": ["firmware.gpu_vbios"],
        "gpu-4": ["rdma.firmware"],
    }


def test_a_canary_group_that_is_declared_is_a_kind_of_its_own() -> None:
    other = {"driver.loaded_version": "595.58.03", "driver.userspace_version": "595.58.03"}
    assert odd({"gpu-1": other, "gpu-2": other}, 6) != {}
    declared = {**other, "variables": {"nvidia_driver_version": "595.58.03"}}
    assert odd({"gpu-1": declared, "gpu-2": declared}, 6) == {}


def test_what_may_differ_is_not_compared() -> None:
    other = {
        "firmware.bios_version": "2.2",
        "variables": {"gpuprov_ignore_majority": ["firmware.bios_version"]},
    }
    assert odd({"gpu-3": other}) == {}


def test_what_is_not_of_this_check_is_left_to_others() -> None:
    narrow = [{"subsystem_id": "10de:16c1", "link_width": 8}] * 8
    assert odd({"gpu-3": {"gpu.pci": narrow}}) == {}


def test_two_nodes_say_nothing_of_each_other_and_a_tie_accuses_nobody() -> None:
    assert odd({"gpu-1": {"driver.loaded_version": "580.95.05"}}, 2) == {}
    changed = {name: {"kernel.release": "6.1.0-44-amd64"} for name in ("gpu-1", "gpu-2")}
    found, ambiguous = compared(fleet(changed, 4))
    assert not any(found.values())
    (line,) = ambiguous
    assert line.startswith(
        "kernel.release: ambiguous, no value has a majority of h100-sxm on debian 13: 2 have 6.1"
    )


def test_a_node_that_did_not_run_the_check_has_no_vote() -> None:
    seen = fleet({name: {"driver.loaded_version": "580.95.05"} for name in ("gpu-3", "gpu-4", "gpu-5")})
    passed = (Finding("versions", Verdict.PASS, "node", "of one version"),)
    ran = (CheckResult("versions", Verdict.PASS, passed, (), 0.0),)
    nodes = [NodeHealth(name, Verdict.PASS, ran if name < "gpu-4" else ()) for name in seen]
    judged, _ = judge_fleet(nodes, {name: one.check_node for name, one in seen.items()})
    assert [node.node for node in judged if node.verdict is Verdict.WARN] == ["gpu-3"]
