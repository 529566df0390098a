"""Facts nvidia_smi.*: cells in the output of nvidia-smi may hold more than the value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.node.observe.answer import attempt
from provision.node.observe.nvidia_smi import nvidia_smi_probes, parse_query
from provision.node.observe.probe import Probe
from tests.node.machine import Tree

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


SILENT = "nvidia_smi.silent"
ROWS = [f"34, 00000000:{bus}:00.0, 15628210839{bus}" for bus in (10, 20, 30)]


def machine_of(tree: Tree, answer: str) -> None:
    """Create three GPUs on the bus, a loaded driver, and an nvidia-smi that prints `answer`."""
    for bus in (10, 20, 30):
        tree.lines(
            f"/sys/bus/pci/devices/0000:{bus}:00.0", vendor="0x10de", device="0x26b9", **{"class": "0x030200"}
        )
    tree.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.126.09\n")
    tree.tool("nvidia-smi", f"echo run >> {tree.root}/calls\ncat <<'END'\n{answer}\nEND")


@pytest.mark.parametrize(
    ("answer", "silent"),
    [
        ("\n".join(ROWS), []),
        (
            "\n".join([ROWS[0], ROWS[1].replace("34", "[GPU is lost]"), ROWS[2]]),
            ["GPU 1 (00000000:20:00.0, serial 1562821083920): GPU is lost"],
        ),
        ("\n".join([ROWS[0], ROWS[2]]), ["0000:20:00.0: not listed by nvidia-smi"]),
        (
            "Unable to determine the device handle for GPU1: 0000:20:00.0: Unknown Error",
            ["GPU1: 0000:20:00.0: Unknown Error"],
        ),
        ("\n".join(ROWS).replace("34", "[N/A]"), []),
    ],
)
def test_the_gpus_that_do_not_answer_the_driver(answer: str, silent: list[str], tree: Tree) -> None:
    machine_of(tree, answer)
    assert tree.values(SILENT) == {SILENT: silent}


@pytest.mark.parametrize(
    "answer", ["No devices were found", "Failed to initialize NVML: Driver/library version mismatch", ""]
)
def test_an_answer_about_no_gpu_is_not_that_all_are_well(answer: str, tree: Tree) -> None:
    machine_of(tree, answer)
    assert list(tree.ask(SILENT)[1]) == [SILENT]


def test_without_permission_nobody_knows(tree: Tree) -> None:
    machine_of(tree, ROWS[0].replace("34", "[Insufficient Permissions]"))
    assert "gpuprov has to be root" in tree.ask(SILENT)[1][SILENT]


def test_it_costs_no_further_call(tree: Tree) -> None:
    machine_of(tree, "\n".join(f"700.00, {row}" for row in ROWS))
    found = tree.values("nvidia_smi.power.limit", SILENT)
    assert found == {"nvidia_smi.power.limit": ["700.00"] * 3, SILENT: []}
    assert (tree.root / "calls").read_text() == "run\n"


def test_without_a_driver_nothing_is_asked(tree: Tree) -> None:
    machine_of(tree, "\n".join(ROWS))
    (tree.root / "proc/driver/nvidia/version").unlink()
    assert tree.values(SILENT) == {SILENT: []}
    assert not (tree.root / "calls").exists()


def test_gpus_of_another_driver_are_not_its_to_answer_for(tree: Tree) -> None:
    machine_of(tree, "\n".join(ROWS[:2]))
    tree.link("/sys/bus/pci/devices/0000:30:00.0/driver", "../../../bus/pci/drivers/vfio-pci")
    assert tree.values(SILENT) == {SILENT: []}
