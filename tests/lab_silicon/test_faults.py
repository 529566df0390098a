"""The fault command: accepted arguments, stored state, and error messages."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]


def faults(node: Silicon) -> list[dict[str, object]]:
    done = node.run("fault", "--dir", str(node.state), "show", "--json")
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_a_fault_is_kept_with_its_defaults_and_replaced_by_its_like(bare: Make) -> None:
    node = bare()
    node.break_("gpu_slow gpu=3", "gpu_slow gpu=4 factor=0.5", "gpu_slow gpu=3 factor=0.9")
    assert faults(node) == [
        {"id": "gpu_slow", "gpu": 4, "factor": 0.5},
        {"id": "gpu_slow", "gpu": 3, "factor": 0.9},
    ]
    assert node.json("state.json")["faults"] == faults(node)


def test_the_order_of_a_pair_does_not_matter(bare: Make) -> None:
    node = bare()
    node.break_("slow_pair a=5 b=2")
    node.fault("set", "slow_pair", "a=2", "b=5", "factor=0.2")
    assert faults(node) == [{"id": "slow_pair", "a": 2, "b": 5, "factor": 0.2}]


def test_clear_heals_one_or_all(bare: Make) -> None:
    node = bare()
    node.break_("gpu_slow gpu=1", "gpu_slow gpu=2", "fabric_down")
    node.fault("clear", "gpu_slow", "gpu=1")
    assert [one.get("gpu") for one in faults(node)] == [2, None]
    node.fault("clear", "gpu_slow")
    assert [one["id"] for one in faults(node)] == ["fabric_down"]
    node.fault("clear")
    assert faults(node) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "burn_eror", "gpu=1"], "did you mean burn_errors"),
        (["clear", "burn_eror"], "did you mean burn_errors"),
        (["set", "burn_errors"], "burn_errors needs gpu=0..7"),
        (["set", "burn_errors", "gpu=8"], "gpu=8 is not 0..7"),
        (["set", "burn_errors", "gpu=-1"], "gpu=-1 is not 0..7"),
        (["set", "burn_errors", "gpu"], "'gpu' is not key=value"),
        (["set", "burn_errors", "gpus=1"], "did you mean gpu?"),
        (["set", "gpu_slow", "gpu=1", "factor=2"], "factor=2 is not 0.01..1.0"),
        (["set", "gpu_slow", "gpu=1", "factor=nan"], "factor=nan is not"),
        (["set", "throttle", "gpu=1", "reason=hot"], "hw_thermal or hw_power_brake or sw_thermal"),
        (["set", "slow_pair", "a=1", "b=1"], "the same GPU"),
        (["set", "xid", "gpu=0", "code=79", "text=a\nb"], "control character"),
        (["set", "tool_hang", "tool=nvidia_smi"], "nvidia-smi"),
        (["set"], "fault --list"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(bare: Make, words: list[str], said: str) -> None:
    node = bare()
    done = node.run("fault", "--dir", str(node.state), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert faults(node) == []


def test_faults_that_the_sku_cannot_have_are_refused(bare: Make) -> None:
    node = bare("l40s")
    for words in (["nvlink_down", "gpu=0", "link=3"], ["fabric_down"]):
        assert node.run("fault", "--dir", str(node.state), "set", *words).returncode == 2


def test_the_list_describes_every_fault(bare: Make) -> None:
    listed = json.loads(bare().run("fault", "--list", "--json").stdout)
    assert {"burn_errors", "slow_pair", "tool_hang", "remapped_clean"} <= {one["id"] for one in listed}
    for one in listed:
        assert one["meaning"]
        for parameter in one["parameters"]:
            assert parameter["meaning"]
            assert parameter["required"] == ("default" not in parameter)


def test_a_state_of_a_newer_schema_is_refused(bare: Make) -> None:
    node = bare()
    state = node.json("state.json")
    state["schema"] = 99
    (node.state / "state.json").write_text(json.dumps(state))
    for tool in (["nvidia-smi"], ["fault", "--dir", str(node.state), "show"]):
        done = node.run(*tool)
        assert done.returncode == 2
        assert "schema 99" in done.stderr


def test_an_unknown_tool_is_named(bare: Make) -> None:
    done = bare().run("nvidia-smy")
    assert (done.returncode, "nvidia-smy" in done.stderr) == (2, True)


def test_a_missing_gpu_leaves_the_bus_and_comes_back(bare: Make) -> None:
    node = bare()
    device = node.state / "sys_pci/0000:61:00.0"
    node.break_("gpu_missing gpu=3")
    assert not device.exists()
    node.fault("clear")
    assert (device / "current_link_width").read_text() == "16\n"
    node.break_("pcie_width gpu=3 width=4")
    assert (device / "current_link_width").read_text() == "4\n"


QUERY = "serial,uuid,vbios_version"


def test_another_gpu_and_another_vbios_show_wherever_they_are_read(node: Make) -> None:
    silicon = node()
    before = silicon.column(QUERY)
    silicon.break_("gpu_swapped gpu=3", "vbios gpu=5 version=96.00.10.00.99")
    after = silicon.column(QUERY)
    assert [i for i in range(8) if after[i] != before[i]] == [3, 5]
    serial, uuid, vbios = after[3].split(", ")
    assert serial != before[3].split(", ")[0]
    assert after[5].endswith(", 96.00.10.00.99")
    cards = sorted((silicon.state / "proc_driver/nvidia/gpus").glob("*/information"))
    assert f"GPU UUID: \t {uuid}\n" in cards[3].read_text()
    assert f"Video BIOS: \t {vbios}\n" in cards[3].read_text()
    assert "Video BIOS: \t 96.00.10.00.99\n" in cards[5].read_text()
    assert "<vbios_version>96.00.10.00.99<" in silicon.smi("-q", "-x")
    silicon.fault("clear")
    assert silicon.column(QUERY) == before
