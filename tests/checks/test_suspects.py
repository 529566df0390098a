"""The culprits behind slow cells and behind a slow group."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.judge import Finding, Verdict
from provision.checks.suspects import Cell, explain, point_at_cause


def cells(gpus: int) -> set[Cell]:
    return set(itertools.permutations(range(gpus), 2))


def touching(gpu: int, gpus: int) -> set[Cell]:
    return {cell for cell in cells(gpus) if gpu in cell}


def names(slow: set[Cell], gpus: int = 8) -> list[str]:
    return [culprit.device for culprit in explain(slow, cells(gpus))]


def test_nothing_slow_nobody_to_blame() -> None:
    assert names(set()) == []


def test_both_directions_of_a_pair_are_one_culprit() -> None:
    assert names({(2, 6), (6, 2)}) == ["gpu2-gpu6"]
    assert names({(6, 2)}) == ["gpu2-gpu6"]


def test_two_pairs_that_share_a_gpu_are_two_pairs() -> None:
    assert names({(2, 6), (2, 5)}) == ["gpu2-gpu5", "gpu2-gpu6"]


def test_a_gpu_slow_only_as_a_sender_is_one_culprit() -> None:
    assert names({(5, other) for other in range(8) if other != 5}) == ["gpu5"]


def test_a_gpu_is_to_blame_though_one_of_its_links_is_fine() -> None:
    assert names(touching(5, 8) - {(5, 0), (0, 5)}) == ["gpu5"]


def test_a_slow_gpu_and_another_slow_pair() -> None:
    assert names(touching(1, 8) | {(3, 4)}) == ["gpu1", "gpu3-gpu4"]


def test_everything_slow_is_the_node() -> None:
    assert names(cells(8)) == ["node"]
    assert names(cells(4), 4) == ["node"]


def test_two_gpus_have_one_pair() -> None:
    assert names(cells(2), 2) == ["gpu0-gpu1"]


@given(st.integers(4, 16), st.data())
def test_one_bad_gpu_is_found_among_any_number(gpus: int, data: st.DataObject) -> None:
    gpu = data.draw(st.integers(0, gpus - 1))
    assert names(touching(gpu, gpus), gpus) == [f"gpu{gpu}"]


@given(st.integers(2, 8), st.data())
def test_every_slow_cell_has_exactly_one_culprit_that_touches_it(gpus: int, data: st.DataObject) -> None:
    slow = data.draw(st.sets(st.sampled_from(sorted(cells(gpus)))))
    culprits = explain(slow, cells(gpus))
    told = [cell for culprit in culprits for cell in culprit.cells]
    assert sorted(told) == sorted(slow)
    assert len(culprits) <= len({tuple(sorted(cell)) for cell in slow})
    for culprit in culprits:
        gpus_named = {int(part[3:]) for part in culprit.device.split("-") if part != "node"}
        for cell in culprit.cells:
            assert culprit.device == "node" or gpus_named <= set(cell)


@given(st.sets(st.sampled_from(sorted(cells(8)))), st.randoms())
def test_the_order_of_cells_does_not_matter(slow: set[Cell], random: st.randoms) -> None:  # type: ignore[valid-type]
    shuffled = sorted(slow)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert explain(shuffled, sorted(cells(8), reverse=True)) == explain(slow, cells(8))


PAIR = Finding("p2p_bandwidth", Verdict.FAIL, "gpu2-gpu6", "slow", "p2p_read", 170.0, "GB/s")
GROUP = Finding("nccl_all_reduce", Verdict.FAIL, "node", "all-reduce is 241 GB/s", "busbw", 241.0, "GB/s")
WRONG = Finding("nccl_all_reduce", Verdict.FAIL, "node", "wrong sums", "wrong", 96)


def test_a_slow_group_points_at_the_slow_pair() -> None:
    pair, group = point_at_cause([PAIR, GROUP])
    assert pair == PAIR
    assert (group.verdict, group.device, group.value) == (Verdict.WARN, "node", 241.0)
    assert "consistent with gpu2-gpu6, found by p2p_bandwidth" in group.message


def test_a_slow_group_without_a_cause_stays_the_nodes_failure() -> None:
    assert point_at_cause([GROUP]) == [GROUP]


def test_a_faulty_burn_does_not_explain_a_slow_group() -> None:
    burn = Finding("gpu_burn", Verdict.FAIL, "gpu3", "wrong results", "errors", 12)
    assert point_at_cause([burn, GROUP]) == [burn, GROUP]


def test_wrong_sums_are_never_explained_away() -> None:
    assert point_at_cause([PAIR, WRONG])[1] == WRONG


@pytest.mark.parametrize("verdict", [Verdict.WARN, Verdict.ERROR, Verdict.PASS])
def test_only_a_failed_pair_is_a_cause(verdict: Verdict) -> None:
    pair = Finding("p2p_bandwidth", verdict, "gpu2-gpu6", "", "p2p_read")
    assert point_at_cause([pair, GROUP])[1] == GROUP


def test_all_culprits_are_named() -> None:
    other = Finding("gpu_inventory", Verdict.FAIL, "gpu4", "two links down", "nvlink_links", 16)
    group = point_at_cause([PAIR, other, GROUP])[2]
    assert (group.verdict, group.device) == (Verdict.WARN, "node")
    assert "gpu2-gpu6, gpu4" in group.message


def test_cards_that_suffer_from_access_control_are_not_accused_beside_it() -> None:
    bridges = Finding("host_health", Verdict.FAIL, "node", "8 PCI bridges redirect peer traffic", "acs", 8)
    cards = [
        Finding("rdma_loopback", Verdict.FAIL, f"mlx5_{n}", "slow", "gpu_share", 44.0, evidence=(f"gpu{n}",))
        for n in range(8)
    ]
    first, *pointed = point_at_cause([bridges, *cards])
    assert first == bridges
    assert {finding.verdict for finding in pointed} == {Verdict.WARN}
    assert all("consistent with node, found by host_health" in finding.message for finding in pointed)
    assert point_at_cause(cards) == cards


@pytest.mark.parametrize("metric", ["xid.79", "unreadable.nvidia_smi", "driver_gpus"])
def test_the_card_beside_a_lost_gpu_is_not_accused_of_it(metric: str) -> None:
    lost = Finding("gpu_inventory", Verdict.FAIL, "gpu0", "GPU is lost", metric)
    card = Finding("rdma_loopback", Verdict.FAIL, "mlx5_7", "GPU memory cannot be registered", "gpu")
    assert point_at_cause([lost, card])[1].verdict is Verdict.WARN
    assert point_at_cause([replace(lost, metric="ecc"), card])[1] == card
    slow = replace(card, metric="host_share")
    assert point_at_cause([lost, slow])[1] == slow, "host memory is reached without any GPU"
