"""Behaviour of nvidia-smi: exit statuses, effects of faults, and values of idle and loaded GPUs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from xml.etree import ElementTree as Xml

import pytest

from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
DRIVER = "580.126.09"
DOMAIN = "fabric.clusterUuid,fabric.cliqueId"


def xml(node: Silicon) -> Xml.Element:
    return Xml.fromstring(node.smi("-q", "-x"))  # noqa: S314 (our own output)


def each(node: Silicon, path: str) -> list[str | None]:
    """Return this element of each GPU."""
    return [gpu.findtext(path) for gpu in xml(node).findall("gpu")]


def test_no_driver_loaded(bare: Make) -> None:
    node = bare()
    node.install(DRIVER)
    said = node.smi(status=9)
    assert said.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_no_library_installed(bare: Make) -> None:
    assert "couldn't find libnvidia-ml.so" in bare().smi(status=12)


def test_a_library_of_another_version(node: Make) -> None:
    one = node()
    one.install("580.142")
    assert one.smi("-q", "-x", status=18) == (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.142\n"
    )
    assert "NVRM: API mismatch: the client has the version 580.142, but" in one.run("dmesg").stdout


@pytest.mark.parametrize(
    "words", [["--bad"], ["p2p", "-l", "0"], ["psm", "1"], ["-g", "0"], ["topo", "-z"], ["-i"]]
)
def test_what_does_not_exist_is_refused(node: Make, words: list[str]) -> None:
    said = node().smi(*words, status=2)
    assert said.startswith("Invalid combination of input arguments.")


def test_unknown_fields_and_a_missing_format(node: Make) -> None:
    one = node()
    said = one.smi("--query-gpu=name,cuda_version", "--format=csv", status=2)
    assert said == 'Field "cuda_version" is not a valid field to query.\n\n'
    one.smi("--query-gpu=name", status=2)


def test_csv_with_and_without_header_and_units(node: Make) -> None:
    one = node("l40s")
    lines = one.smi("--query-gpu=index,power.limit", "--format=csv").splitlines()
    assert lines[:2] == ["index, power.limit [W]", "0, 350.00 W"]
    assert one.column("index,power.limit")[7] == "7, 350.00"


def test_i_chooses_by_index_uuid_and_bus(node: Make) -> None:
    one = node()
    uuid = one.column("uuid")[5]
    bus = one.column("pci.bus_id")[5]
    for name in ("5", uuid, bus):
        assert one.column("uuid", "-i", name) == [uuid]
    assert one.smi("-L", "-i", "9", status=6) == "No devices were found\n"


def test_an_idle_link_says_generation_1_and_a_loaded_one_the_truth(node: Make) -> None:
    one = node()
    assert one.column("pcie.link.gen.current,pcie.link.gen.max") == ["1, 5"] * 8
    one.loaded(0, 1)
    assert one.column("pcie.link.gen.current") == ["5", "5", *["1"] * 6]
    one.break_("pcie_gen gpu=1 gen=3")
    assert one.column("pcie.link.gen.current")[:2] == ["5", "3"]


def test_load_shows_in_every_sensor(node: Make) -> None:
    one = node()
    fields = "temperature.gpu,power.draw,clocks.current.sm,utilization.gpu,memory.used"
    idle = [float(value) for value in one.column(fields)[0].split(", ")]
    one.loaded(0)
    busy = [float(value) for value in one.column(fields)[0].split(", ")]
    assert all(b > a * 1.5 for a, b in zip(idle, busy, strict=True) if a)
    assert busy[1] <= 700
    gpu = xml(one).findall("gpu")[0]
    assert gpu.findtext("processes/process_info/process_name") == "gpu_burn"
    assert gpu.findtext("clocks_event_reasons/clocks_event_reason_gpu_idle") == "Not Active"
    assert "gpu_burn" in one.smi()


def test_a_dead_load_tool_is_no_load(node: Make) -> None:
    one = node()
    mark = {"tool": "gpu_burn", "pid": 2**22 + 1, "since": time.time(), "slots": [0]}
    (one.state / "run/load.1").write_text(json.dumps(mark))
    assert one.column("utilization.gpu")[0] == "0"


def test_the_fabric_completes_when_fabric_manager_runs(node: Make) -> None:
    one = node(fabric=False)
    assert set(each(one, "fabric/state")) == {"In Progress"}
    (one.state / "run/fabricmanager.ready").write_text(f"{os.getpid()}\n")
    assert xml(one).findtext("gpu/fabric/state") == "Completed"
    assert xml(one).findtext("gpu/fabric/status") == "Success"
    one.break_("fabric_down")
    assert xml(one).findtext("gpu/fabric/state") == "In Progress"


@pytest.mark.parametrize(
    ("driver", "cells"),
    [
        ("535.274.02", "state  Completed, status Success"),
        ("550.163.01", "state  Completed, status Success"),
        ("580.126.09", "state  Completed, status Success"),
        ("595.71.05", "Completed, Success"),
    ],
)
def test_fabric_cells_carry_their_label_up_to_580(node: Make, driver: str, cells: str) -> None:
    assert node(driver=driver).column("fabric.state,fabric.status") == [cells] * 8


@pytest.mark.parametrize(
    ("action", "driver", "words"),
    [
        ("", "580.126.09", "Reset"),
        ("Reboot", "580.126.09", "Reboot"),
        ("Recover IMEX Domain", "580.126.09", "None"),
        ("Recover IMEX Domain", "595.71.05", "Recover IMEX Domain"),
    ],
)
def test_the_recovery_action_has_the_words_of_its_driver(
    node: Make, action: str, driver: str, words: str
) -> None:
    one = node("gb200", driver=driver)
    fault = ("recovery_action", "gpu=1", f"action={action}") if action else ("row_remap_pending", "gpu=1")
    one.fault("set", *fault)
    assert each(one, "gpu_recovery_action")[:2] == ["None", words]
    assert one.column("gpu_recovery_action")[1] == words


def test_a_board_is_in_no_nvlink_domain(node: Make) -> None:
    zeros = "00000000-0000-0000-0000-000000000000"
    assert set(node("b200").column(DOMAIN)) == {f"clusterUuid {zeros}, cliqueId 0"}
    assert set(node("b200", "595.71.05", name="gpu-02").column(DOMAIN)) == {f"{zeros}, 0"}


def test_a_tray_is_in_the_domain_of_its_rack(node: Make) -> None:
    tray = node("gb200")
    (healthy,) = set(tray.column(DOMAIN))
    assert healthy.endswith(", cliqueId 32766")
    tray.break_("nvlink_domain what=none")
    assert set(each(tray, "fabric/cliqueId")) == {"0"}
    tray.fault("clear")
    tray.break_("nvlink_domain what=clique")
    assert set(tray.column(DOMAIN)) == {healthy.replace("32766", "4026")}
    tray.fault("clear")
    tray.break_("nvlink_domain what=cluster")
    (other,) = set(tray.column(DOMAIN))
    assert other != healthy
    assert other.endswith(", cliqueId 32766")


def test_trays_of_one_lab_share_a_domain_unless_one_is_in_another_rack(node: Make) -> None:
    trays = [node("gb200", name=f"tray-{number}", seed=1000 + number) for number in (1, 2, 3)]
    trays[2].break_("nvl72_rack")
    one, two, other = (set(tray.column(DOMAIN)) for tray in trays)
    assert one == two
    assert one != other
    assert {text.rpartition(", ")[2] for text in one | other} == {"cliqueId 32766"}


def test_an_a100_has_no_fabric_state_whatever_fabric_manager_does(node: Make) -> None:
    one = node("a100-sxm-80")
    assert one.column("fabric.state,fabric.status") == ["[N/A], [N/A]"] * 8
    assert set(each(one, "fabric/state")) == {"N/A"}


def test_a_pcie_card_has_no_fabric(node: Make) -> None:
    one = node("l40s")
    assert xml(one).findtext("gpu/fabric/state") == "N/A"
    assert one.smi("nvlink", "-s") == ""
    newest = node("l40s", driver="595.71.05", name="gpu-02")
    newer = newest.smi("nvlink", "-s").splitlines()
    assert newer[1::2] == ["Device does not have or support Nvlink"] * (len(newer) // 2)


@pytest.mark.parametrize("error", ["GPU is lost", "Unknown Error", "GPU requires reset"])
def test_a_silent_gpu_is_listed_with_the_error_in_its_cells(error: str, node: Make) -> None:
    one = node(driver="550.163.01")
    healthy = one.smi("-q", "-x").splitlines()
    one.fault("set", "gpu_silent", "gpu=3", f"error={error}")
    text = one.smi("-q", "-x")
    assert [total == error for total in each(one, "fb_memory_usage/total")] == [i == 3 for i in range(8)]
    silent = xml(one).findall("gpu")[3]
    assert silent.findtext("remapped_rows") == error
    assert silent.findtext("serial", "").isdigit()
    assert text.count(f">{error}<") == 35  # as many cells as the real 550.163.01 prints
    assert len(text.splitlines()) < len(healthy)
    assert one.column("index,temperature.gpu,pcie.link.width.max")[3] == f"3, [{error}], 16"
    assert "ERR!" in one.smi(status=15)
    assert one.smi("-L").count("UUID") == 8


def test_a_lost_gpu(node: Make) -> None:
    one = node()
    one.break_("gpu_off_bus gpu=6")
    assert one.smi("-L", status=15).count("UUID") == 7
    full = one.smi("-q", "-x", status=15)
    assert full.startswith("Unable to determine the device handle for GPU6: 0000:D1:00.0: GPU is lost.")
    assert "Xid (PCI:0000:d1:00): 79" in one.run("dmesg").stdout


def test_a_missing_gpu_shifts_the_indexes(node: Make) -> None:
    one = node()
    uuids = one.column("uuid")
    one.break_("gpu_missing gpu=2")
    assert one.column("index,uuid") == [f"{i}, {uuid}" for i, uuid in enumerate(uuids[:2] + uuids[3:])]


@pytest.mark.parametrize(
    ("fault", "path", "value"),
    [
        ("ecc_uncorrectable gpu=1 count=4", "ecc_errors/volatile/dram_uncorrectable", "4"),
        ("row_remap_pending gpu=1", "remapped_rows/remapped_row_pending", "Yes"),
        ("row_remap_failure gpu=1", "remapped_rows/remapped_row_failure", "Yes"),
        ("remapped_clean gpu=1 rows=2", "remapped_rows/remapped_row_unc", "2"),
        ("ecc_aggregate_old gpu=1 count=9", "ecc_errors/aggregate/dram_correctable", "9"),
        ("pcie_width gpu=1 width=8", "pci/pci_gpu_link_info/link_widths/current_link_width", "8x"),
        ("pcie_replays_old gpu=1 count=77", "pci/replay_counter", "77"),
        ("memory_small gpu=1 mib=40000", "fb_memory_usage/total", "40000 MiB"),
    ],
)
def test_a_fault_changes_its_own_gpu_and_no_other(node: Make, fault: str, path: str, value: str) -> None:
    one = node()
    healthy = each(one, path)
    one.break_(fault)
    now = each(one, path)
    assert now[1] == value != healthy[1]
    assert now[:1] + now[2:] == healthy[:1] + healthy[2:]


@pytest.mark.parametrize(
    ("reason", "mask"),
    [("hw_thermal", 0x48), ("hw_power_brake", 0x88), ("sw_thermal", 0x20)],
)
def test_throttling_shows_under_load_only(node: Make, reason: str, mask: int) -> None:
    one = node()
    one.fault("set", "throttle", "gpu=0", f"reason={reason}", "factor=0.5")
    assert int(one.column("clocks_event_reasons.active")[0], 16) == 1
    one.loaded(0, 1)
    active = [int(text, 16) for text in one.column("clocks_event_reasons.active")]
    assert active[:3] == [mask, 4, 1]
    clocks = [float(text) for text in one.column("clocks.current.sm")]
    assert clocks[0] < 0.6 * clocks[1]


def test_remapped_rows_as_csv(node: Make) -> None:
    one = node()
    one.break_("row_remap_pending gpu=7")
    fields = "gpu_bus_id,remapped_rows.pending,remapped_rows.failure,remapped_rows.uncorrectable"
    lines = one.smi(f"--query-remapped-rows={fields}", "--format=csv,noheader").splitlines()
    assert lines[0] == "00000000:1B:00.0, 0, 0, 0"
    assert lines[7] == "00000000:DF:00.0, 1, 0, 1"


def test_an_inactive_link(node: Make) -> None:
    one = node()
    one.break_("nvlink_down gpu=2 link=4")
    status = one.smi("nvlink", "-s")
    assert status.count("<inactive>") == 1
    assert status.split("GPU 2: ")[1].split("GPU 3: ")[0].splitlines()[5] == "\t Link 4: <inactive>"
    matrix = one.smi("topo", "-m").splitlines()
    assert matrix[3].split("\t")[1] == "NV17"
    assert matrix[1].split("\t")[2] == "NV18"


def test_bridged_pairs_and_disabled_peers(node: Make) -> None:
    one = node("a100-pcie-80")

    def rows(*words: str) -> list[list[str]]:
        return [line.split("\t")[1:5] for line in one.smi("topo", *words).splitlines()[1:5]]

    assert rows("-m")[0] == [" X ", "NV12", "SYS", "SYS"]
    assert rows("-m")[3] == ["SYS", "SYS", "NV12", " X "]
    one.break_("pair_disabled a=0 b=1")
    assert rows("-p2p", "r")[0] == ["X", "NS", "OK", "OK"]


def test_nvlink_error_counters(node: Make) -> None:
    one = node()
    one.fault("set", "nvlink_errors", "gpu=1", "link=0", "count=900")
    text = one.smi("nvlink", "-e")
    assert text.split("GPU 1: ")[1].splitlines()[1:4] == [
        "\t Link 0: Replay Errors: 900",
        "\t Link 0: Recovery Errors: 9",
        "\t Link 0: CRC Errors: 900",
    ]
    assert text.count(" 900\n") == 2


@pytest.mark.parametrize(
    ("driver", "schema", "has", "lacks"),
    [
        ("535.261.03", "v12", "gpu_power_readings/power_draw", "gpu_recovery_action"),
        ("550.163.01", "v12", "gpu_reset_status/reset_required", "gpu_recovery_action"),
        ("580.126.09", "v13", "gpu_recovery_action", "gpu_reset_status"),
    ],
)
def test_generations_of_the_xml(node: Make, driver: str, schema: str, has: str, lacks: str) -> None:
    one = node(driver=driver)
    assert f'"nvsmi_device_{schema}.dtd"' in one.smi("-q", "-x")
    gpu = xml(one).findall("gpu")[0]
    assert gpu.find(has) is not None
    assert gpu.find(lacks) is None


def test_smaller_t_limit_is_hotter(node: Make) -> None:
    one = node()
    one.break_("hot_gpu gpu=3 degrees=20")
    one.loaded(*range(8))
    degrees, limits = (
        [int(str(text).split()[0]) for text in each(one, f"temperature/{name}")]
        for name in ("gpu_temp", "gpu_temp_tlimit")
    )
    assert degrees[3] == max(degrees) >= sorted(degrees)[-2] + 12
    assert limits[3] == min(limits)


def test_persistence_mode_and_reset(node: Make) -> None:
    one = node("l40s")
    assert one.column("persistence_mode") == ["Disabled"] * 8
    lines = one.smi("-pm", "1").splitlines()
    assert lines[0] == "Enabled persistence mode for GPU 00000000:16:00.0."
    assert lines[-1] == "All done."
    assert one.column("persistence_mode") == ["Enabled"] * 8
    one.smi("-r")
    one.loaded(0)
    one.smi("-r", status=1)


def test_noise_differs_between_runs_and_is_the_same_for_the_same_seed(node: Make) -> None:
    one, other = node(name="gpu-01"), node(name="gpu-02")
    first, second = one.column("power.draw"), one.column("power.draw")
    assert first != second
    (one.state / "counter").write_text("0\n")
    third = one.column("power.draw")
    (one.state / "counter").write_text("0\n")
    assert one.column("power.draw") == third
    assert other.column("power.draw") != third
    assert all(abs(float(a) / float(b) - 1) < 0.1 for a, b in zip(first, second, strict=True))


def test_no_gpu_left(node: Make) -> None:
    one = node("a100-pcie-80")
    one.break_(*(f"gpu_missing gpu={gpu}" for gpu in range(4)))
    assert one.smi("-L", status=6) == "No devices were found\n"
