"""The simulated TransferBench: devices in HIP's order, and link rates according to the wiring."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.silicon import Silicon

ADDRESS = re.compile(r"^ GPU (\d\d) \|.*\| ([0-9a-f]{4}:[0-9a-f]{2}:00\.0) ", re.MULTILINE)


def node_of(folder: Path, sku: str = "mi300x", seed: int = 7) -> Silicon:
    node = Silicon(folder / "state", folder / "root")
    (node.root / "usr/share/gpu-burn").mkdir(parents=True)
    words = ["--sku", sku, "--name", "gpu-01", "--seed", str(seed), "--speed", "100000", "--network", "none"]
    assert node.run("new", "--dir", str(node.state), *words).returncode == 0
    return installed(node).boot()


def listed(node: Silicon, visible: str | None = None) -> list[str]:
    """Return PCI addresses in the order in which TransferBench numbers the GPUs."""
    if visible is None:
        seen = node.run("TransferBench")
    else:
        seen = node.run("TransferBench", HIP_VISIBLE_DEVICES=visible)
    found = ADDRESS.findall(seen.stdout)
    assert [int(number) for number, _ in found] == list(range(len(found)))
    return [address for _, address in found]


def rows(node: Silicon) -> dict[str, list[float]]:
    done = node.run("TransferBench", "p2p", "64M", P2P_MODE="1")
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^ +([CG]PU \d\d) +->(.*)$", done.stdout, re.MULTILINE)
    return {name: [float(cell) for cell in cells.split()] for name, cells in found}


def test_the_order_is_hips_and_a_list_of_visible_devices_shortens_it(tmp_path: Path) -> None:
    orders = [listed(node_of(tmp_path / str(seed), seed=seed)) for seed in range(1, 7)]
    assert all(len(set(order)) == 8 for order in orders)
    in_order = [order == sorted(order) for order in orders]
    assert True in in_order
    assert False in in_order, "on some machines HIP's order is not the bus's"
    node = node_of(tmp_path / "few")
    assert listed(node, "2,0") == [listed(node)[place] for place in (2, 0)]


def test_pairs_of_an_mi250x_are_as_fast_as_their_links(tmp_path: Path) -> None:
    node = node_of(tmp_path, "mi250x")
    place = {address: number for number, address in enumerate(listed(node))}
    order = [place[address] for address in sorted(place)]  # the number of each GPU, in bus order
    found = rows(node)
    processors = len(found) - 8

    def rate(one: int, other: int) -> float:
        return found[f"GPU {order[one]:02d}"][processors + order[other]]

    assert rate(0, 1) > 60 > rate(0, 6) > 45 > 35 > rate(0, 2) > 30
    node.break_("xgmi_down a=0 b=1", "memory_slow gpu=3 factor=0.5")
    healthy, found = found, rows(node)
    assert rate(0, 1) < 40
    slow = f"GPU {order[3]:02d}"
    assert found[slow][processors + order[3]] < 0.6 * healthy[slow][processors + order[3]]


def test_without_the_driver_it_says_so(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    assert node.run("rmmod", "amdgpu").returncode == 0
    done = node.run("TransferBench", "p2p", "64M")
    assert done.returncode == 255
    assert "no ROCm-capable device is detected" in done.stderr


@pytest.mark.parametrize("gone", [0, 7])
def test_a_gpu_that_fell_off_is_not_offered(tmp_path: Path, gone: int) -> None:
    node = node_of(tmp_path)
    before = listed(node)
    node.break_(f"gpu_off_bus gpu={gone}")
    assert len(listed(node)) == 7
    assert set(listed(node)) < set(before)
