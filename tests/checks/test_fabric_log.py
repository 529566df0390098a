"""Logs of fabric manager and IMEX: current faults, ended faults, and duplicates in the kernel log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.check import CheckNode
from provision.checks.gpu import fabric_log
from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.shipped import load
from tests.support.checks import flagged, inventory, make_node, make_output, sample

READY = (
    "Successfully configured all the available NVSwitches to route GPU NVLink traffic. NVLink Peer-to-Peer …"
)
MISMATCH = (
    "fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.120. "
    "Please update with matching NVIDIA driver package."
)
NO_SWITCH = (
    "request to query NVSwitch device information from NVSwitch driver failed with error:"
    "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
)
FATAL = (
    "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 "
    "physical id 3 port 33"
)
IGNORED = (
    "detected NVSwitch non-fatal error 22013 on NodeId 0 on NVSwitch pci bus id 00000000:08:00.0 "
    "physical id 3 port 60"
)
IN_KERNEL = "[ 900.0] nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 33 LTSSM Fault Up\n"
JOINED = Finding("gpu_inventory", Verdict.PASS, "node", "every GPU has joined", "fabric_state")
APART = Finding("gpu_inventory", Verdict.FAIL, "node", "has not joined", "fabric_state", action=ACTIONS[-1])


def logged(*lines: str, fact: str = "manager_log", node: CheckNode | None = None) -> CheckNode:
    rows = [{"line": line, "count": 1, "first": at, "last": at} for at, line in enumerate(lines, 1760000000)]
    return replace(node or make_node(), facts={f"fabric.{fact}": rows})


def judged(*lines: str, known: Finding = JOINED, **more: Any) -> list[tuple[Any, ...]]:
    found = fabric_log.judge(logged(*lines, **more), [known])
    return flagged([one for one in found if one is not known], "verdict", "metric", "action")


def test_the_catalogue_is_whole() -> None:
    rows = load("fabric_lines")["lines"]
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    for row in rows:
        assert row["level"] in ("fail", "warn", "info")
        assert row["action"] in ACTIONS
        assert (row["action"] == "none") == (row["level"] == "info")
        assert set(row.get("until", ())) <= set(ids)
        assert bool(row.get("until")) == (row["level"] != "info"), "whatever is reported can end"
        assert row["meaning"]
        assert row["source"]


def test_an_error_of_a_switch_in_both_logs_is_one_finding_and_one_of_the_manager_alone_says_so() -> None:
    kernel = make_output("dmesg", sample("gpu_inventory/dmesg-clean.txt") + IN_KERNEL)
    both = inventory(node=logged(FATAL), dmesg=kernel)
    assert flagged(both, "verdict", "metric") == [(Verdict.FAIL, "sxid.20034")]
    assert flagged(inventory(node=make_node(), dmesg=kernel), "message") == flagged(both, "message")
    (alone,) = flagged(inventory(node=logged(FATAL)), "verdict", "metric", "message", "evidence")
    assert alone[:2] == (Verdict.FAIL, "sxid.20034")
    assert alone[2].endswith("by fabric manager's log alone")
    assert alone[3] == (FATAL,)


def test_an_error_that_nvidia_calls_harmless_is_not_reported() -> None:
    assert flagged(inventory(node=logged(IGNORED, READY))) == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((MISMATCH,), [(Verdict.FAIL, "fabric_log.driver_mismatch", "fix configuration")]),
        ((MISMATCH, READY), []),  # the driver was updated after fabric manager, which then started
        ((READY, MISMATCH), [(Verdict.FAIL, "fabric_log.driver_mismatch", "fix configuration")]),
        ((READY,), []),
        (("Connected to 1 node.", "an ERROR that nobody knows", ""), []),
    ],
)
def test_the_last_start_counts(lines: tuple[str, ...], expected: list[tuple[Any, ...]]) -> None:
    assert judged(*lines) == expected


def test_no_switch_is_trouble_unless_the_gpus_have_joined_a_fabric_that_the_host_manages() -> None:
    assert judged(NO_SWITCH) == []
    ampere = make_node(sku="a100-sxm-80", arch="ampere")
    other = replace(JOINED, metric="name")  # Ampere drivers report no fabric state
    assert judged(NO_SWITCH, node=ampere, known=other) == [
        (Verdict.WARN, "fabric_log.no_switch", "fix configuration")
    ]
    assert judged(NO_SWITCH, node=make_node(fabric="none"), known=other) == []


def test_a_mismatch_is_of_the_past_once_the_versions_match() -> None:
    """With LOG_LEVEL=3 in fabricmanager.cfg, a successful start logs no line."""
    node = logged(MISMATCH)
    matched = replace(node, facts={**node.facts, "fabric.manager_matches_driver": True})
    assert fabric_log.judge(matched, [JOINED]) == [JOINED]
    apart = replace(node, facts={**node.facts, "fabric.manager_matches_driver": False})
    assert len(fabric_log.judge(apart, [JOINED])) == 2
    assert "fabric.manager_matches_driver" in fabric_log.FACTS


def test_the_reason_is_part_of_the_finding_on_gpus_that_have_not_joined() -> None:
    (found,) = fabric_log.judge(logged(MISMATCH), [APART])
    assert (found.metric, found.action) == ("fabric_state", "fix configuration")
    assert found.message.startswith("has not joined; fabric manager logged: it is of another version")
    assert found.evidence == (MISMATCH,)
    assert fabric_log.judge(logged(READY), [APART]) == [APART]


def peers(lost: int, back: int = 0, of: int = 18) -> list[tuple[Any, ...]]:
    lines = [f"Connection established to node {one} with address 192.0.2.{one}" for one in range(of)]
    lines += [f"Connection lost to node {one}: 192.0.2.{one}:50000" for one in range(lost)]
    lines += [f"Connection established to node {one} with address 192.0.2.{one}" for one in range(back)]
    return judged(*lines, fact="imex_log", node=make_node(4, "gb200", "imex", "blackwell"))


def test_a_tray_that_lost_most_peers_is_warned_of_and_the_peers_of_one_lost_tray_are_not() -> None:
    assert peers(1) == []
    assert peers(8) == []
    assert peers(17) == [(Verdict.WARN, "fabric_log.peer_lost", "investigate")]
    assert peers(17, back=17) == []
    (found,) = flagged(
        fabric_log.judge(
            logged(
                "Connection lost to node 3: 192.0.2.3:50000",
                fact="imex_log",
                node=make_node(4, "gb200", "imex", "blackwell"),
            ),
            [],
        ),
        "message",
    )
    assert found[0].startswith("IMEX logged: the connections to at least half")


def test_a_peer_that_connects_ends_a_failed_start_of_imex() -> None:
    tray = make_node(4, "gb200", "imex", "blackwell")
    failed = "No matching network interface found for any IP addresses in the node configuration file /etc/nv"
    peer = "Connection established to node 3 with address 192.0.2.3"
    assert judged(failed, fact="imex_log", node=tray) == [
        (Verdict.WARN, "fabric_log.no_interface", "fix configuration")
    ]
    assert judged(failed, peer, fact="imex_log", node=tray) == []


@pytest.mark.parametrize(
    "rows",
    [None, "no list", [{"line": FATAL}], [{"line": 5, "count": 1, "first": 1, "last": 1}], [{"line": {}}]],
)
def test_a_log_that_cannot_be_read_is_said_and_breaks_nothing(rows: Any) -> None:
    facts = {} if rows is None else {"fabric.manager_log": rows}
    problems = {"fabric.manager_log": "permission denied"} if rows is None else {}
    node = replace(make_node(), facts=facts, problems=problems)
    assert fabric_log.switch_errors(node) == []
    (found,) = fabric_log.judge(node, [])
    assert (found.verdict, found.device) == (Verdict.SKIP, "node")
    assert "the log of fabric manager is not judged" in found.message
    assert fabric_log.judge(make_node(), []) == [], "a run of an older gpuprov has no such fact"
