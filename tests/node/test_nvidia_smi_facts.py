"""nvidia_smi.*: what nvidia-smi prints into a cell is not always the value alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.node.observe.answer import attempt
from provision.node.observe.nvidia_smi import nvidia_smi_probes, parse_query
from provision.node.observe.probe import Probe

MODE = "nvidia_smi.compute_mode"
STATE, STATUS = "nvidia_smi.fabric.state", "nvidia_smi.fabric.status"


@pytest.mark.parametrize(
    ("row", "state", "status"),
    [
        ("state  Completed, status Success", "Completed", "Success"),  # 535 to 580.95
        ("Completed, Success", "Completed", "Success"),  # 590.48
        ("state  In Progress, status [N/A]", "In Progress", "[N/A]"),
        ("[N/A], [N/A]", "[N/A]", "[N/A]"),  # before Hopper
    ],
)
def test_the_label_in_a_fabric_cell_is_not_part_of_the_state(row: str, state: str, status: str) -> None:
    assert parse_query([STATE, STATUS], f"{row}\n{row}\n") == {STATE: [state] * 2, STATUS: [status] * 2}


def test_the_capture_of_a_real_nvidia_smi(captures: Path) -> None:
    text = (captures / "nvidia-smi-query-gpu-fabric.h100.550.csv").read_text(encoding="utf-8")
    index = "nvidia_smi.index"
    assert parse_query([index, STATE, STATUS], text)[STATE] == ["Completed"] * 8


@pytest.fixture
def captures() -> Path:
    folder = os.environ.get("GPUPROV_CAPTURES", "")
    if not Path(folder).is_dir() or not folder:
        pytest.skip("GPUPROV_CAPTURES names no folder of real captures")
    return Path(folder)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("GPU is lost", "power-cycle"),
        ("Unknown Error", "power-cycle"),
        ("GPU requires reset", "reset the GPU"),
    ],
)
def test_a_gpu_that_does_not_answer_is_the_reason_of_what_is_unread(error: str, advice: str) -> None:
    power, mode = "nvidia_smi.power.limit", "nvidia_smi.compute_mode"
    rows = [f"700.00, Default, 00000000:{bus}:00.0, 15628210839{bus}" for bus in (10, 20, 30)]
    rows[1] = rows[1].replace("700.00", f"[{error}]")
    facts, problems = attempt(Probe([power, mode]), parse_query, [power, mode], "\n".join(rows))
    assert facts == {mode: ["Default"] * 3}
    assert list(problems) == [power]
    assert problems[power].startswith(
        f"GPU 1 (00000000:20:00.0, serial 1562821083920) does not answer: {error}; "
    )
    assert advice in problems[power]


def test_the_gpus_name_themselves_in_every_query() -> None:
    (probe,) = nvidia_smi_probes([STATE])
    assert probe.command[1] == "--query-gpu=fabric.state,pci.bus_id,serial"


def test_every_gpu_that_does_not_answer_is_named() -> None:
    rows = [f"[GPU is lost], 00000000:{bus}:00.0, 15628210839{bus}" for bus in (10, 20)]
    _facts, problems = attempt(Probe([MODE]), parse_query, [MODE], "\n".join(rows))
    assert all(f"(00000000:{bus}:00.0, serial 15628210839{bus})" in problems[MODE] for bus in (10, 20))


@pytest.mark.parametrize("where", ["GPU3: 0000:61:00.0", "GPU 0000:61:00.0"])
def test_one_line_in_place_of_the_answer_is_no_value(where: str) -> None:
    line = f"Unable to determine the device handle for {where}: GPU is lost.  "
    line += "Reboot the system to recover this GPU\n"
    facts, problems = attempt(Probe([MODE]), parse_query, [MODE], line)
    assert facts == {}
    assert problems[MODE] == f"{where} does not answer: GPU is lost; power-cycle the node"
