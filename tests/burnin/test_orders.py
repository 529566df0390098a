"""Conversion of a profile into an order that a node completes alone and any controller can judge."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from provision.burnin import orders, plan, profile
from provision.burnin.plan import Part
from provision.checks.judging.node_facts import NodeFacts
from provision.node.burnin.campaign import FOREIGN_PAUSE, HOLDERS_DEADLINE
from provision.node.burnin.order import read_order
from provision.node.burnin.runner import Watch
from provision.runs.fingerprint import Fingerprint
from tests.support.burnin import NODE

PART = Part("gpu-01", 1, 120.0, 3600.0, 5000.0, 5120.0)
KNOWN = Fingerprint({"kernel.release": "6.12"})


def order_of(name: str, node: NodeFacts = NODE, part: Part = PART) -> dict[str, Any]:
    fitted = profile.fitted(profile.load(name), None, plan.cost)
    return orders.order("20261118T120000.000Z-burnin", fitted, node, part, KNOWN, {"inventory": "i.yml"})


@pytest.mark.parametrize("name", profile.available())
def test_the_node_understands_the_order_of_every_shipped_profile(name: str) -> None:
    given = order_of(name)
    understood = read_order(json.dumps(given))
    assert [one["name"] for one in understood["segments"]] == [one["name"] for one in given["segments"]]
    assert understood["end_by_s"] == 5120.0
    assert understood["segments"][0]["start_after_s"] == 120.0
    assert all(one["start_after_s"] == 0 for one in understood["segments"][1:])
    assert set(understood["abort"]["xids"]) >= {79, 48, 119}
    assert 13 not in understood["abort"]["xids"]  # a program's fault
    assert len(json.dumps(given)) < 256 * 1024


def test_a_soak_is_loads_of_its_step_and_no_longer() -> None:
    (heat,) = [one for one in order_of("day")["segments"] if one["name"] == "second_heat"]
    (step,) = heat["steps"]
    burn = next(one for one in step["commands"] if one["name"] == "gpu_burn")
    assert heat["repeat"] * int(burn["argv"][-1]) == pytest.approx(7.8 * 3600, rel=0.02)
    assert int(burn["argv"][-1]) <= 31 * 60
    assert step["deadline"] > burn["deadline"]


def test_a_check_with_nothing_to_run_on_this_node_is_left_out() -> None:
    segment = profile.Segment("disk", "load", ("disk_speed",), repeat=1)
    fitted = dataclasses.replace(
        profile.load("smoke"), segments=(segment, *profile.load("smoke").segments[:1])
    )
    given = orders.order("c", fitted, NODE, PART, KNOWN, {})
    assert [one["name"] for one in given["segments"]] == ["look"]
    assert given["segments"][0]["start_after_s"] == 120.0


def test_no_variable_that_checks_may_not_know_travels_with_the_order() -> None:
    """The stored observation holds only variables that checks read (seen.for_checks), hence no password."""
    given = order_of("smoke")
    assert set(given["about"]["seen"]["variables"]) == {"gpuprov_pci_addresses"}


def test_at_most_is_never_less_than_about() -> None:
    for name in profile.available():
        nearly, most = orders.seconds(profile.fitted(profile.load(name), None, plan.cost), NODE)
        assert nearly <= most


def test_a_node_that_burns_alone_waits_for_nobody() -> None:
    fitted = profile.fitted(profile.load("day"), None, plan.cost)
    both, alone = (
        {one["name"] for one in orders.order("c", fitted, NODE, PART, KNOWN, {}, alone=alone)["segments"]}
        for alone in (False, True)
    )
    assert both - alone == {"between_cold", "between_warm"}


@pytest.mark.parametrize("minutes", [0.5, 90.0])
def test_the_last_step_of_a_turn_fits_before_its_end(minutes: float) -> None:
    """The node starts no step that could run past its end (node/burnin/campaign.py)."""
    heat = profile.Segment("heat", "soak", ("gpu_burn",), minutes=minutes)
    fitted = dataclasses.replace(profile.load("smoke"), segments=(heat,))
    _, most = orders.seconds(fitted, NODE)
    (segment,) = orders.order("c", fitted, NODE, PART, KNOWN, {})["segments"]
    (step,) = segment["steps"]
    looks = 1.0 + HOLDERS_DEADLINE + 2 * FOREIGN_PAUSE  # seconds per round
    assert segment["repeat"] * (looks + step["deadline"]) <= most


HEAD = "NVRM: Xid (PCI:0000:1b:00): "
CHANGED = "GPU recovery action changed from 0x0 (None) to "


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", True),
        ("149, pid=7, name=x, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x0)", True),
        ("145, RLW_SRC_TRACK Fatal XC0 i0 Link -1 (0x00000007 0x00000001)", True),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x026001c6 0x00000000)", False),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x028001c6 0x00000000)", False),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x13 0x0)", False),
        ("149, pid=7, name=x, A Fatal XC0 , NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x13 0x0)", False),
        (f"154, {CHANGED}0x1 (PF FLR)", True),
        (f"154, pid=7, name=a, b, {CHANGED}0x2 (OS Reboot)", True),
        (f"154, {CHANGED}0x4 (Drain and Reset)", True),
        (f"154, {CHANGED}0x0 (None)", False),
        (f"154, {CHANGED}0x3 (Drain P2P)", False),
        (f"154, {CHANGED}0x5 (Recover IMEX Domain)", False),
        (f"154, pid=7, name=x to 0x2 (, {CHANGED}0x0 (None)", False),
        (f"31, pid=7, name=x, {CHANGED}0x2 (OS Reboot)", False),
    ],
)
def test_an_xid_whose_line_decides_ends_the_burn_in(line: str, ends: bool) -> None:
    abort = read_order(json.dumps(order_of(profile.available()[0])))["abort"]
    watch = Watch.__new__(Watch)
    watch.order = {"abort": abort}
    code = int(line.partition(",")[0])
    assert watch._is_fatal({"code": code, "line": HEAD + line}) is ends
    assert abort["kernel"]
