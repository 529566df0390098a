"""The comparison fails when one element, unit, blank, order or exit status of a surface changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab_silicon import printf
from tests.lab_silicon.comparison import compared, listed
from tests.lab_silicon.programs import RUNS
from tests.lab_silicon.surfaces import SURFACES, Surface

Printed = Callable[[Surface], tuple[str, int]]
# surface -> (text, its replacement), once; a number is a different exit status
BREAKS: list[tuple[str, str | int, str]] = [
    ("q-x h100 550", "<retired_count>N/A</retired_count>", ""),
    ("q-x h100 550", "<ecc_object>7.16</ecc_object>", "<ecc_item>7.16</ecc_item>"),
    ("q-x h100 550 lost", "<gpu_temp>GPU is lost<", "<gpu_temp>GPU is gone<"),
    ("q-x h100 550 lost", 15, ""),
    ("q-x a100 535 mig", "<power_draw>N/A</power_draw>", "<drawn>N/A</drawn>"),
    ("q-x 3090 525", "<gpu_temp_tlimit>N/A</gpu_temp_tlimit>", ""),
    ("q-x a10g 515", "<fan_speed>N/A</fan_speed>", "<fan>N/A</fan>"),
    ("q-x h100 580", "nvsmi_device_v13.dtd", "nvsmi_device_v12.dtd"),
    ("q-x b200 580", "Insufficient Permissions", "N/A"),
    ("q-x l40s 595", " MiB</total>", " MB</total>"),
    ("q-x l40s 595", "\t\t\t<total>", "\t\t<total>"),
    ("q-x h100 550", "\t</gpu>\n\n\t<gpu", "\t</gpu>\n\t<gpu"),
    ("q-x h100 550", "\t</gpu>\n", "\t</gpu> \n"),
    ("q-x h100 550", "<gpu_temp>", "<gpu_temp> "),
    ("q-x h100 550", "<utilization>", '<utilization unit="percent">'),
    ("q-x h100 550", "345 MHz</supported", "345 GHz</supported"),
    ("q-x h100 550", "<pci_bus>", "<pci_bus>0x"),
    ("q-x h100 550", "<driver_version>", "<driver_version>v"),
    ("q-x h100 550", "</nvidia_smi_log>\n", "</nvidia_smi_log>"),
    ("q-x b200 580", "CAS_64 </atomic", "CAS_64</atomic"),
    ("q h100 550", "Performance State                     :", "Performance State                    :"),
    ("query h100 550", ", 345 MHz,", ", 345,"),
    ("query h100 550 lost", "[GPU is lost]", "GPU is lost"),
    ("query fabric h100 550", "state  Completed", "Completed"),
    ("list h100 550", "(UUID: ", "(UUID "),
    ("table h100 550", "|   0  NVIDIA", "|  0   NVIDIA"),
    ("table h100 550 lost", 0, ""),
    ("table h100 550 lost", "| N/A  ERR!    P0", "| N/A ERR!    P0 "),
    ("nvlink -s a100", " GB/s", " GB/sec"),
    ("nvlink -s h100 550", "\t Link 3: 26.562 GB/s\n", ""),
    ("nvlink -e h100 550", "Replay Errors", "Replays"),
    ("nvlink -s h100 550", "GPU 7: ", "GPU 7 "),  # after the recording's end
    ("topo -m h100 550", "NV18", "SYS"),
    ("topo -p2p h100 550", "\tX", "\t X"),
    ("gpu_burn a100", "errors: 0 - ", "errors: 0  - "),
    ("gpu_burn a100", "\tGPU 3: OK", "\tGPU 3: ok"),
    ("gpu_burn a100", "\tGPU 3: OK\n", ""),
    ("gpu_burn a100", 1, ""),
    ("all_reduce a100", "#wrong", "error"),
    ("all_reduce a100", "  (GB/s)", "  (MB/s)"),
    ("all_reduce a100", "#  Rank  0", "#   Rank  0"),
    ("all_reduce a100", 3, ""),
    ("nvbandwidth h100", "\n\nSUM ", "\nSUM "),
    ("all_reduce a100", "# Out of bounds values : 0 OK\n", ""),
    ("nvbandwidth h100", "\nSUM ", "\nSum "),
    ("ib_write_bw", "Link type       : IB", "Link layer      : IB"),
    ("sys class infiniband", "rate\t400 Gb/sec (4X NDR)", "rate\t400 Gb/s (4X NDR)"),
    ("kernel log xid 119", "NVRM: Xid (PCI:", "NVRM: Xid ("),
    ("fabric manager's log", "] [tid ", "] ["),
]


@pytest.mark.parametrize(("name", "there", "instead"), BREAKS)
def test_one_thing_altered_is_seen(name: str, there: str | int, instead: str, printed: Printed) -> None:
    text, status = printed(SURFACES[name])
    assert compared(name, text, status) == listed()[name]
    if isinstance(there, int):
        altered = compared(name, text, there)
        assert there != status
    else:
        assert there in text
        altered = compared(name, text.replace(there, instead, 1), status)
    assert altered != listed()[name]


@pytest.mark.parametrize(
    ("program", "line", "after"),
    [
        ("nccl-tests", "(elements)", "Avg bus"),
        ("perftest", " Mtu ", "#bytes"),
        ("gpu_burn", "Tested", "GPU 7: OK"),
    ],
)
def test_a_line_at_another_place_is_seen(program: str, line: str, after: str, printed: Printed) -> None:
    text, _ = printed(RUNS[program][0][0])
    rows = text.split("\n")
    moved = rows.pop(next(at for at, row in enumerate(rows) if line in row))
    rows.insert(1 + next(at for at, row in enumerate(rows) if after in row), moved)
    order = printf.order(program, "\n".join(rows))
    assert order != sorted(order)


def test_two_elements_in_the_other_order_are_seen(printed: Printed) -> None:
    text, status = printed(SURFACES["q-x h100 550"])
    rows = text.split("\n")
    at = next(number for number, row in enumerate(rows) if "<total>" in row)
    rows[at], rows[at + 1] = rows[at + 1], rows[at]
    assert compared("q-x h100 550", "\n".join(rows), status) != listed()["q-x h100 550"]


@pytest.mark.parametrize("surface", ["q-x h100 550", "topo -m h100 550"])
def test_a_listed_difference_that_is_gone_is_seen(surface: str, printed: Printed) -> None:
    """Make the simulated output match the recording in one value."""
    text, status = printed(SURFACES[surface])
    there, real = {
        "q-x h100 550": ("<display_mode>Enabled<", "<display_mode>Disabled<"),
        "topo -m h100 550": ("\tN/A\n", "\t0\n"),
    }[surface]
    assert compared(surface, text.replace(there, real), status) != listed()[surface]


@pytest.mark.parametrize(
    ("program", "there", "instead"),
    [
        ("gpu_burn", "  temps: ", " temps: "),
        ("gpu_burn", " Gflop/s) ", " Gflops) "),
        ("nccl-tests", "# Avg bus bandwidth    : ", "# Avg bus bandwidth   : "),
        ("nccl-tests", "  float", " float"),
        ("nvbandwidth", "\n 0    ", "\n 0   "),
        ("perftest", "[MiB/sec]", "[MB/sec]"),
        ("perftest", "Device         : ", "Device        : "),
    ],
)
def test_a_line_that_no_printf_prints_is_seen(
    program: str, there: str, instead: str, printed: Printed
) -> None:
    text, _ = printed(RUNS[program][0][0])
    assert printf.unknown(program, text) == []
    assert there in text
    assert printf.unknown(program, text.replace(there, instead, 1)) != []
