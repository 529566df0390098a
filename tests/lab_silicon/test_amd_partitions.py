"""Partitions and power limits of simulated AMD GPUs, as far as a lab node's files can show them."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import pytest

from gpuprov_lab.elf import kernel_module
from tests.lab_silicon.look import look_of
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
FACTS = ("amdgpu.compute_partitions", "amdgpu.memory_partitions", "amdgpu.power_limits")


def booted(node: Silicon) -> Silicon:
    place = node.root / "lib/modules" / platform.release() / "updates/dkms"
    place.mkdir(parents=True)
    (place / "amdgpu.ko").write_bytes(kernel_module("amdgpu", "6.16.13", "gpl", platform.release()))
    return node.boot()


@pytest.fixture
def node(bare: Make) -> Silicon:
    return booted(bare("mi300x", network="none"))


def seen(node: Silicon) -> list[Any]:
    found = look_of(node, FACTS)
    assert found.problems == {}
    return [found.facts[name] for name in FACTS]


def ask(node: Silicon, name: str, text: str, *slots: int) -> None:
    places = sorted(path for path in (node.state / "sys_pci").glob("0000:*") if (path / name).exists())
    for slot in slots:
        (places[slot] / name).write_text(text + "\n")


def test_a_healthy_node_and_one_gpu_that_differs(node: Silicon) -> None:
    assert seen(node) == [["SPX"], ["NPS1"], [750]]
    ask(node, "current_compute_partition", "CPX", 3)
    assert seen(node) == [["CPX", "SPX"], ["NPS1"], [750]]
    node.break_("power_limit gpu=2 percent=80")
    assert seen(node)[2] == [600, 750]


def test_of_a_module_the_first_die_has_the_limit(bare: Make) -> None:
    assert seen(booted(bare("mi250x", network="none"))) == [[""], [""], [560]]


def test_a_mode_of_memory_comes_when_the_driver_is_loaded_and_goes_at_a_boot(node: Silicon) -> None:
    ask(node, "current_memory_partition", "NPS4", *range(8))
    for words in (("rmmod", "amdgpu"), ("modprobe", "amdgpu")):
        assert node.run(*words).returncode == 0
    assert seen(node)[:2] == [["CPX"], ["NPS4"]]
    assert seen(node.boot())[:2] == [["SPX"], ["NPS1"]]
    ask(node, "current_memory_partition", "NPS3", *range(8))  # the kernel would have refused this
    for words in (("rmmod", "amdgpu"), ("modprobe", "amdgpu")):
        assert node.run(*words).returncode == 0
    assert seen(node)[1] == ["NPS1"]


def test_what_the_driver_says_goes_with_it(node: Silicon) -> None:
    assert node.run("rmmod", "amdgpu").returncode == 0
    assert seen(node) == [[], [], []]
    assert not list((node.state / "sys_pci").glob("0000:*/available_*"))
