"""What a pass depended on, when it expires, and how the newest result of each node is found."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from provision import fingerprint, store, validated
from provision.checks.registry import CHECKS
from provision.errors import RunFolderError
from provision.fingerprint import FACTS, Fingerprint, changes, of

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


# --- the newest result of each node


def ran(runs: Path, node: str, known: Fingerprint, at: str, **verdicts: str) -> store.RunFolder:
    folder = store.RunFolder.create("validate", {}, runs)
    validated.note_look(folder, node, known)
    for check in verdicts:
        validated.note_result(folder, node, check, known, at)
    validated.publish(folder, {(node, check): verdict for check, verdict in verdicts.items()})
    return folder


def test_the_newest_result_of_each_check_is_kept(tmp_path: Path) -> None:
    first = ran(tmp_path, "gpu-01", THEN, "2026-11-01T10:00:00Z", gpu_burn="pass", gpu_inventory="pass")
    later = changed("kernel.release", "6.12.2")
    second = ran(tmp_path, "gpu-01", later, "2026-11-02T10:00:00Z", gpu_inventory="fail")
    found = validated.read(["gpu-01", "gpu-02"], tmp_path)
    assert found["gpu-02"] == {}
    burn, inventory = found["gpu-01"]["gpu_burn"], found["gpu-01"]["gpu_inventory"]
    assert (burn.verdict, burn.run, burn.known) == ("pass", first.path.name, THEN)
    assert (inventory.verdict, inventory.run, inventory.known) == ("fail", second.path.name, later)


def test_an_older_result_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="fail")
    ran(tmp_path, "gpu-01", THEN, "2026-11-01T10:00:00Z", gpu_burn="pass")
    assert validated.read(["gpu-01"], tmp_path)["gpu-01"]["gpu_burn"].verdict == "fail"


def test_what_was_not_measured_does_not_replace_what_was(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-01T10:00:00Z", gpu_burn="pass")
    folder = store.RunFolder.create("validate", {}, tmp_path)
    validated.note_look(folder, "gpu-01", THEN)
    validated.publish(folder, {("gpu-01", "gpu_burn"): "error"})  # a verdict without a measurement
    assert validated.read(["gpu-01"], tmp_path)["gpu-01"]["gpu_burn"].verdict == "pass"


def test_standings_name_what_holds_what_expired_and_what_never_ran(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="pass", gpu_inventory="warn", new="error")
    results = validated.read(["gpu-01"], tmp_path)["gpu-01"]
    now = changed("driver.loaded_version", "580.126.09")
    found = {each.check: each for each in validated.standings("gpu-01", list(CHECKS), results, THEN)}
    assert [name for name, each in found.items() if each.holds] == ["gpu_inventory", "gpu_burn"]
    assert found["p2p_bandwidth"].result is None
    expired = {each.check: each for each in validated.standings("gpu-01", list(CHECKS), results, now)}
    assert not expired["gpu_burn"].holds
    assert expired["gpu_burn"].record() == {
        "node": "gpu-01",
        "check": "gpu_burn",
        "verdict": "pass",
        "at": "2026-11-02T10:00:00Z",
        "run": results["gpu_burn"].run,
        "holds": False,
        "changes": [
            {
                "part": "driver.loaded_version",
                "then": "570.124.06",
                "now": "580.126.09",
                "unknown": "",
                "text": "driver.loaded_version 570.124.06 → 580.126.09",
            }
        ],
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ('{"format": 1, "checks": {}}', "cannot be read"),
        ('{"format": 2, "checks": {}, "fingerprints": {}}', "newer gpuprov"),
        ('{"format": 1, "checks": {"gpu_burn": {"digest": "x"}}, "fingerprints": {}}', "cannot be read"),
    ],
)
def test_a_file_that_is_none_of_ours_is_said(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "validated").mkdir()
    (tmp_path / "validated/gpu-01.json").write_text(text)
    with pytest.raises(RunFolderError, match=says):
        validated.read(["gpu-01"], tmp_path)


def test_reading_takes_one_small_file_a_node_however_many_runs_there_were(tmp_path: Path) -> None:
    for number in range(30):
        ran(tmp_path, "gpu-01", THEN, f"2026-11-02T10:00:{number:02}Z", gpu_burn="pass", gpu_inventory="pass")
    files = list((tmp_path / "validated").glob("*.json"))
    assert [file.name for file in files] == ["gpu-01.json"]
    assert files[0].stat().st_size < 4096
    begin = time.process_time()
    validated.read(["gpu-01"] * 1000, tmp_path)
    assert time.process_time() - begin < 1.0


def test_nothing_of_it_is_open_to_others(tmp_path: Path) -> None:
    ran(tmp_path, "gpu-01", THEN, "2026-11-02T10:00:00Z", gpu_burn="pass")
    assert (tmp_path / "validated").stat().st_mode & 0o077 == 0
    assert (tmp_path / "validated/gpu-01.json").stat().st_mode & 0o077 == 0
