"""Burn-in on AMD GPUs: samples parsed from amd-smi, foreign processes, and events that end a campaign.

Forms: amdsmi_cli/amdsmi_commands.py and CHANGELOG.md of ROCm/amdsmi; drivers/gpu/drm/amd of the kernel.
tests/lab_silicon/test_amd_burnin.py has the complete documents.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from provision.checks.kernel.vendors import driver_log
from provision.checks.vendors.amd import sensors
from provision.node.burnin import amd_gpus, campaign, sampler
from provision.node.burnin.amd_gpus import AMD_LIST_AND_METRIC, AMD_METRIC, AMD_VIOLATIONS, AmdGpus, amd_fatal
from provision.node.burnin.order import read_order
from provision.node.burnin.runner import Watch
from provision.node.burnin.sampler import Sampler
from provision.node.burnin.tool_output import message_of
from tests.node.burnin_order import load, order, step

GPUS = {"0000:05:00": "gpu0", "0000:26:00": "gpu1", "0000:46:00": "gpu2"}


def listed(*addresses: str) -> str:
    return json.dumps(
        [{"gpu": n, "bdf": at, "uuid": f"uuid-{at}"} for n, at in enumerate(addresses)], indent=4
    )


def metric(count: int, nested: bool = True, **more: Any) -> str:
    entries = [
        {
            "gpu": number,
            "usage": {"gfx_activity": {"value": 100, "unit": "%"}, "mm_activity": "N/A"},
            "power": {"socket_power": {"value": 738, "unit": "W"}},
            "clock": {
                "gfx_0": {"clk": {"value": 1402, "unit": "MHz"}},
                "gfx_1": {"clk": {"value": 1410, "unit": "MHz"}},
                "mem_0": {"clk": {"value": 1300, "unit": "MHz"}},
            },
            "temperature": {"edge": "N/A", "hotspot": {"value": 70 + number, "unit": "C"}, "mem": 61},
            "pcie": {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "replay_count": 3},
            "ecc": {"total_correctable_count": 2, "total_uncorrectable_count": 0},
            "mem_usage": {"used_vram": {"value": 283, "unit": "MB"}},
            "throttle": {f"{name}_violation_status": "NOT ACTIVE" for name, _ in AMD_VIOLATIONS},
            **more,
        }
        for number in range(count)
    ]
    return json.dumps({"gpu_data": entries} if nested else entries, indent=4)


ALL = ("0000:05:00.0", "0000:26:00.0", "0000:46:00.0")


@pytest.fixture
def reader() -> AmdGpus:
    return AmdGpus(GPUS)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("before", ["", "WARNING: User is missing the following required groups: render\n"])
def test_an_answer_is_a_row_for_each_gpu_in_the_words_of_nvidias(
    reader: AmdGpus, nested: bool, before: str
) -> None:
    assert reader.argv() == AMD_LIST_AND_METRIC
    rows = reader.rows(f"{before}{listed(*ALL)}\n{before}{metric(3, nested)}\n")
    assert rows is not None
    assert [device for device, _ in rows] == ["gpu0", "gpu1", "gpu2"]
    assert rows[1][1] == {
        "temperature_c": "71", "memory_c": "61", "power_w": "738.0", "sm_mhz": "1410", "mem_mhz": "1300",
        "violations": "0x0", "util_pct": "100", "mem_used_mib": "283", "ecc_ce": "2", "ecc_ue": "0",
        "pcie_gen": "5", "pcie_width": "16", "pcie_replays": "3",
        "uuid": "uuid-0000:26:00.0", "address": "0000:26:00.0",
    }  # fmt: skip
    assert reader.argv() == AMD_METRIC, "whose number is whose is known"
    assert len(reader.rows(metric(3, nested)) or ()) == 3


def test_after_a_gpu_is_lost_no_other_gets_its_samples(reader: AmdGpus) -> None:
    """The GPUs behind it move up in the list."""
    reader.rows(listed(*ALL) + "\n" + metric(3))
    assert reader.rows(metric(2)) == []
    assert reader.argv() == AMD_LIST_AND_METRIC
    rows = reader.rows(listed(ALL[0], ALL[2]) + "\n" + metric(2))
    assert rows is not None
    assert [(device, row["temperature_c"]) for device, row in rows] == [("gpu0", "70"), ("gpu2", "71")]


def test_partitions_and_a_processors_graphics_are_no_gpus_of_their_own(reader: AmdGpus) -> None:
    addresses = ("0000:05:00.0", "0000:05:00.1", "0000:e8:00.0", "0000:26:00.0")
    rows = reader.rows(listed(*addresses) + "\n" + metric(4))
    assert rows is not None
    assert [(device, row["temperature_c"]) for device, row in rows] == [("gpu0", "70"), ("gpu1", "73")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ERROR:root:Unable to get devices, driver not initialized (amdgpu not found in modules)",
        listed(*ALL),
        listed(*ALL) + "\n" + metric(3)[:900],
        listed(*ALL) + '\n{"error": "Command invalid", "code": -1}',
        listed(*ALL) + "\n" + metric(2),
        "[" * 100_000,
        '[{"gpu": 0}, {"gpu": 0}]\n[{"gpu": 0}]',
        '[1]\n{"gpu_data": 1}',
    ],
)
def test_what_is_no_answer_is_none_and_all_is_asked_again(reader: AmdGpus, text: str) -> None:
    assert reader.rows(text) is None
    assert reader.argv() == AMD_LIST_AND_METRIC


@pytest.mark.parametrize("value", ["N/A", None, True, {"value": "N/A"}, float("nan"), 1e300, [], "61"])
def test_no_value_is_kept_as_none(reader: AmdGpus, value: Any) -> None:
    text = metric(3, power={"socket_power": value}, temperature={"hotspot": value}, ecc="N/A", clock=value)
    rows = reader.rows(listed(*ALL) + "\n" + text)
    assert rows is not None
    row = rows[0][1]
    assert {row[name] for name in ("power_w", "temperature_c", "ecc_ue", "ecc_ce", "sm_mhz", "mem_mhz")} == {
        ""
    }


def test_what_holds_the_clocks_down_has_the_bits_that_the_controller_reads(reader: AmdGpus) -> None:
    assert [name for name, _ in AMD_VIOLATIONS] == list(sensors.VIOLATIONS)
    assert [bit for _, bit in AMD_VIOLATIONS] == [1 << place for place in range(len(sensors.VIOLATIONS))]

    def bits(**throttle: str) -> str:
        told: Any = {f"{name}_violation_status": state for name, state in throttle.items()}
        reader.numbers = {}
        rows = reader.rows(listed(*ALL) + "\n" + metric(3, throttle=told or "N/A"))
        assert rows is not None
        return str(rows[0][1]["violations"])

    active = dict.fromkeys(sensors.VIOLATIONS, "ACTIVE")
    assert bits(**active) == "0xf"
    assert bits(prochot="NOT ACTIVE", ppt="ACTIVE", hbm_thermal="active") == "0x4"
    assert bits(**dict.fromkeys(sensors.VIOLATIONS, "N/A")) == "", "an MI200 tells none"
    assert bits() == ""


# --- the sampler's own logic


class Told:
    def __init__(self) -> None:
        self.rows: list[tuple[str, str, dict[str, str]]] = []
        self.said: list[dict[str, Any]] = []


@pytest.fixture
def sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Sampler, Told]:
    (tmp_path / "kfd").mkdir()
    monkeypatch.setattr(sampler, "AMD_DRIVER", str(tmp_path / "kfd"))
    given = order(load("a", step("one", "true")), vendor="amd", gpus=list(GPUS), abort={"gpu_celsius": 102})
    one, told = Sampler.__new__(Sampler), Told()
    one.order, one.every = read_order(json.dumps(given)), read_order(json.dumps(given))["sampler"]
    one.gpus, one.sources, one.hot, one.limit = set(), [], {}, 102
    one.telemetry = type("Kept", (), {"add": lambda _, *row: told.rows.append(row)})()
    monkeypatch.setattr(one, "say", told.said.append)
    return one, told


def test_one_source_samples_all_gpus_once_the_driver_is_there(
    sampling: tuple[Sampler, Told], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, told = sampling
    monkeypatch.setattr(sampler, "AMD_DRIVER", str(tmp_path / "later"))
    one._find_gpus(0.0)
    assert one.sources == []
    (tmp_path / "later").mkdir()
    one._find_gpus(20.0)
    one._find_gpus(40.0)
    (source,) = one.sources
    assert source.patience >= 60.0
    assert source.take(listed(*ALL) + "\n" + metric(3))
    assert [row[:2] for row in told.rows] == [("gpu", "gpu0"), ("gpu", "gpu1"), ("gpu", "gpu2")]
    assert not source.take("Segmentation fault")


def test_a_gpu_over_the_limit_in_two_samples_is_told(sampling: tuple[Sampler, Told]) -> None:
    one, told = sampling
    one._find_gpus(0.0)
    text = listed(*ALL) + "\n" + metric(3, temperature={"hotspot": {"value": 102, "unit": "C"}})
    one.sources[0].take(text)
    assert told.said == []
    one.sources[0].take(metric(3, temperature={"hotspot": {"value": 103, "unit": "C"}}))
    assert [message["hot"]["device"] for message in told.said] == ["gpu0", "gpu1", "gpu2"]


# --- processes on the GPUs


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(amd_gpus, "KFD_PROCESSES", str(tmp_path))
    return tmp_path


def test_the_driver_says_who_computes(processes: Path) -> None:
    mine, parent = os.getpid(), os.getppid()
    for pid in (mine, parent, 2**22 + 4711):  # the last process has ended and left its entry behind
        (processes / str(pid)).mkdir()
    found = campaign.foreign_holders((), "amd")
    assert found["asked"] == "kfd"
    assert [pid for pid, _ in found["foreign"]] == [parent], "this process is ours"
    assert campaign.foreign_holders((parent,), "amd")["foreign"] == []


@pytest.mark.parametrize("name", ["amd-smi", "rocm-smi", "gpuagent", "amd-metrics-exp"])
def test_who_only_watches_is_nobody(processes: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (processes / "4711").mkdir()
    monkeypatch.setattr(amd_gpus, "stat_of", lambda _: (name, "S", 1))
    assert campaign.foreign_holders((), "amd")["foreign"] == []
    monkeypatch.setattr(amd_gpus, "stat_of", lambda _: ("python3", "S", 1))
    assert campaign.foreign_holders((), "amd")["foreign"] == [(4711, "python3")]


def test_without_the_drivers_list_open_files_say_it(processes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_gpus, "KFD_PROCESSES", str(processes / "none"))
    asked = []

    def holders(pattern: Any) -> dict[int, str]:
        asked.append([name for name in ("/dev/kfd", "/dev/kfdx", "/dev/nvidia0") if pattern.match(name)])
        return {4711: "python3"}

    monkeypatch.setattr(amd_gpus, "holders_by_file", holders)
    found = campaign.foreign_holders((), "amd")
    assert (found["asked"], found["foreign"], asked) == ("open files", [(4711, "python3")], [["/dev/kfd"]])
    assert found["why"].endswith("/none: No such file or directory")


# --- the kernel log

HERE = "amdgpu 0000:26:00.0: "
LOST = HERE + "amdgpu: device lost from bus!"
UNCORRECTABLE = "3 uncorrectable hardware errors detected in umc block"
LINES = {
    "device lost from bus": LOST,
    UNCORRECTABLE: HERE + "{1}" + UNCORRECTABLE,
    "poison is consumed by client 27": HERE + "{2}poison is consumed by client 27, kick off gpu reset flow",
    "GPU reset(2) failed": HERE + "amdgpu: GPU reset(2) failed",
    "SMU: I'm not done with your previous command": HERE + "amdgpu: SMU: I'm not done with your previous "
    "command: SMN_C2PMSG_66:0x00000012 SMN_C2PMSG_82:0x00000000",
    "Saved bad pages 128 reaches threshold value 128": HERE
    + "Saved bad pages 128 reaches threshold value 128",
}


@pytest.mark.parametrize(("what", "line"), LINES.items())
def test_what_breaks_a_gpu_is_told_and_ends_the_campaign(what: str, line: str) -> None:
    assert message_of(line, driver_log.kept_lines()) == {"kernel": {"line": line}}
    assert amd_fatal(line, driver_log.fatal_lines(), GPUS) == (what, "gpu1")
    assert amd_fatal(line, (), GPUS) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("amdgpu 0000:26:00.0: amdgpu: 2 correctable hardware errors detected in total in umc block", True),
        ("amdgpu 0000:26:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block", True),
        ("amdgpu 0000:26:00.0: amdgpu: GPU reset(1) succeeded!", True),
        ("amdgpu 0000:26:00.0: amdgpu: ring comp_1.0.1 timeout, but soft recovered", True),
        ("amdgpu 0000:26:00.0: amdgpu: Fetched VBIOS from VFCT", False),
        ("[drm] amdgpu kernel modesetting enabled.", False),
        ("app: device lost from bus", False),
    ],
)
def test_what_does_not_ends_nothing(line: str, told: bool) -> None:
    assert (message_of(line, driver_log.kept_lines()) is not None) is told
    assert amd_fatal(line, driver_log.fatal_lines(), GPUS) is None


def test_the_graphics_of_a_processor_end_nothing() -> None:
    assert amd_fatal(LOST.replace("26", "e8"), driver_log.fatal_lines(), GPUS) is None
    assert amd_fatal("amdgpu: GPU reset(1) failed", driver_log.fatal_lines(), GPUS) == (
        "GPU reset(1) failed",
        "node",
    )


def test_the_runner_aborts_with_the_line_and_its_gpu() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    one = Watch.__new__(Watch)
    abort = {"xids": [79], "kernel": list(driver_log.fatal_lines())}
    given = order(load("a", step("one", "true")), vendor="amd", gpus=list(GPUS), abort=abort)
    one.order, one.gpus, one.state = read_order(json.dumps(given)), GPUS, {"abort": None, "kernel_at": None}
    one.spool = type("Spool", (), {"event": lambda _, name, **more: told.append((name, more))})()
    one.keep = lambda: None  # type: ignore[method-assign]
    one._heard_of({"kernel": {"line": "EDAC MC1: 1 CE memory read error"}, "kernel_at": 4.0})
    assert one.state["abort"] is None
    one._heard_of({"kernel": {"line": LOST}, "kernel_at": 5.0})
    assert one.state["abort"] == {"rule": "xids", "value": "device lost from bus", "device": "gpu1"}
    assert [name for name, _ in told] == ["kernel", "kernel"]
