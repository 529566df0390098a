"""Samples parsed from the output of tools, and their storage."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from provision.node.burnin import sampler
from provision.node.burnin.sampler import Telemetry
from provision.node.burnin.tool_output import (
    GPU_FIELDS,
    ReplayRows,
    gpu_row,
    ipmi_row,
    nvlink_rows,
    without_links,
)

FIXTURES = Path(__file__).parents[1] / "fixtures/gpu_inventory"
NAMES = [name for name, _ in GPU_FIELDS]
LINE = (
    "3, 64, 71, 698.214, 1980, 2619, 0x0000000000000004, 100, 73412, 0, 0, 5, 16, "
    "GPU-5f1e, 1650922000000, 00000000:9B:00.0"
)


class Room:
    """A disk with or without free space."""

    def __init__(self) -> None:
        self.has = True

    def telemetry(self) -> bool:
        return self.has


class Kept:
    """A telemetry file with a fake clock and a log of its reports on free space."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.room, self.said, self.clock = file, Room(), list[bool](), 1000.0
        self.telemetry = Telemetry(str(file), self.room, self.said.append)
        self.add = self.telemetry.add
        monkeypatch.setattr(sampler, "since_boot", lambda: self.clock)

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    def metrics(self) -> list[str]:
        return [line.rpartition(",")[2] for line in self.lines()]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(tmp_path / "boot.csv", monkeypatch)


def test_a_line_of_nvidia_smi_is_a_row() -> None:
    found = gpu_row(LINE, NAMES)
    assert found is not None
    index, metrics = found
    assert index == 3
    assert metrics["temperature_c"] == "64"
    assert metrics["power_w"] == "698.2"
    assert metrics["throttle"] == "0x4"
    assert metrics["address"] == "00000000:9B:00.0"


@pytest.mark.parametrize(
    ("error", "code"), [("GPU is lost", "15"), ("GPU requires reset", "16"), ("Unknown Error", "999")]
)
@pytest.mark.parametrize("index", ["3", "[GPU is lost]"])
def test_a_gpu_that_does_not_answer_is_a_row_with_nvmls_code(error: str, code: str, index: str) -> None:
    cells = LINE.split(", ")
    for metric in ("temperature_c", "power_w", "sm_mhz", "util_pct", "ecc_ue"):
        cells[NAMES.index(metric)] = f"[{error}]"
    cells[0] = index
    found = gpu_row(", ".join(cells), NAMES, 3)
    assert found is not None
    assert (found[0], found[1]["nvml_error"], found[1]["temperature_c"]) == (3, code, "")
    assert found[1]["address"] == "00000000:9B:00.0"


def test_one_broken_sensor_is_no_gpu_that_does_not_answer() -> None:
    found = gpu_row(LINE.replace("698.214", "[Unknown Error]"), NAMES)
    assert found is not None
    assert "nvml_error" not in found[1]


@pytest.mark.parametrize(
    "said", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]"]
)
def test_no_value_is_kept_as_none(said: str) -> None:
    found = gpu_row(LINE.replace("698.214", said).replace("0x0000000000000004", said), NAMES)
    assert found is not None
    assert (found[1]["power_w"], found[1]["throttle"]) == ("", "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Unable to determine the device handle for GPU3: 0000:9B:00.0: GPU is lost.",
        LINE.rpartition(",")[0],
        LINE.replace("3,", "x,", 1),
        "\x00\x7fELF",
    ],
)
def test_what_is_no_row_is_none(line: str) -> None:
    assert gpu_row(line, NAMES) is None


def test_what_did_not_change_is_left_out(kept: Kept) -> None:
    kept.add("gpu", "gpu0", {"temperature_c": "40", "power_w": "70.0"})
    kept.add("gpu", "gpu1", {"temperature_c": "41"})
    kept.add("gpu", "gpu0", {"temperature_c": "41", "power_w": "70.0"})
    kept.add("gpu", "gpu0", {"temperature_c": "41", "power_w": ""})
    kept.add("gpu", "gpu0", {"temperature_c": "41", "power_w": ""})
    assert [line.split(",", 2)[2] for line in kept.lines()] == [
        "gpu,gpu0,temperature_c=40;power_w=70.0",
        "gpu,gpu1,temperature_c=41",
        "gpu,gpu0,temperature_c=41",
        "gpu,gpu0,power_w=",
        "gpu,gpu0,",
    ]


def test_counters_that_stand_still_are_kept_seldom(kept: Kept) -> None:
    for kept.clock, replays in ((1000.0, "0"), (1010.0, "0"), (1020.0, "7"), (1045.0, "7"), (1051.0, "7")):
        kept.add("errors", "gpu0", {"pcie_replays": replays}, seldom=30.0)
    assert [line.split(",")[1::3] for line in kept.lines()] == [
        ["1000.0", "pcie_replays=0"],
        ["1020.0", "pcie_replays=7"],
        ["1051.0", ""],
    ]


def test_now_and_then_a_row_is_whole(kept: Kept) -> None:
    for kept.clock in (1000.0, 1300.0, 1601.0):
        kept.add("gpu", "gpu0", {"temperature_c": "40"})
    assert kept.metrics() == ["temperature_c=40", "", "temperature_c=40"]


def test_no_value_breaks_a_row(kept: Kept) -> None:
    kept.add("ipmi", "node", {"a;b=c,d\ne": "1;x=2,3\n4" + "y" * 100})
    (line,) = kept.lines()
    assert line.split(",", 4)[4].count("=") == 1
    assert len(line.split(",")) == 5
    assert len(line) < 150


def test_it_stops_for_want_of_room_and_goes_on_with_whole_rows(kept: Kept) -> None:
    for has, celsius in ((True, "40"), (False, "41"), (True, "40")):
        kept.room.has, kept.telemetry.look_again = has, 0.0
        kept.add("gpu", "gpu0", {"temperature_c": celsius})
    assert kept.said == [True, False]
    assert kept.metrics() == ["temperature_c=40", "temperature_c=40"]


def test_a_full_disk_leaves_no_half_row(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.add("gpu", "gpu0", {"temperature_c": "40"})

    def half(handle: int, data: bytes) -> None:
        os.write(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sampler, "write_all", half)
    kept.add("gpu", "gpu0", {"temperature_c": "41"})
    assert kept.said == [True]
    assert kept.metrics() == ["temperature_c=40"]


def test_a_row_cut_by_a_crash_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "boot.csv"
    file.write_text("1.0,1.0,gpu,gpu0,temperature_c=40\n1.5,1.5,gp")
    Telemetry(str(file), Room(), lambda _: None).add("gpu", "gpu0", {"temperature_c": "41"})
    first, cut, last = file.read_text().splitlines()
    assert (first[-2:], cut, last[-2:]) == ("40", "1.5,1.5,gp", "41")


def test_replays_are_in_the_column_that_says_so() -> None:
    reader = ReplayRows()
    assert reader.row("    0      0      0      7") is None, "no column has a name yet"
    assert reader.row("# gpu  sbecc  dbecc    pci ") is None
    assert reader.row("# Idx   errs   errs   errs ") is None
    assert reader.row("    2      0      0     17 ") == (2, {"pcie_replays": "17"})
    assert reader.row("    2      0      0      - ") == (2, {"pcie_replays": ""})


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("# gpu sbecc dbecc   pci", "    3     0     0100000"),  # 470.256.02
        ("# gpu  sbecc  dbecc    pci ", "    3      0      0 100000 "),  # 550.163.01
    ],
)
def test_a_count_that_fills_its_column_is_read(header: str, row: str) -> None:
    reader = ReplayRows()
    assert reader.row(header) is None
    assert reader.row(row) == (3, {"pcie_replays": "100000"})


def test_nvlink_errors_are_summed_over_what_counts_as_an_error() -> None:
    text = (
        "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: Replay Errors: 0\n\t Link 0: CRC Errors: 0\n\n"
        "GPU 1: NVIDIA B200 (UUID: GPU-2)\n\t Link 4: Tx packets: 900\n\t Link 4: Rx Errors: 2\n"
        "\t Link 4: FEC Errors - 0: 55\n\t Link 4: Link recovery successful events: 9\n"
        # Not errors: a healthy B300 counts these from boot on (driver 595.91.07, public report).
        "\t Link 4: FEC Errors - 1: 7\n\t Link 4: Raw BER Lane 0: 2061\n\t Link 4: Raw Errors Lane 0: 82\n"
        "\t Link 7: Symbol Errors: 3\n\t Link 7: Symbol BER: 15e-255\n"
    )
    assert nvlink_rows(text) == {
        0: {"nvlink_errors": "0"},
        1: {"nvlink_errors": "5", "link4": "2", "link7": "3"},
    }
    assert nvlink_rows("No devices were found") == {}
    assert not without_links("No devices were found")
    assert without_links("GPU 0: NVIDIA L40S (UUID: GPU-1)\n")
    assert without_links("")


def test_recorded_nvlink_counters_are_read() -> None:
    healthy = nvlink_rows((FIXTURES / "nvlink-errors-h100.txt").read_text())
    assert healthy
    assert {row["nvlink_errors"] for row in healthy.values()} == {"0"}
    bad = nvlink_rows((FIXTURES / "nvlink-errors-h100-gpu5.txt").read_text())
    assert [gpu for gpu, row in bad.items() if row["nvlink_errors"] != "0"] == [5]


def test_nvlink_counters_of_driver_470_are_read() -> None:
    lines = (
        "0 replay errors",
        "6 recovery errors",
        "1 flit CRC errors",
        "",
        "Lane 0 ECC Correction Count: 9",
    )
    text = "GPU 0: NVIDIA A100 (UUID: GPU-0)\n" + "".join(f"\t Link 2: {line}\n" for line in lines)
    assert nvlink_rows(text) == {0: {"nvlink_errors": "7", "link2": "7"}}


def test_ipmi_tells_of_fans_and_temperatures() -> None:
    text = "Inlet Temp,24,degrees C,ok\nFAN 1A,9800,RPM,ok\nPSU1,230,Watts,ok\nFAN 2,,RPM,ns\nbroken\n"
    assert ipmi_row(text) == {"inlet_temp_c": "24", "fan_1a_rpm": "9800"}


def test_readings_for_root_alone_are_no_values() -> None:
    cells = LINE.split(", ")
    cells[1:4] = ["[Insufficient Permissions]"] * 3
    found = gpu_row(", ".join(cells), NAMES)
    assert found is not None
    assert (found[1]["temperature_c"], found[1]["memory_c"], found[1]["power_w"]) == ("", "", "")
