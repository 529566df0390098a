"""The simulated rvs, and the readings of AMD GPUs under its load."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.lab_silicon.amd_machine import installed
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
CONFIGURATION = """\
actions:
- name: burn
  device: all
  module: gst
  parallel: {parallel}
  duration: 20000
  ramp_interval: 1000
  hot_calls: 7000
  target_stress: {target}
  matrix_size_a: 4864
  matrix_size_b: 4096
  matrix_size_c: 8192
  data_type: bf16_r
  self_check: {check}
"""


@pytest.fixture
def amd(bare: Make) -> Callable[..., Silicon]:
    """Return a function that makes a node with a loaded driver and a clock 40 times as fast."""

    def make(sku: str = "mi300x", rocm: str = "7.2.3-90") -> Silicon:
        return installed(bare(sku, network="none", speed=40), rocm).boot()

    return make


def burn(node: Silicon, check: str = "true", target: int = 0, parallel: str = "true") -> str:
    node.file("etc/burn.conf", CONFIGURATION.format(check=check, target=target, parallel=parallel))
    done = node.run("rvs", "-c", "/etc/burn.conf")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def numbers(node: Silicon) -> list[str]:
    """Return rvs's number of each GPU, in bus order."""
    return re.findall(r"GPU\[ ?\d+ - +(\d+)\]", node.printed("rvs", "-g"))


def of(number: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(rf"\[GPU:: +{number}\]|gst {number} ", line)]


def test_it_lists_the_gpus_of_the_bus_by_the_numbers_of_their_topology(amd: Make) -> None:
    node = amd()
    text = node.printed("rvs", "-g")
    assert "(version 1.3.0)" in text
    assert len(set(numbers(node))) == 8
    listed = json.loads(node.printed("amd-smi", "list", "--json"))
    assert [str(one["kfd_id"]) for one in listed] == numbers(node)
    assert [one["bdf"] in text for one in listed] == [True] * 8
    node.fault("set", "gpu_off_bus", "gpu=2")
    assert len(numbers(node)) == 7


def test_every_gpu_gets_a_result_and_none_differs(amd: Make) -> None:
    node = amd()
    text = burn(node, target=581_000)
    assert "self-check" not in text
    for number in numbers(node):
        *_, last = of(number, text)
        rate = re.search(r"GFLOPS (\d+) Target GFLOPS: 581000 met: TRUE", last)
        assert rate, last
        assert 660_000 < int(rate[1]) < 720_000


def test_results_that_differ_change_nothing_but_their_own_lines(amd: Make) -> None:
    node = amd()
    node.fault("set", "burn_errors", "gpu=3")
    text = burn(node)
    wrong = {number for number in numbers(node) if "self-check error" in "".join(of(number, text))}
    assert wrong == {numbers(node)[3]}
    assert text.count("met: TRUE") == 8
    assert "self-check" not in burn(node, check="false")


def test_a_gpu_that_is_lost_under_load_has_no_result(amd: Make) -> None:
    node = amd()
    node.fault("set", "gpu_off_bus", "gpu=3", "onset=10")
    lost = numbers(node)[3]
    text = burn(node)
    assert of(lost, text)[-1].endswith(f"gst {lost} blas error !!!")
    assert text.count("met: TRUE") == 7
    assert len(numbers(node)) == 7
    assert "device lost from bus!" in node.printed("dmesg")


@pytest.mark.parametrize(
    ("fault", "low", "high"),
    [
        (("gpu_slow", "gpu=3", "factor=0.7"), 0.67, 0.73),
        (("throttle", "gpu=3", "factor=0.6"), 0.57, 0.63),
        (("power_limit", "gpu=3", "percent=60"), 0.81, 0.87),
    ],
)
def test_what_makes_a_gpu_slow(amd: Make, fault: tuple[str, ...], low: float, high: float) -> None:
    node = amd("mi250x")
    node.fault("set", *fault)
    text = burn(node)
    rates = [float(re.findall(r"GFLOPS (\d+) Target", "".join(of(one, text)))[0]) for one in numbers(node)]
    assert low < rates[3] / rates[0] < high


def test_without_the_driver_there_is_no_gpu(bare: Make) -> None:
    node = bare("mi300x", network="none").boot()
    assert "No supported GPUs available." in node.printed("rvs", "-g")
    assert "No AMD compatible GPU found!" in burn(node)


def test_a_word_that_it_does_not_know(amd: Make) -> None:
    done = amd().run("rvs", "--burn")
    assert done.returncode == 255
    assert "unexpected command line argument: --burn" in done.stderr


def test_gpus_under_load_are_warm_and_at_their_limit_of_power(amd: Make) -> None:
    node = amd()
    rest = json.loads(node.printed("amd-smi", "metric", "--json"))["gpu_data"][0]
    node.file(
        "etc/burn.conf",
        CONFIGURATION.format(check="true", target=0, parallel="true").replace("20000", "90000"),
    )
    with subprocess.Popen(
        node.command("rvs", "-c", "/etc/burn.conf"), env=node.environment(), stdout=subprocess.DEVNULL
    ) as rvs:
        time.sleep(1.5)
        load = json.loads(node.printed("amd-smi", "metric", "--json"))["gpu_data"][0]
        rvs.terminate()
    assert (rest["usage"]["gfx_activity"]["value"], load["usage"]["gfx_activity"]["value"]) == (0, 100)
    assert load["temperature"]["hotspot"]["value"] > rest["temperature"]["hotspot"]["value"] + 15
    assert load["power"]["socket_power"]["value"] > 700
    assert load["throttle"]["ppt_violation_status"] == "ACTIVE"
    assert load["throttle"]["prochot_violation_status"] == "NOT ACTIVE"
    assert (
        json.loads(node.printed("amd-smi", "metric", "--json"))["gpu_data"][0]["usage"]["gfx_activity"][
            "value"
        ]
        == 0
    )
