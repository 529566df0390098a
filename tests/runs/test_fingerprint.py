"""The dependencies of a pass, and its expiry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provision.checks.judging.registry import CHECKS
from provision.runs import fingerprint
from provision.runs.fingerprint import FACTS, Fingerprint, changes, of

OBSERVED: dict[str, Any] = {
    "driver.loaded_version": "570.124.06",
    "driver.userspace_version": "570.124.06",
    "driver.flavour": "open",
    "kernel.release": "6.12.1",
    "gpu.pci": [
        {"address": f"0000:{slot}b:00.0", "device_id": "10de:2330", "subsystem_id": "10de:16c1"}
        | {"link_width": 16, "link_width_max": 16}
        for slot in range(4)
    ],
    "gpu.nvswitch_count": 4,
    "firmware.gpu_uuid": [f"GPU-{slot}" for slot in range(4)],
    "firmware.gpu_vbios": ["96.00.74.00.01"] * 4,
    "firmware.gpu_gsp": ["570.124.06"] * 4,
    "firmware.bios_version": "1.4b",
    "firmware.cpu_microcode": "0x2b000603",
    "firmware.rdma": [{"board_id": "MT_838", "firmware": "28.39.3004", "link_width": 16}],
    "package.libnccl2.version": "2.29.7-1+cuda12.9",
    "package.libnccl.version": None,
}


def changed(fact: str, value: Any) -> Fingerprint:
    return of({**OBSERVED, fact: value}, {})


THEN = of(OBSERVED, {})


def test_every_part_is_observed_and_named() -> None:
    assert set(OBSERVED) == FACTS
    assert THEN.unknown == {}
    assert set(THEN.values) == set(fingerprint.PARTS)


def test_the_table_is_about_checks_and_parts_that_exist() -> None:
    assert set(fingerprint.DEPENDS) <= set(CHECKS)
    for parts in fingerprint.DEPENDS.values():
        assert parts <= set(fingerprint.PARTS)
    assert fingerprint.depends("a check of tomorrow") == set(fingerprint.PARTS)


def test_what_did_not_change_still_counts() -> None:
    for check in CHECKS:
        assert changes(check, THEN, of(OBSERVED, {})) == []


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("part", fingerprint.PARTS)
def test_each_part_expires_the_checks_that_depend_on_it_and_no_other(check: str, part: str) -> None:
    now = Fingerprint({**THEN.values, part: "another"})
    found = [change.part for change in changes(check, THEN, now)]
    assert found == ([part] if part in fingerprint.depends(check) else [])


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [
        ("driver.loaded_version", "580.126.09", "driver.loaded_version 570.124.06 → 580.126.09"),
        ("driver.loaded_version", None, "driver.loaded_version 570.124.06 → nothing"),
        ("firmware.gpu_uuid", ["GPU-0", "GPU-1", "GPU-x", "GPU-3"], "gpu.uuid[2] GPU-2 → GPU-x"),
        (
            "firmware.gpu_vbios",
            ["96.00.74.00.01", "96.00.10.00.99", "96.00.10.00.99", "96.00.74.00.01"],
            "firmware.gpu_vbios[1] 96.00.74.00.01 → 96.00.10.00.99 and 1 more",
        ),
        ("firmware.gpu_uuid", ["GPU-0"], "gpu.uuid 4 → 1 entries"),
    ],
)
def test_a_change_says_what_and_where(fact: str, value: Any, text: str) -> None:
    (change,) = changes("gpu_burn", THEN, changed(fact, value))
    assert str(change) == text


def test_a_narrow_link_and_new_card_firmware_expire_what_they_carry() -> None:
    pci = [dict(entry) for entry in OBSERVED["gpu.pci"]]
    pci[3]["link_width"] = 8
    assert [str(each) for each in changes("p2p_bandwidth", THEN, changed("gpu.pci", pci))] == [
        "gpu.link_width[3] 16 → 8"
    ]
    card = [{**OBSERVED["firmware.rdma"][0], "firmware": "28.40.1000"}]
    now = changed("firmware.rdma", card)
    assert [str(each) for each in changes("nccl_all_reduce", THEN, now)] == [
        "rdma.firmware[0] 28.39.3004 → 28.40.1000"
    ]
    assert changes("gpu_burn", THEN, now) == []


def test_what_is_not_known_on_either_side_does_not_count_as_the_same() -> None:
    without = {name: value for name, value in OBSERVED.items() if name != "firmware.gpu_vbios"}
    unread = of(without, {"firmware.gpu_vbios": "no answer within 8 s"})
    assert [str(each) for each in changes("gpu_burn", THEN, unread)] == [
        "firmware.gpu_vbios cannot be read now: no answer within 8 s"
    ]
    assert [str(each) for each in changes("gpu_burn", unread, THEN)] == [
        "firmware.gpu_vbios was not known then: no answer within 8 s"
    ]
    assert len(changes("gpu_burn", unread, unread)) == 1


def test_a_record_comes_back_as_it_was() -> None:
    kept = json.loads(json.dumps(THEN.record()))
    assert fingerprint.from_record(kept) == THEN
    assert fingerprint.from_record(kept).digest == THEN.digest
    assert THEN.digest != changed("kernel.release", "6.12.2").digest


@pytest.mark.parametrize("fact", sorted(fingerprint.SILENT))
def test_no_result_on_gpus_counts_while_one_does_not_answer(fact: str) -> None:
    """This includes results of versions that did not record the part; that alone does not expire them."""
    well, lost = changed(fact, []), changed(fact, ["0000:4b:00.0: GPU is lost"])
    unread = of(OBSERVED, {fact: "no answer within 24 s"})
    for then in (THEN, well, lost):
        assert changes("gpu_burn", then, well) == []
        assert [str(one) for one in changes("gpu_burn", then, lost)] == [
            'gpu.silent ["0000:4b:00.0: GPU is lost"]'
        ]
        assert [one.part for one in changes("gpu_burn", then, unread)] == [fact]
        assert changes("disk_speed", then, lost) == []
