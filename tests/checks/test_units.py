"""A number in a unit that nobody expects is refused: ten times too much would pass any limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provision.checks.check import Output
from provision.checks.gpu import gpu_burn, nvbandwidth
from provision.checks.nccl import nccl_collective
from provision.checks.network import perftest
from provision.errors import ParseError

COPIES = ("host_to_device_memcpy_ce",)


@pytest.mark.parametrize("unit", ["(Gb/s)", "(MB/s)", "(TB/s)"])
def test_a_collective_in_another_unit(unit: str, sample: Callable[[str], str]) -> None:
    text = sample("nccl_all_reduce/healthy.txt")
    assert nccl_collective.parse(text).rows
    for other in (
        text.replace("(GB/s)", unit),
        text.replace("(GB/s)", unit, 1),
        text.replace("(us)", "(ms)"),
    ):
        with pytest.raises(ParseError, match="units are not"):
            nccl_collective.parse(other)


@pytest.mark.parametrize("kind", ["json", "txt"])
def test_copies_in_another_unit(kind: str, sample: Callable[[str], str]) -> None:
    text = sample(f"p2p_bandwidth/healthy.{kind}")
    assert nvbandwidth.parse(text, COPIES)
    with pytest.raises(ParseError, match="another unit"):
        nvbandwidth.parse(text.replace("(GB/s)", "(Gb/s)"), COPIES)


def test_a_burn_in_another_unit_is_one_output_not_understood(
    sample: Callable[[str], str], make_output: Callable[..., Output]
) -> None:
    text = sample("gpu_burn/healthy.txt")
    with pytest.raises(ParseError, match="Tflop/s"):
        gpu_burn.measure(make_output("gpu_burn", text.replace("Gflop/s", "Tflop/s")))


def test_a_loopback_in_another_unit() -> None:
    head = " #bytes     #iterations    BW peak[Tb/sec]    BW average[Tb/sec]   MsgRate[Mpps]"
    text = f"Device         : mlx5_0\n Number of qps   : 4\n{head}\n 65536 1000 0.39 0.39 0.7\n{'-' * 80}\n"
    assert perftest.parse(text.replace("Tb/sec", "Gb/sec")).average
    with pytest.raises(ParseError, match="header not understood"):
        perftest.parse(text)
