"""network_ports: what is wrong with an RDMA port, and what only looks so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import CheckNode
from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.checks.network import network_ports
from provision.errors import ParseError

DAY = 86400


class Cards:
    """The facts of a node with eight InfiniBand cards and a storage card with Ethernet."""

    def __init__(self) -> None:
        self.ports = [self.port(f"mlx5_{i}") for i in range(8)]
        self.ports.append(
            {
                **self.port(
                    "mlx5_8", link_layer="Ethernet", board_id="MT_0000000359", rate=200, link="4X HDR"
                ),
                **{"sm_lid": 0, "pkeys": "", "netdev": "eth2", "netdev_up": True, "roce_v2_ipv4": ""},
            }
        )
        self.counters = [
            dict.fromkeys(COUNTERS, 0) | {"device": p["device"], "port": "1"} for p in self.ports
        ]
        self.cards = [
            {"device": p["device"], "board_id": p["board_id"], "link_width": 16, "link_width_max": 16}
            for p in self.ports
        ]
        self.functions = [
            {"address": p["address"], "device_id": "1021", "device": p["device"], "link_width_max": 16}
            for p in self.ports
        ]
        self.mtus = {f"{p['device']}/1": 4096 for p in self.ports}
        self.uptime: int | None = 20 * DAY
        self.problems: dict[str, str] = {}

    @staticmethod
    def port(device: str, **more: Any) -> dict[str, Any]:
        return {
            **{
                "device": device,
                "port": "1",
                "link_layer": "InfiniBand",
                "state": "ACTIVE",
                "phys_state": "LinkUp",
            },
            **{"rate": 400, "link": "4X NDR", "lid": 42, "sm_lid": 1, "board_id": "MT_0000000838"},
            **{"address": f"0000:{0x18 + int(device[5:]):02x}:00.0", "pkeys": "0x7fff,0x8001", "gids": 1},
            **{"roce_v2_ipv4": "", "netdev": None, "netdev_up": None, "carrier_downs": None, **more},
        }

    def facts(self) -> dict[str, Any]:
        facts = {
            **{"hca.ports": self.ports, "hca.counters": self.counters, "hca.functions": self.functions},
            **{"hca.mtus": self.mtus, "firmware.rdma": self.cards, "clock.uptime_s": self.uptime},
        }
        return {name: value for name, value in facts.items() if name not in self.problems}

    def roce(self) -> None:
        """Eight RoCE cards instead, and none beside them."""
        self.ports = [
            {
                **self.port(f"mlx5_{i}", link_layer="Ethernet", sm_lid=0, pkeys=""),
                **{
                    "netdev": f"eth{i}",
                    "netdev_up": True,
                    "carrier_downs": 1,
                    "roce_v2_ipv4": "3",
                    "gids": 4,
                },
            }
            for i in range(8)
        ]
        del self.functions[8]


COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
)
Judge = Callable[..., list[Finding]]


@pytest.fixture
def cards() -> Cards:
    return Cards()


@pytest.fixture
def judge(cards: Cards, make_node: Callable[..., CheckNode]) -> Judge:
    def run(**variables: Any) -> list[Finding]:
        node = replace(make_node(**variables), facts=cards.facts(), problems=cards.problems)
        measurements = network_ports.parse(node, {})
        findings = network_ports.judge(node, measurements, {})
        assert findings
        for finding in findings:
            assert finding.action in ACTIONS
            assert finding.verdict in (Verdict.PASS, Verdict.SKIP) or finding.action != "none", finding
        return findings

    return run


def flagged(findings: list[Finding]) -> list[tuple[str, str, str, str]]:
    return [
        (f.verdict.value, f.device, f.metric, f.action)
        for f in findings
        if f.verdict not in (Verdict.PASS, Verdict.SKIP)
    ]


CABLE, CONFIGURE = "reseat or check cable", "fix configuration"


# --- healthy, and what only looks broken


def test_a_healthy_node_passes_and_says_that_nobody_declared_how_many(judge: Judge) -> None:
    findings = judge()
    assert flagged(findings) == []
    assert any("8 ports up" in f.message and f.verdict is Verdict.PASS for f in findings)
    assert any("not compared" in f.message and f.verdict is Verdict.SKIP for f in findings)
    assert flagged(judge(gpuprov_expected_nics=8)) == []


def test_counters_of_a_real_h100_port_are_no_fault(judge: Judge, cards: Cards) -> None:
    # As real ones are after weeks of traffic: a few errors of the past.
    cards.counters[0].update(excessive_buffer_overrun_errors=15, port_rcv_errors=14, link_downed=1)
    assert flagged(judge()) == []
    cards.counters[0].update(symbol_error=4000, link_downed=3)
    assert flagged(judge()) == [], "three flaps and some thousand symbol errors in twenty days"


@pytest.mark.parametrize("state", ["DOWN"])
def test_a_port_that_is_switched_off_is_not_judged(judge: Judge, cards: Cards, state: str) -> None:
    cards.ports[2].update(state=state, phys_state="Disabled", rate=10, link=None, sm_lid=0)
    findings = judge(gpuprov_expected_nics=8)
    assert flagged(findings) == []
    assert any("mlx5_2" in f.message and f.verdict is Verdict.SKIP for f in findings)


def test_a_storage_card_is_neither_counted_nor_judged(judge: Judge, cards: Cards) -> None:
    cards.ports[8].update(state="DOWN", phys_state="Polling", rate=10)
    assert flagged(judge(gpuprov_expected_nics=8)) == []


def test_all_ports_alike_at_half_the_rate_are_a_split_cable(judge: Judge, cards: Cards) -> None:
    for port in cards.ports:
        port.update(rate=200, link="2X NDR")
    assert flagged(judge()) == []


def test_a_slot_that_is_narrow_for_all_is_wired_so(judge: Judge, cards: Cards) -> None:
    for card in cards.cards:
        card["link_width"] = 8
    assert flagged(judge()) == []


def test_infiniband_needs_no_address_for_roce_and_a_rail_may_have_its_own_subnet_manager(
    judge: Judge, cards: Cards
) -> None:
    for number, port in enumerate(cards.ports[:8]):
        port["sm_lid"] = number + 1
    assert flagged(judge()) == []


def test_a_node_without_cards_is_skipped_unless_some_are_declared(judge: Judge, cards: Cards) -> None:
    cards.ports, cards.counters, cards.cards, cards.functions, cards.mtus = [], [], [], [], {}
    assert [f.verdict for f in judge()] == [Verdict.SKIP]
    assert flagged(judge(gpuprov_expected_nics=8)) == [("fail", "node", "hcas", CABLE)]


# --- faults


def test_a_missing_card(judge: Judge, cards: Cards) -> None:
    del cards.ports[3]
    lost = ("fail", "hca@0000:1b:00.0", "hcas", "investigate")
    assert flagged(judge(gpuprov_expected_nics=8)) == [lost], "it is on the bus still, and has no driver"
    del cards.functions[3]
    assert flagged(judge(gpuprov_expected_nics=8)) == [("fail", "node", "hcas", CABLE)]
    names = [f"mlx5_{i}" for i in range(8)]
    assert flagged(judge(gpuprov_expected_nics=names)) == [("fail", "mlx5_3", "hcas", CABLE)]
    assert flagged(judge()) == [], "nobody declared eight: the fleet may know"


@pytest.mark.parametrize(
    ("state", "physical", "action"),
    [
        ("DOWN", "Polling", CABLE),
        ("DOWN", "LinkErrorRecovery", CABLE),
        ("INIT", "LinkUp", CONFIGURE),
        ("ARMED", "LinkUp", CONFIGURE),
    ],
)
def test_a_port_that_is_not_up(judge: Judge, cards: Cards, state: str, physical: str, action: str) -> None:
    cards.ports[2].update(state=state, phys_state=physical)
    assert flagged(judge()) == [("fail", "mlx5_2", "state", action)]


def test_a_slow_or_narrow_port(judge: Judge, cards: Cards) -> None:
    cards.ports[5].update(rate=100, link="1X NDR")
    assert flagged(judge()) == [("fail", "mlx5_5", "rate", CABLE)]


def test_a_declared_rate_wins_over_the_peers(judge: Judge, cards: Cards) -> None:
    for port in cards.ports[:8]:
        port["rate"] = 200
    declared = [{"device": f"mlx5_{i}", "link_layer": "InfiniBand", "rate": 400} for i in range(8)]
    found = judge(rdma_expected_ports=declared)
    assert flagged(found) == [("fail", f"mlx5_{i}", "rate", CABLE) for i in range(8)]


def test_a_card_with_fewer_lanes_than_its_peers(judge: Judge, cards: Cards) -> None:
    cards.cards[6]["link_width"] = 8
    assert flagged(judge()) == [("fail", "mlx5_6", "pcie_width", CABLE)]


@pytest.mark.parametrize(
    ("count", "verdict"), [(1, None), (2, "warn"), (4, "warn"), (5, "fail"), (60, "fail")]
)
def test_a_flapping_link(judge: Judge, cards: Cards, count: int, verdict: str | None) -> None:
    cards.uptime = 3600
    cards.counters[1]["link_downed"] = count
    action = {"warn": "watch", "fail": CABLE}
    expected = [] if verdict is None else [(verdict, "mlx5_1", "link_downed", action[verdict])]
    assert flagged(judge()) == expected


def test_errors_at_a_rate_that_no_cable_may_have(judge: Judge, cards: Cards) -> None:
    cards.uptime = 2 * DAY
    cards.counters[4].update(symbol_error=400 * 36 // 10 * 48)  # 1,440 an hour are allowed at 400 Gb/s
    assert flagged(judge()) == []
    cards.counters[4].update(symbol_error=400 * 36 // 10 * 48 + 1)
    assert flagged(judge()) == [("fail", "mlx5_4", "symbol_error", CABLE)]


@pytest.mark.parametrize("uptime", [60, 3600, 5 * 3600])
def test_a_few_errors_soon_after_boot_are_no_rate_and_a_storm_is_one(
    judge: Judge, cards: Cards, uptime: int
) -> None:
    cards.uptime = uptime
    cards.counters[4].update(excessive_buffer_overrun_errors=11, port_rcv_errors=60)
    assert flagged(judge()) == []
    cards.counters[4].update(port_rcv_errors=5000)
    assert flagged(judge()) == [("fail", "mlx5_4", "port_rcv_errors", CABLE)]


def test_what_infiniband_needs_to_be_routed(judge: Judge, cards: Cards) -> None:
    cards.ports[1]["sm_lid"] = 0
    cards.ports[2]["pkeys"] = "0x7fff"
    cards.mtus["mlx5_3/1"] = 2048
    assert flagged(judge()) == [
        ("fail", "mlx5_1", "sm_lid", CONFIGURE),
        ("fail", "mlx5_2", "pkeys", CONFIGURE),
        ("fail", "mlx5_3", "mtu", CONFIGURE),
    ]


def test_what_roce_needs(judge: Judge, cards: Cards) -> None:
    cards.roce()
    assert flagged(judge(gpuprov_expected_nics=8)) == []
    cards.ports[2]["roce_v2_ipv4"] = "5"
    cards.ports[3].update(carrier_downs=9)
    cards.ports[4].update(state="DOWN", phys_state="Disabled")  # it calls itself so without a carrier, too
    cards.ports[5].update(state="DOWN", phys_state="Disabled", netdev_up=False)
    cards.uptime = DAY
    assert flagged(judge()) == [
        ("fail", "mlx5_2", "gid", CONFIGURE),
        ("fail", "mlx5_3", "link_downed", CABLE),
        ("fail", "mlx5_4", "state", CABLE),
    ]


def test_the_declared_gid_index_mtu_and_partition_key(judge: Judge, cards: Cards) -> None:
    cards.roce()
    ports = [{"device": f"mlx5_{i}", "link_layer": "Ethernet"} for i in range(8)]
    found = judge(rdma_expected_ports=ports, rdma_roce_gid_index=5, rdma_mtu=4096)
    assert {(f.device, f.metric) for f in found if f.verdict is Verdict.FAIL} == {
        (f"mlx5_{i}", "gid") for i in range(8)
    }


# --- not knowing


def test_a_declared_mtu_that_nobody_could_read_is_an_error(judge: Judge, cards: Cards) -> None:
    cards.problems["hca.mtus"] = "ibv_devinfo is not installed"
    assert flagged(judge()) == []
    declared = [{"device": f"mlx5_{i}", "link_layer": "InfiniBand"} for i in range(8)]
    found = judge(rdma_expected_ports=declared, rdma_mtu=4096)
    assert flagged(found) == [("error", "node", "", CONFIGURE)]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda cards: cards.problems.update({"hca.ports": "permission denied"}), "permission denied"),
        (lambda cards: cards.ports[0].update(rate="fast"), "rate is 'fast'"),
        (lambda cards: cards.ports[0].update(device=None), "without device"),
        (lambda cards: cards.counters.pop(), "has no entry for mlx5_8/1"),
        (lambda cards: cards.ports.append("a port"), "not a list of entries"),
    ],
)
def test_half_an_answer_is_no_verdict(
    judge: Judge, cards: Cards, break_it: Callable[[Cards], Any], words: str
) -> None:
    break_it(cards)
    with pytest.raises(ParseError, match=words):
        judge()


def test_a_mistyped_number_of_cards_is_refused(judge: Judge) -> None:
    with pytest.raises(ParseError, match="gpuprov_expected_nics is 'eight'"):
        judge(gpuprov_expected_nics="eight")


def test_the_counters_of_the_real_capture_are_all_known(judge: Judge, cards: Cards, captures: Path) -> None:
    rows = dict(
        line.split("\t", 1)
        for line in (captures / "sys-class-infiniband.h100.mlx5_0.tsv").read_text().splitlines()
    )
    folder = "/ports/1/counters/"
    real = {path.rpartition(folder)[2]: int(value) for path, value in rows.items() if folder in path}
    cards.counters[0].update({name: value for name, value in real.items() if name in COUNTERS})
    cards.uptime = 12 * DAY
    assert set(COUNTERS) <= set(real)
    assert flagged(judge()) == []


@pytest.mark.parametrize("name", ["hca.functions", "firmware.rdma"])
def test_cards_that_nobody_could_read_are_an_error(judge: Judge, cards: Cards, name: str) -> None:
    """A narrow slot, or a card without a driver, would go unseen."""
    cards.problems[name] = "permission denied"
    assert flagged(judge()) == [("error", "node", "", "run again")]


def test_what_is_known_to_be_broken_is_told_beside_what_is_not_known(judge: Judge, cards: Cards) -> None:
    cards.problems["firmware.rdma"] = "permission denied"
    cards.ports[2].update(state="DOWN", phys_state="Polling")
    assert {(verdict, device) for verdict, device, *_ in flagged(judge())} == {
        ("fail", "mlx5_2"),
        ("error", "node"),
    }


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda cards: cards.counters[4].update(symbol_error="999999999"), "symbol_error is '999999999'"),
        (lambda cards: cards.counters[4].update(symbol_error=-1), "symbol_error is -1"),
        (lambda cards: cards.counters[4].update(symbol_error=10**400), "symbol_error is 1000"),
        (lambda cards: cards.counters[4].pop("symbol_error"), "not of one shape"),
        (lambda cards: cards.ports[4].pop("rate"), "not of one shape"),
        (lambda cards: cards.ports[4].update(rate=-400), "rate is -400"),
        (lambda cards: cards.ports[4].update(netdev_up="no"), "netdev_up is 'no'"),
        (lambda cards: cards.mtus.update({"mlx5_4/1": "4096"}), "mlx5_4/1 is '4096'"),
        (lambda cards: setattr(cards, "mtus", [4096]), "hca.mtus is not a map"),
    ],
)
def test_a_number_that_is_none_is_not_taken_for_zero(
    judge: Judge, cards: Cards, break_it: Callable[[Cards], Any], words: str
) -> None:
    break_it(cards)
    with pytest.raises(ParseError, match=words):
        judge()


def test_an_uptime_that_cannot_be_makes_no_limit_wider(judge: Judge, cards: Cards) -> None:
    cards.uptime = 10**400
    cards.counters[4].update(port_rcv_errors=5000)
    assert flagged(judge()) == [("fail", "mlx5_4", "port_rcv_errors", CABLE)]


def test_cards_that_user_space_cannot_open_are_not_healthy(judge: Judge, cards: Cards) -> None:
    """ibv_devinfo 56.1 (Debian 13) with cards in sysfs and no ib_uverbs, recorded."""
    cards.problems["hca.mtus"] = (
        "ibv_devinfo answered: Failed to get IB devices list: Function not implemented"
    )
    assert flagged(judge()) == [("error", "node", "", "investigate")]


@pytest.mark.parametrize(
    ("name", "most"), [("link_downed", 255), ("symbol_error", 65535), ("link_error_recovery", 255)]
)
def test_a_counter_that_is_full_says_too_little(name: str, most: int, judge: Judge, cards: Cards) -> None:
    cards.uptime = 2000 * DAY  # a rate of next to nothing, if that were all
    cards.counters[2][name] = most
    (found,) = [f for f in judge() if f.verdict is not Verdict.PASS and f.metric == name]
    assert (found.verdict, found.device, found.action) == (Verdict.WARN, "mlx5_2", "watch")
    assert "perfquery -R" in found.message
    cards.counters[2][name] = most - 1
    assert not [f for f in judge() if f.metric == name and f.verdict is not Verdict.PASS]


def test_a_counter_that_only_one_port_does_not_give_is_an_error_of_it(judge: Judge, cards: Cards) -> None:
    """linux, drivers/infiniband/core/sysfs.c prints `N/A (no PMA)`, which the observer gives as None."""
    cards.counters[2]["symbol_error"] = None
    cards.ports[3]["rate"] = None
    found = [
        (f.verdict.value, f.device) for f in judge(gpuprov_expected_nics=8) if f.verdict is not Verdict.PASS
    ]
    assert ("error", "mlx5_2") in found
    assert ("error", "mlx5_3") in found
    for row in cards.counters:
        row["symbol_error"] = None
    cards.ports[3]["rate"] = 400
    assert flagged(judge(gpuprov_expected_nics=8)) == [], "no driver of these has it"


@pytest.mark.parametrize("declared", [{}, {"gpuprov_expected_nics": 8}])
def test_a_port_without_a_link_layer_is_an_error_of_that_port(
    judge: Judge, cards: Cards, declared: dict[str, Any]
) -> None:
    """It neither leaves the count, as if a card were missing, nor drops out of the judged ports unseen."""
    cards.ports[3]["link_layer"] = None
    [(verdict, device, _, action)] = flagged(judge(**declared))
    assert (verdict, device, action) == ("error", "mlx5_3", "investigate")
    cards.counters[3]["symbol_error"] = 10**9
    assert ("fail", "mlx5_3", "symbol_error", CABLE) in flagged(judge(**declared))
    cards.ports[3].update(state="DOWN", phys_state="Polling")
    assert ("fail", "mlx5_3", "state", CABLE) in flagged(judge(**declared))


@pytest.mark.parametrize("state", [None, "NOP", "<unknown>"])
def test_a_state_that_is_not_known_is_no_bad_cable(judge: Judge, cards: Cards, state: str | None) -> None:
    cards.ports[3]["state"] = state
    [(verdict, device, _, action)] = flagged(judge())
    assert (verdict, device, action) == ("error", "mlx5_3", "investigate")
    cards.counters[3]["link_downed"] = 255
    assert ("fail", "mlx5_3", "link_downed", CABLE) in flagged(judge()), "its counters are read all the same"


def test_a_subnet_manager_that_only_one_port_cannot_tell_of_is_an_error_of_it(
    judge: Judge, cards: Cards
) -> None:
    cards.ports[3]["sm_lid"] = None
    [(verdict, device, _, _)] = flagged(judge())
    assert (verdict, device) == ("error", "mlx5_3")
