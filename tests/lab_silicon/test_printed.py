"""The load tools against their sources: each line is one that a printf of the program can print.

printed.yml has the formats with file and line. A line that none prints is a drift of the simulator; a format
that no run prints is one that nobody simulates any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab_silicon import printf
from tests.lab_silicon.surfaces import Surface

Printed = Callable[[Surface], tuple[str, int]]
H100 = ("h100-sxm", "580.126.09")
NCCL = (("SILICON_VERSION", "2.19.6"),)
NCCL_WORDS = ("-b", "8", "-e", "128M", "-f", "4", "-g", "8")


LATENCY = ("ib_write_lat", "-d", "mlx5_0", "-F")


def run(*words: str, faults: tuple[str, ...] = (), sku: str = "h100-sxm", **more: Any) -> Surface:
    """A run of a tool with both its streams."""
    return Surface(words, sku, H100[1], str.splitlines, faults=faults, stderr=True, **more)


# program -> (run, exit status): what the formats are seen in, failures included.
RUNS = {
    "gpu_burn": [
        (run("gpu_burn", "-tc", "60"), 0),
        (run("gpu_burn", "-d"), 0),
        (run("gpu_burn", "-tc", "60", faults=("burn_errors gpu=3",)), 0),
        (run("gpu_burn", "-tc", "60", faults=("burn_dies gpu=3",)), 0),
        (run("gpu_burn", "-c", "nowhere.ptx", "60"), 123),
        (run("gpu_burn", "-l"), 0),
        (run("gpu_burn", "-m", "x"), 22),
        (run("gpu_burn", "10", faults=("fabric_down",)), 19),
    ],
    "nccl-tests": [
        (run("all_reduce_perf", *NCCL_WORDS, environment=NCCL), 0),
        (run("all_reduce_perf", "-e", "1T", "-f", "16", "-g", "8", "-c", "0", environment=NCCL), 0),
        (run("all_reduce_perf", *NCCL_WORDS, faults=("wrong_result",), environment=NCCL), 7),
        (
            run("all_reduce_perf", *NCCL_WORDS, environment=(*NCCL, ("NCCL_TESTS_MIN_BW", "9999"))),
            7,
        ),
        (run("all_reduce_perf", "-g", "9", environment=NCCL), 5),
        (run("all_reduce_perf", "-g", "8", faults=("fabric_down",), environment=NCCL), 2),
    ],
    "nvbandwidth": [
        (run("nvbandwidth", "-v", "-t", "host_to_device_memcpy_ce", "device_to_device_memcpy_read_ce"), 0),
        (run("nvbandwidth", "-t", "no_such_case"), 0),
        (
            run(
                "nvbandwidth",
                "-t",
                "device_to_device_memcpy_read_ce",
                faults=tuple(f"gpu_missing gpu={gpu}" for gpu in range(1, 8)),
            ),
            0,
        ),
    ],
    "perftest": [
        (
            run(
                "ib_write_bw", "-d", "mlx5_0", "-F", "localhost", server=("ib_write_bw", "-d", "mlx5_0", "-F")
            ),
            0,
        ),
        (
            run(
                *("ib_write_bw", "-d", "mlx5_0", "-F", "--report_gbits", "localhost"),
                server=("ib_write_bw", "-d", "mlx5_0", "-F", "--report_gbits"),
            ),
            0,
        ),
        (run(*LATENCY, "localhost", server=LATENCY), 0),
    ],
}


WORDS = {"gpu_burn": (" (DIED!)", " (WARNING!)", ", using Tensor Cores")}


@pytest.mark.parametrize("program", RUNS)
def test_every_line_is_one_of_the_source_and_every_format_is_printed(program: str, printed: Printed) -> None:
    seen = ""
    for surface, status in RUNS[program]:
        text, ended = printed(surface)
        assert printf.unknown(program, text) == []
        assert ended == status, surface.words
        seen += text
    rows = seen.replace("\r", "\n").split("\n")
    unused = [one.where for one in printf.formats(program) if not any(one.prints(row) for row in rows)]
    assert unused == []
    assert [word for word in WORDS.get(program, ()) if word not in seen] == []


def test_a_format_holds_width_and_side() -> None:
    one = printf.read("it", " %-7lu    %6.2f %s")
    assert one.prints(" 65536       12.25 x")
    assert not one.prints(" 65536      12.25 x")
    assert not one.prints(" 65536       12.2 x")
    assert printf.read("it", "<<%d C |- >>").prints("3 C - 4 C ")
    assert not printf.read("it", "<<%d C |- >>").prints("3 C -4 C ")


def test_nvbandwidth_names_its_json_as_its_source(printed: Printed) -> None:
    """json_output.cpp:25-52 of v0.8; the matrix is strings (:75-79), the sum a number."""
    text, status = printed(run("nvbandwidth", "-j", "-v", "-t", "device_to_device_memcpy_read_ce"))
    root = json.loads(text)["nvbandwidth"]
    assert status == 0
    assert set(root) == {
        "CUDA Runtime Version", "Driver Version", "GPU Device list", "git_version", "testcases", "version"
    }  # fmt: skip
    (case,) = root["testcases"]
    assert set(case) == {
        "name", "status", "bandwidth_description", "bandwidth_matrix", "sum", "max", "min", "average"
    }  # fmt: skip
    assert {type(cell) for row in case["bandwidth_matrix"] for cell in row} == {str}
    assert (case["bandwidth_matrix"][0][0], case["status"], type(case["sum"])) == ("N/A", "Passed", float)
