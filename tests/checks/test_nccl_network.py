"""Tests of nccl_network: the fraction of the cards' capacity, nodes without cards, and explanations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.check import Output
from provision.checks.judge import Finding, Verdict
from provision.checks.nccl.nccl_network import OVER_CARDS
from provision.checks.suspects import point_at_cause
from provision.checks.thresholds import for_sku
from provision.errors import ParseError
from tests.support.checks import make_node, sample


def ports(count: int = 8, rate: float = 400, state: str = "ACTIVE", first: int = 0) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [{"device": f"mlx5_{n}", "port": "1", "state": state, "rate": rate} for n in numbers]


def facts(found: Any, storage: int = 8) -> dict[str, Any]:
    """Return facts with these ports; cards from number `storage` on are of another board."""
    rows = found if isinstance(found, list) and all(isinstance(row, dict) for row in found) else []
    boards = [
        {"device": row["device"], "board_id": "MT_2" if int(row["device"][5:]) >= storage else "MT_1"}
        for row in rows
    ]
    return {"rdma.ports": found, "firmware.rdma": boards}


def judge(name: str, found: list[dict[str, Any]], **more: Any) -> list[Finding]:
    node = replace(make_node(**more), facts=facts(found))
    output = Output("all_reduce_perf", ("x",), 0, sample(f"nccl_network/{name}.txt"), "", 1.0)
    asked = OVER_CARDS.commands(node, {})
    measured = OVER_CARDS.parse(node, {"all_reduce_perf": output} if asked else {})
    return OVER_CARDS.judge(node, measured, for_sku(node.sku))


def test_a_healthy_node_uses_its_cards() -> None:
    (finding,) = judge("healthy", ports())
    assert (finding.verdict, finding.value) == (Verdict.PASS, 93.8)
    assert "8 ports of 400 Gb/s" in finding.message


def test_a_slow_card_slows_all() -> None:
    (finding,) = judge("slow", ports())
    assert (finding.verdict, finding.device, finding.value) == (Verdict.FAIL, "node", 46.2)


def test_fewer_cards_than_gpus_share_their_rate() -> None:
    (finding,) = judge("slow", ports(4))
    assert (finding.verdict, finding.value) == (Verdict.PASS, 92.4)


def test_a_storage_card_is_not_the_rail() -> None:
    (finding,) = judge("healthy", [*ports(), *ports(1, 100, first=8)])
    assert finding.verdict is Verdict.PASS


@pytest.mark.parametrize("storage_rate", [200, 400])
def test_with_a_port_off_nobody_knows_how_the_gpus_share_the_others(storage_rate: int) -> None:
    off = [*ports(7), *ports(1, 10, "DOWN", first=7), *ports(1, storage_rate, first=8)]
    (finding,) = judge("slow", off)
    assert (finding.verdict, finding.metric) == (Verdict.SKIP, "rail_share")
    assert "with 7 ports of 400 Gb/s; its share of that is not judged: 1 more" in finding.message


def test_a_storage_port_that_is_off_changes_nothing() -> None:
    (finding,) = judge("slow", [*ports(), *ports(1, 10, "DOWN", first=8)])
    assert (finding.verdict, finding.value) == (Verdict.FAIL, 46.2)


def test_a_card_whose_board_was_not_told_is_no_skip() -> None:
    known = facts(ports())
    node = replace(make_node(), facts={**known, "firmware.rdma": known["firmware.rdma"][1:]})
    with pytest.raises(ParseError, match="no entry for mlx5_0"):
        OVER_CARDS.parse(node, {})


def test_a_gpus_slot_may_be_slower_than_the_port() -> None:
    (finding,) = judge("slow", ports(), sku="l40s", fabric="none", arch="ada")
    assert (finding.verdict, finding.value) == (Verdict.PASS, 92.4)


def test_nothing_but_the_network_may_be_used() -> None:
    node = replace(make_node(), facts=facts(ports()))
    (command,) = OVER_CARDS.commands(node, {})
    asked = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "IB"}
    assert asked.items() <= command.env.items()
    assert command.argv[command.argv.index("-n") + 1] == "5"


@pytest.mark.parametrize("found", [[], ports(state="DOWN")])
def test_without_a_card_it_is_skipped_with_the_reason(found: list[dict[str, Any]]) -> None:
    (finding,) = judge("healthy", found)
    assert (finding.verdict, finding.message) == (Verdict.SKIP, "no RDMA port is up in this node")


def test_ports_that_could_not_be_read_are_no_skip() -> None:
    node = replace(make_node(), problems={"rdma": "rdma: no answer within 8 s"})
    assert OVER_CARDS.commands(node, {}) == []
    with pytest.raises(ParseError, match="no answer"):
        OVER_CARDS.parse(node, {})


@pytest.mark.parametrize("rate", ["400", None, 0, -400, float("nan"), 2**64])
def test_a_port_that_is_up_has_a_rate(rate: Any) -> None:
    node = replace(make_node(), facts=facts([*ports(7), *ports(1, rate, first=7)]))
    assert OVER_CARDS.commands(node, {}) == []
    with pytest.raises(ParseError, match="the rate of a port that is up is"):
        OVER_CARDS.parse(node, {})


@pytest.mark.parametrize("found", ["", {}, 0, [[]]])
def test_ports_of_another_shape_are_no_skip(found: Any) -> None:
    with pytest.raises(ParseError, match="not a list of entries"):
        OVER_CARDS.parse(replace(make_node(), facts=facts(found)), {})


# -- explanations


def fault(check: str, metric: str, device: str, *evidence: str) -> Finding:
    return Finding(check, Verdict.FAIL, device, "slow", metric, evidence=evidence)


def test_a_slow_card_explains_the_slow_collective_over_the_cards() -> None:
    card = fault("rdma_loopback", "host_share", "mlx5_2")
    pointed = point_at_cause([card, *judge("slow", ports())])
    assert [(f.verdict, f.action) for f in pointed] == [
        (Verdict.FAIL, "none"),
        (Verdict.WARN, "run again"),
    ]
    assert "mlx5_2" in pointed[1].message


def test_a_slow_card_does_not_explain_slow_nvlink() -> None:
    card, group = fault("rdma_loopback", "host_share", "mlx5_2"), fault("nccl_all_gather", "busbw", "node")
    assert point_at_cause([card, group]) == [card, group]
    link = fault("gpu_inventory", "nvlink_links", "gpu3")
    assert point_at_cause([link, group])[1].verdict is Verdict.WARN


def test_a_gpus_narrow_slot_explains_its_own_way_into_a_card_only() -> None:
    slot = fault("gpu_inventory", "pcie_width", "gpu3")
    own = fault("rdma_loopback", "gpu_share", "mlx5_3", "gpu3")
    other = fault("rdma_loopback", "gpu_share", "mlx5_4", "gpu4")
    host = fault("rdma_loopback", "host_share", "mlx5_3")
    pointed = point_at_cause([slot, own, other, host])
    assert [f.verdict for f in pointed] == [Verdict.FAIL, Verdict.WARN, Verdict.FAIL, Verdict.FAIL]
