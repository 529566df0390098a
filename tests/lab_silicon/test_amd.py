"""Simulated nodes with AMD Instinct GPUs, observed by gpuprov's program for nodes and by amd-smi."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab_silicon.amd_machine import DRIVER, installed
from tests.lab_silicon.look import look_of
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
FACTS = ("amdgpu.devices", "amdgpu.loaded_version", "amdgpu.rocm", "gpu.count", "gpu.pci")


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Silicon]:
    """Return a function that boots nodes with a driver, one per kind; tests clear the faults they set."""
    made: dict[str, Silicon] = {}

    def make(sku: str) -> Silicon:
        if sku not in made:
            folder = tmp_path_factory.mktemp(sku)
            node = Silicon(folder / "state", folder / "root")
            (node.root / "usr/share/gpu-burn").mkdir(parents=True)
            words = ["--sku", sku, "--name", "gpu-01", "--seed", "7", "--network", "none"]
            assert node.run("new", "--dir", str(node.state), *words).returncode == 0
            made[sku] = installed(node).boot()
        made[sku].fault("clear")
        return made[sku]

    return make


def devices(node: Silicon) -> list[dict[str, Any]]:
    found = look_of(node, FACTS)
    assert found.problems == {}
    return list(found.facts["amdgpu.devices"])


def document(node: Silicon, *words: str) -> Any:
    return json.loads(node.printed("amd-smi", *words, "--json"))


def test_without_the_driver_the_bus_shows_the_gpus_and_nothing_else_does(bare: Make) -> None:
    node = bare("mi300x", network="none").boot()
    found = look_of(node, FACTS)
    assert found.facts["gpu.count"] == 8
    assert {one["device_id"] for one in found.facts["gpu.pci"]} == {"1002:74a1"}
    assert found.facts["amdgpu.loaded_version"] is None
    assert {(one["driver"], one["memory_bytes"]) for one in found.facts["amdgpu.devices"]} == {(None, None)}
    done = node.run("amd-smi", "list")
    assert (done.returncode, done.stdout) == (255, "")
    assert "driver not initialized (amdgpu not found in modules)" in done.stderr
    done = node.run("modprobe", "amdgpu")
    assert done.returncode == 1
    assert "FATAL: Module amdgpu not found in directory" in done.stderr


@pytest.mark.parametrize(
    ("sku", "memory", "units", "links", "peers", "kind"),
    [
        ("mi300x", 206141652992, 304, {7}, {7}, "0x120000"),
        ("mi250x", 68702699520, 110, {6, 7}, {3, 4}, "0x038000"),
        ("mi250", 68702699520, 104, {7}, {4}, "0x038000"),
        ("mi210", 68702699520, 104, {3}, {3}, "0x038000"),
        ("mi325x", 262128 * 2**20, 304, {7}, {7}, "0x120000"),
        ("mi355x", 309220868096, 256, {7}, {7}, "0x120000"),
    ],
)
def test_a_healthy_node(
    booted: Callable[[str], Silicon],
    sku: str,
    memory: int,
    units: int,
    links: set[int],
    peers: set[int],
    kind: str,
) -> None:
    node = booted(sku)
    found = devices(node)
    assert (
        len(found) == len({one["unique_id"] for one in found}) == len({one["serial"] for one in found}) == 8
    )
    assert {one["memory_bytes"] for one in found} == {memory}
    assert {one["compute_units"] for one in found} == {units}
    assert {one["xgmi_links"] for one in found} == links
    assert {one["xgmi_peers"] for one in found} <= peers
    assert {one["driver"] for one in found} == {"amdgpu"}
    assert {(one["link_width"], one["link_width_max"]) for one in found} == {(16, 16)}
    assert {(one["uncorrected"], one["corrected"], one["bad_pages"], one["unread"]) for one in found} == {
        (0, 0, 0, "")
    }
    assert {one["deferred"] for one in found} == ({None} if sku.startswith("mi2") else {0})
    for one in found:
        assert (node.state / "sys_pci" / one["address"] / "class").read_text() == kind + "\n"


def test_an_accelerator_that_is_a_processor_too(booted: Callable[[str], Silicon]) -> None:
    """Check the forms: `amd-smi static` of an MI300A in the manual of amd-smi, lspci in AMD's guide."""
    node = booted("mi300a")
    found = devices(node)
    assert [one["address"] for one in found] == [f"000{domain}:01:00.0" for domain in range(4)]
    assert {(one["serial"], one["vbios"], one["name"]) for one in found} == {(None, None, None)}
    assert found[1]["xgmi_row"] == "2 0 2 2"
    assert found[0]["xgmi_to"].split() == [f"000{domain}:01:00.0" for domain in (1, 2, 3)]
    static = document(node, "static")["gpu_data"][0]
    enabled = [name for name, state in static["ras"]["ecc_block_state"].items() if state == "ENABLED"]
    assert (enabled, static["ras"]["bad_page_threshold"]) == (["SDMA", "GFX", "MMHUB"], "N/A")
    assert (static["limit"]["socket_power"], static["limit"]["max_power"]["value"]) == (
        {"value": 0, "unit": "W"}, 550,
    )  # fmt: skip
    assert (static["vram"]["size"]["value"], static["bus"]["bdf"]) == (96432, "0000:01:00.0")
    node.break_("ecc_uncorrectable gpu=2 count=3", "ras_errors gpu=1 block=gfx count=1")
    assert [one["uncorrected"] for one in devices(node)] == [0, 1, 0, 0], "those of memory are not the GPU's"
    controllers = look_of(node, ("edac.controllers",)).facts["edac.controllers"]
    assert [(one["driver"], one["uncorrected"]) for one in controllers] == [
        ("F19h_M90h", 3 if number == 2 else 0) for number in range(4)
    ]


def test_cards_are_joined_by_bridges(booted: Callable[[str], Silicon]) -> None:
    """The driver's row covers a card's own hive; without a bridge the row is missing."""
    node = booted("mi210")
    assert [one["xgmi_row"] for one in devices(node)][5] == "1 0 1 1"
    node.break_("bridges cards=2")
    assert {one["xgmi_row"] for one in devices(node)} == {"0 1", "1 0"}
    node.fault("clear")
    node.break_("bridges cards=1")
    assert {(one["xgmi_row"], one["xgmi_to"]) for one in devices(node)} == {(None, "")}
    done = booted("mi300x").run("fault", "--dir", str(booted("mi300x").state), "set", "bridges", "cards=1")
    assert "only cards (mi210) are joined by bridges" in done.stderr


SETS = [("6.4.1-83", "-o 400"), ("7.2.1-43", "--power-cap ppt0 450"), ("7.13.0-1", "-o 500 ppt0")]


@pytest.mark.parametrize(("release", "words"), SETS)
def test_a_limit_of_power_is_set_in_the_words_of_the_release(bare: Make, release: str, words: str) -> None:
    node = installed(bare("mi300x", network="none"), release).boot()
    watts = next(word for word in words.split() if word.isdigit())
    for _, others in SETS:
        done = node.run("amd-smi", "set", "-g", "2", *others.split())
        assert (done.returncode == 0) == (others == words or (release, others) == ("7.13.0-1", "-o 400"))
    assert "cap must be between" in node.printed(
        "amd-smi", "set", "-g", "2", *words.replace(watts, "800").split()
    )
    limits = [one["limit"] for one in document(node, "static", "--limit")["gpu_data"]]
    shown = [one.get("ppt0", {}).get("socket_power_limit") or one["socket_power"] for one in limits]
    assert [one["value"] for one in shown] == [750, 750, int(watts), *[750] * 5]
    assert [one["gpu"] for one in document(node, "static", "-g", "2", "--limit")["gpu_data"]] == [2]
    node.boot()
    assert look_of(node, ("amdgpu.power_limits",)).facts["amdgpu.power_limits"] == [750]


def test_links_are_the_same_from_both_ends(booted: Callable[[str], Silicon]) -> None:
    rows = [
        (path / "xgmi_num_links").read_text().split()
        for path in sorted((booted("mi250x").state / "sys_pci").glob("0000:[c-d]*"))
        if (path / "xgmi_num_links").exists()
    ]
    assert rows[1] == ["04", "00", "00", "01", "00", "01", "00", "00"]  # ROCm/rocm-systems issue 5763
    assert all(rows[a][b] == rows[b][a] for a in range(8) for b in range(8))


def test_unloading_takes_away_what_loading_brought(bare: Make) -> None:
    node = installed(bare("mi300x", network="none")).boot()
    assert devices(node)[0]["driver"] == "amdgpu"
    assert f"amdgpu version: {DRIVER}" in node.run("dmesg").stdout
    assert node.run("rmmod", "amdgpu").returncode == 0
    assert devices(node)[0]["driver"] is None
    assert not (node.state / "sys/class/kfd/kfd").exists()
    node.file("etc/modprobe.d/blacklist-amdgpu.conf", "blacklist amdgpu\n")
    node.boot()
    assert devices(node)[0]["driver"] is None


# fault → the GPUs that show it, and their changes from the healthy state
SHOWN: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "ecc_uncorrectable gpu=3 count=2": ((3,), {"uncorrected": 2, "blocks": "umc ue 2"}),
    "ras_errors gpu=1 block=sdma kind=de count=4": ((1,), {"deferred": 4, "blocks": "sdma de 4"}),
    "ras_corrected_few gpu=2 count=3": ((2,), {"corrected": 3, "blocks": "umc ce 3"}),
    "bad_pages gpu=4 state=pending count=2": ((4,), {"bad_pages": 2, "bad_pages_in_use": 2}),
    "bad_pages_few gpu=5 count=3": ((5,), {"bad_pages": 3}),
    "pcie_width gpu=5 width=8": ((5,), {"link_width": 8}),
    "pcie_gen gpu=6 gen=4": ((6,), {"link_speed": "16.0 GT/s PCIe"}),
    "pcie_replays_old gpu=6 count=9": ((6,), {"pcie_replays": 9}),
    "xgmi_down a=0 b=3 since=boot": ((0, 3), {"xgmi_links": 6, "xgmi_peers": 6}),
    "memory_small gpu=0 mib=65536": ((0,), {"memory_bytes": 65536 * 2**20}),
    "vbios gpu=0 version=113-M3000100-103": ((0,), {"vbios": "113-M3000100-103"}),
    "partition_mode gpu=2 mode=CPX": ((2,), {"compute_partition": "CPX"}),
}


def test_each_fault_shows_on_its_gpu_alone(booted: Callable[[str], Silicon]) -> None:
    node = booted("mi300x")
    before = devices(node)
    node.break_(*SHOWN)
    after = devices(node)
    for slot in range(8):
        wanted = {k: v for slots, differs in SHOWN.values() if slot in slots for k, v in differs.items()}
        changed = {k: v for k, v in after[slot].items() if v != before[slot][k]}
        if slot in (0, 3):  # both lists lack the broken link
            other = after[3 - slot]["address"]
            assert changed.pop("xgmi_to") == before[slot]["xgmi_to"].replace(other, "").strip().replace(
                "  ", " "
            )
            assert changed.pop("xgmi_row").split()[3 - slot] == "0"
        assert changed == wanted
    node.fault("clear")
    assert devices(node) == before


def test_a_gpu_that_is_being_reset_counts_nothing(booted: Callable[[str], Silicon]) -> None:
    node = booted("mi300x")
    node.break_("gpu_resetting gpu=3")
    one = devices(node)[3]
    assert one["uncorrected"] is None
    assert "umc: Query currently inaccessible" in one["unread"]
    assert document(node, "metric", "-e")["gpu_data"][3]["ecc"]["total_uncorrectable_count"] == "N/A"


@pytest.mark.parametrize(
    ("fault", "on_bus", "listed", "line"),
    [
        ("gpu_missing gpu=2", 7, 7, ""),
        ("gpu_off_bus gpu=2", 8, 7, "amdgpu 0000:46:00.0: amdgpu: device lost from bus!"),
        ("gpu_off_bus_at_boot gpu=2", 8, 7, "amdgpu 0000:46:00.0: amdgpu: Fatal error during GPU init"),
    ],
)
def test_a_gpu_that_is_gone(
    booted: Callable[[str], Silicon], fault: str, on_bus: int, listed: int, line: str
) -> None:
    node = booted("mi300x")
    node.break_(fault)
    if "boot" in fault:
        node.boot()
    assert look_of(node, FACTS).facts["gpu.count"] == on_bus
    assert len(document(node, "list")) == listed
    assert line in node.run("dmesg").stdout
    node.fault("clear")
    node.boot()


LINES = {
    "ecc_uncorrectable gpu=0": "{1}socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc",
    "ras_errors gpu=0 kind=ce count=5": "die: 0, 5 correctable hardware errors detected in total in umc",
    "gpu_event gpu=1 event=fatal_event": "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "gpu_reset gpu=1 result=failed": "amdgpu 0000:26:00.0: amdgpu: GPU reset(1) failed",
    "gpu_event gpu=1 event=poison": "amdgpu 0000:26:00.0: amdgpu: Poison is created",
    "bad_pages gpu=0 state=reserved count=128": "Saved bad pages 128 reaches threshold value 128",
    "aer_old gpu=0 count=1": "amdgpu 0000:05:00.0:   device [1002:74a1] error status/mask",
}


def test_what_the_kernel_says(booted: Callable[[str], Silicon]) -> None:
    node = booted("mi300x")
    before = node.run("dmesg").stdout
    node.break_(*LINES)
    said = node.run("dmesg").stdout.removeprefix(before)
    assert [line for line in LINES.values() if line not in said] == []


def test_the_driver_of_mi200_counts_without_dies(booted: Callable[[str], Silicon]) -> None:
    node = booted("mi210")
    before = node.run("dmesg").stdout
    node.break_("ecc_uncorrectable gpu=0")
    (line,) = node.run("dmesg").stdout.removeprefix(before).splitlines()
    assert line.endswith("{1}1 uncorrectable hardware errors detected in umc block")


def test_the_forms_of_releases(bare: Make) -> None:
    node = installed(bare("mi300x", network="none"), "6.3.3-74").boot()
    assert isinstance(document(node, "metric"), list)
    assert document(node, "xgmi", "-l")["error"].startswith("Parameter '-l' is invalid.")
    assert document(node, "static", "--limit")[0]["limit"]["socket_power"] == {"value": 750, "unit": "W"}
    node.file("opt/rocm/.info/version", "7.2.1-43\n")
    static = document(node, "static", "--limit")["gpu_data"][0]["limit"]
    assert static["ppt0"]["socket_power_limit"] == {"value": 750, "unit": "W"}
    assert document(node, "xgmi", "-l")["link_status"][0]["link_status"] == ["SELF", *["U"] * 7]
    node.file("opt/rocm/.info/version", "7.0.2-56\n")
    assert document(node, "xgmi", "-l")["link_status"][0]["link_status"] == [*["U"] * 7, "X"]
    node.file("opt/rocm/.info/version", "7.2.1-43\n")
    assert isinstance(document(node, "bad-pages"), list)
    assert "ROCm version: 7.2.1 | amdgpu version: 6.12.12" in node.printed("amd-smi", "version")


def test_amd_smi_and_the_kernel_agree(booted: Callable[[str], Silicon]) -> None:
    node = booted("mi300x")
    node.break_(
        "ras_errors gpu=3 block=gfx count=2",
        "xgmi_down a=1 b=4 since=boot",
        "bad_pages gpu=5",
        "hot_gpu gpu=6 degrees=30",
    )
    metric = document(node, "metric")["gpu_data"]
    assert [one["ecc"]["total_uncorrectable_count"] for one in metric] == [0, 0, 0, 2, 0, 0, 0, 0]
    assert metric[3]["ecc_blocks"]["GFX"]["uncorrectable_count"] == 2
    status = [one["link_status"].count("D") for one in document(node, "xgmi", "-l")["link_status"]]
    assert status == [0, 1, 0, 0, 1, 0, 0, 0]
    assert document(node, "topology")["gpu_data"][4]["links"][1]["link_type"] == "PCIE"
    assert document(node, "bad-pages")[5]["pending"]["status"] == "PENDING"
    heat = [one["temperature"]["hotspot"]["value"] for one in metric]
    assert heat[6] > max(heat[:6]) + 20
    assert [one["bdf"] for one in document(node, "list")] == [one["address"] for one in devices(node)]


def test_faults_of_one_vendor_are_refused_to_the_other(bare: Make) -> None:
    node, other = bare("mi300x", network="none"), bare("h100-sxm", name="gpu-02", network="none")
    for one, words, why in (
        (node, "row_remap_pending gpu=1", "the lab does not simulate it for AMD's GPUs"),
        (other, "xgmi_down a=0 b=1", "it is a fault of AMD's GPUs"),
    ):
        done = one.run("fault", "--dir", str(one.state), "set", *words.split())
        assert (done.returncode, why in done.stderr) == (2, True)


def test_older_programs_name_the_same_gpus(booted: Callable[[str], Silicon]) -> None:
    node = booted("mi250x")
    cards = json.loads(node.printed("rocm-smi", "--showbus", "--showuniqueid", "--showmaxpower", "--json"))
    assert [card["Unique ID"] for card in cards.values()] == [
        "0x" + one["unique_id"] for one in devices(node)
    ]
    assert [card.get("Max Graphics Package Power (W)") for card in cards.values()] == ["560.0", None] * 4
    assert node.printed("rocminfo").count("Device Type:             GPU") == 8


def test_a_module_of_this_vendor_changes_nothing_on_a_node_of_the_other(bare: Make) -> None:
    node = installed(bare("h100-sxm", network="none")).boot()
    assert not (node.state / "sys_module/amdgpu").exists()
    assert not Path(node.state / "sys/class/kfd").exists()
