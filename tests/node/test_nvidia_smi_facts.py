"""nvidia_smi.*: what nvidia-smi prints into a cell is not always the value alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.node.observe.nvidia_smi import parse_query

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
