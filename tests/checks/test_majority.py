"""The fleet's majority: the nodes it flags, the nodes it does not, and the text for a tie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.fleet.majority import Comparison, Voter, compare, places
from provision.desired import compared

COMMON: dict[str, Any] = {
    "os.id": "debian",
    "os.version_id": "13",
    "kernel.release": "6.12.1",
    "gpu.count": 8,
    "gpu.nvswitch_count": 4,
    "firmware.system": "Supermicro SYS-821GE",
    "memory.installed_gib": 2048,
    "cpu.online": 224,
    "firmware.bios_version": "1.4b",
    "firmware.cpu_microcode": "0x2b000603",
    "driver.loaded_version": "580.126.09",
    "driver.userspace_version": "580.126.09",
    "driver.flavour": "open",
}
OF_AMD: dict[str, Any] = {
    "amdgpu.loaded_version": "6.12.12",
    "amdgpu.rocm": "6.4.1-83",
    "amdgpu.devices": [{"vbios": "113-M3000100-102"}] * 8,
}
GOOD, OLD, NEW = "96.00.74.00.01", "96.00.10.00.99", "96.00.A5.00.01"


def facts(number: int, vbios: str | None = GOOD, width: int = 16, **more: Any) -> dict[str, Any]:
    """Return the facts of an H100 node, with values that are unique to it."""
    pci = [
        {
            "address": f"0000:{10 * slot:02x}:00.0",
            "device_id": "10de:2330",
            "subsystem_id": "10de:16c1",
            "link_width": width if slot == 5 else 16,
            "link_width_max": 16,
        }
        for slot in range(8)
    ]
    cards = [
        {"device": f"mlx5_{slot}", "address": "", "board_id": "MT_0000000838", "firmware": "28.39.3004"}
        | {"link_width": 16, "link_width_max": 16}
        for slot in range(2)
    ]
    own = {
        "boot.id": f"boot-{number}",
        "firmware.gpu_uuid": [f"GPU-{number}-{slot}" for slot in range(8)],
        "gpu.pci": pci,
        "firmware.gpu_vbios": None if vbios is None else [vbios] * 8,
        "firmware.gpu_gsp": ["580.126.09"] * 8,
        "firmware.rdma": cards,
        "rdma.roce": [{"device": f"mlx5_{i}", "port": "1", "trust": "dscp", "ecn": "3"} for i in range(2)],
    }
    return {**COMMON, **own, **{name.replace("__", "."): value for name, value in more.items()}}


def fleet(count: int = 20) -> dict[str, Voter]:
    return {f"gpu-{number:02}": Voter("h100-sxm", facts(number)) for number in range(1, count + 1)}


def change(voters: dict[str, Voter], name: str, **more: Any) -> None:
    number = int(name.removeprefix("gpu-"))
    voters[name] = Voter("h100-sxm", facts(number, **more))


def said(found: Comparison) -> set[tuple[str, str]]:
    return {(outlier.node, outlier.fact) for outlier in found.outliers}


def test_a_fleet_of_one_kind_is_alike_whatever_its_serial_numbers() -> None:
    found = compare(fleet())
    assert (found.outliers, found.ties, found.alone, found.compared) == ((), (), {}, 20)


def test_three_of_twenty_with_another_vbios_one_without_an_answer_and_one_tie() -> None:
    voters = fleet()
    for name in ("gpu-03", "gpu-08", "gpu-15"):
        change(voters, name, vbios=OLD)
    silent = facts(11)
    del silent["firmware.gpu_vbios"]
    voters["gpu-11"] = Voter("h100-sxm", silent, {"firmware.gpu_vbios": "no answer within 8 s"})
    for number in range(11, 21):
        name = f"gpu-{number:02}"
        voter = voters[name]
        voters[name] = Voter(voter.sku, {**voter.facts, "firmware.bios_version": "1.5"}, voter.problems)
    found = compare(voters)
    vbios = [outlier for outlier in found.outliers if outlier.fact == "firmware.gpu_vbios"]
    assert len(vbios) == len(found.outliers)
    assert [(o.node, o.found, o.unknown) for o in vbios] == [
        ("gpu-03", OLD, False),
        ("gpu-08", OLD, False),
        ("gpu-11", None, True),
        ("gpu-15", OLD, False),
    ]
    assert {(o.majority, o.agree, o.answered) for o in vbios} == {(GOOD, 16, 19)}
    assert vbios[2].problem == "no answer within 8 s"
    (tie,) = found.ties
    assert (tie.fact, tie.kind) == ("firmware.bios_version", "h100-sxm on debian 13")
    assert tie.sides == (
        ("1.4b", tuple(f"gpu-{number:02}" for number in range(1, 11))),
        ("1.5", tuple(f"gpu-{number:02}" for number in range(11, 21))),
    )


def test_the_largest_part_is_no_majority_when_it_is_less_than_half() -> None:
    """8 of 20 are no more right than 7 and 5."""
    voters = fleet()
    for number in range(9, 16):
        change(voters, f"gpu-{number:02}", vbios=OLD)
    for number in range(16, 21):
        change(voters, f"gpu-{number:02}", vbios=NEW)
    found = compare(voters)
    assert found.outliers == ()
    (tie,) = found.ties
    assert [(value, len(nodes)) for value, nodes in tie.sides] == [(GOOD, 8), (OLD, 7), (NEW, 5)]


def test_the_order_of_the_nodes_does_not_decide() -> None:
    voters = fleet(5)
    change(voters, "gpu-01", vbios=OLD)
    assert said(compare(voters)) == said(compare(dict(reversed(voters.items()))))
    assert said(compare(voters)) == {("gpu-01", "firmware.gpu_vbios")}


@pytest.mark.parametrize(("count", "alone"), [(1, 1), (2, 2), (3, 0)])
def test_fewer_than_three_are_not_compared_and_that_is_said(count: int, alone: int) -> None:
    voters = fleet(count)
    change(voters, "gpu-01", vbios=OLD)
    found = compare(voters)
    assert sum(map(len, found.alone.values())) == alone
    assert bool(found.outliers) == (count >= 3)


def test_two_answers_are_no_majority_and_no_tie() -> None:
    voters = fleet(4)
    change(voters, "gpu-01", vbios=None)
    change(voters, "gpu-02", vbios=None)
    change(voters, "gpu-03", vbios=OLD)
    found = compare(voters)
    assert (found.outliers, found.ties) == ((), ())


def test_what_could_not_be_read_is_said_even_when_nobody_else_answered() -> None:
    voters = {name: Voter(v.sku, {**v.facts, "firmware.gpu_vbios": None}) for name, v in fleet(3).items()}
    voters["gpu-02"] = Voter("h100-sxm", voters["gpu-02"].facts, {"firmware": "the probe failed: ValueError"})
    unknown = [outlier for outlier in compare(voters).outliers if outlier.fact == "firmware.gpu_vbios"]
    assert [(o.node, o.unknown, o.majority, o.problem) for o in unknown] == [
        ("gpu-02", True, None, "the probe failed: ValueError")
    ]


def test_a_fact_the_others_have_is_missed() -> None:
    voters = fleet(5)
    change(voters, "gpu-04", vbios=None)
    (outlier,) = compare(voters).outliers
    assert (outlier.node, outlier.unknown, outlier.majority) == ("gpu-04", True, GOOD)
    assert outlier.problem == "the node has no such value"


def test_products_and_systems_are_compared_apart() -> None:
    voters = fleet(6)
    for name in ("gpu-04", "gpu-05", "gpu-06"):
        change(voters, name, vbios=NEW, os__version_id="12", kernel__release="6.1.0")
    found = compare(voters)
    assert (found.outliers, found.ties, found.compared) == ((), (), 6)
    voters = {name: Voter("h200" if name > "gpu-03" else v.sku, v.facts) for name, v in fleet(6).items()}
    change(voters, "gpu-01", vbios=OLD)
    assert said(compare(voters)) == {("gpu-01", "firmware.gpu_vbios")}


def test_a_minor_release_of_the_system_is_compared_within_its_major_one() -> None:
    voters = fleet(4)
    for number, name in enumerate(voters, start=1):
        change(voters, name, os__id="rhel", os__version_id="9.3" if number == 4 else "9.4")
    assert said(compare(voters)) == {("gpu-04", "os.version_id")}


def test_machines_of_another_make_have_another_bios() -> None:
    voters = fleet(6)
    for name in ("gpu-04", "gpu-05", "gpu-06"):
        change(voters, name, firmware__system="Dell XE9680", firmware__bios_version="2.1.5")
    assert not compare(voters).found
    change(voters, "gpu-06", firmware__system="Dell XE9680", firmware__bios_version="2.0.0")
    assert said(compare(voters)) == {("gpu-06", "firmware.bios_version")}


def test_one_gpu_on_a_narrow_link_is_named_by_its_place() -> None:
    voters = fleet(4)
    change(voters, "gpu-02", width=8)
    (outlier,) = compare(voters).outliers
    assert (outlier.fact, outlier.majority, outlier.per) == ("gpu.link_width", 16, "GPU")
    assert places(outlier) == {8: [5]}


def test_a_missing_gpu_is_one_finding() -> None:
    voters = fleet(4)
    seven = facts(3)
    seven["gpu.count"] = 7
    for name in ("gpu.pci", "firmware.gpu_vbios", "firmware.gpu_gsp", "firmware.gpu_uuid"):
        seven[name] = seven[name][:7]
    voters["gpu-03"] = Voter("h100-sxm", seven)
    assert said(compare(voters)) == {("gpu-03", "gpu.count")}


def test_cards_are_compared_by_board_then_by_firmware() -> None:
    voters = fleet(5)
    cards = [dict(card) for card in facts(1)["firmware.rdma"]]
    cards[1]["firmware"] = "28.36.1010"
    change(voters, "gpu-01", firmware__rdma=cards)
    change(voters, "gpu-02", firmware__rdma=cards[:1])
    soft = {"device": "rxe0", "address": None, "board_id": None, "firmware": None, "link_width": None}
    change(voters, "gpu-03", firmware__rdma=[*facts(3)["firmware.rdma"], soft])
    found = compare(voters)
    assert said(found) == {("gpu-01", "rdma.firmware"), ("gpu-02", "rdma.boards")}
    assert places(found.outliers[0]) == {"28.36.1010": [1]}


@pytest.mark.parametrize("declared", ["firmware.gpu_vbios", "nvidia_smi.vbios_version"])
def test_what_is_declared_is_left_to_its_expectation(declared: str) -> None:
    voters = fleet(5)
    change(voters, "gpu-02", vbios=OLD)
    odd = voters["gpu-02"]
    voters["gpu-02"] = Voter(odd.sku, odd.facts, declared={declared})
    assert not compare(voters).found


def test_a_node_can_be_left_out_of_one_comparison() -> None:
    voters = fleet(5)
    change(voters, "gpu-02", vbios=OLD, width=4)
    odd = voters["gpu-02"]
    voters["gpu-02"] = Voter(odd.sku, odd.facts, ignored=["firmware.gpu_vbios"])
    assert said(compare(voters)) == {("gpu-02", "gpu.link_width")}


@pytest.mark.parametrize("fact", compared.compared_facts())
def test_every_compared_fact_can_be_the_odd_one(fact: str) -> None:
    """A listed fact that never produced a finding would be worse than an unlisted one."""
    each = compared.compared_facts()[fact]
    more = OF_AMD if each.vendor else {}
    assert bool(each.vendor) == (each.source not in compared.facts_to_ask())
    voters = {name: replace(voter, facts={**voter.facts, **more}) for name, voter in fleet(4).items()}
    odd = {**facts(2), **more}
    before = odd[each.source]
    if each.pick:
        odd[each.source] = [{**entry, each.pick: "odd"} for entry in before]
    else:
        odd[each.source] = ["odd"] * len(before) if isinstance(before, list) else "13.9"
    voters["gpu-02"] = Voter("h100-sxm", odd)
    assert ("gpu-02", fact) in said(compare(voters))


def test_what_is_right_to_differ_is_not_compared() -> None:
    unique = {"boot.id", "firmware.gpu_uuid", "nvidia_smi.serial", "nvidia_smi.uuid", "nvidia_smi.pci.bus_id"}
    assert not unique & compared.facts_to_ask()


def test_a_group_is_named_after_what_is_known() -> None:
    assert Voter(None, {}).kind == "unknown GPUs on an unknown system"
