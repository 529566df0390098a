"""Runs that together exercise every format of the load tools, failures included."""

from __future__ import annotations

from typing import Any

from tests.lab_silicon.surfaces import Surface

H100 = ("h100-sxm", "580.126.09")
NCCL = (("SILICON_VERSION", "2.19.6"),)
LATENCY = "ib_write_lat -d mlx5_0 -F"
BANDWIDTH = "ib_write_bw -d mlx5_0 -F"
READ = "device_to_device_memcpy_read_ce"


def run(words: str, faults: tuple[str, ...] = (), sku: str = "h100-sxm", **more: Any) -> Surface:
    """Return a run of a tool with both of its streams."""
    return Surface(tuple(words.split()), sku, H100[1], str.splitlines, faults=faults, stderr=True, **more)


def reduced(words: str = "-b 8 -e 128M -f 4 -g 8", *faults: str, **environment: str) -> Surface:
    """Return a run of all_reduce_perf."""
    return run(f"all_reduce_perf {words}", faults, environment=(*NCCL, *environment.items()))


# program -> (run, exit status) of the runs that exercise its formats, failures included.
RUNS = {
    "gpu_burn": [
        (run("gpu_burn -tc 60"), 0),
        (run("gpu_burn -d"), 0),
        (run("gpu_burn -tc 60", ("burn_errors gpu=3",)), 0),
        (run("gpu_burn -tc 60", ("burn_dies gpu=3",)), 0),
        (run("gpu_burn -c nowhere.ptx 60"), 123),
        (run("gpu_burn -l"), 0),
        (run("gpu_burn -m x"), 22),
        (run("gpu_burn 10", ("fabric_down",)), 19),
    ],
    "nccl-tests": [
        (reduced(), 0),
        (reduced("-b 8 -e 2048G -f 16 -g 8 -c 0"), 0),
        (reduced("-b 8 -e 128M -f 4 -g 8", "wrong_result"), 7),
        (reduced(NCCL_TESTS_MIN_BW="9999"), 7),
        (reduced("-g 9"), 5),
        (reduced("-g 8", "fabric_down"), 2),
    ],
    "nvbandwidth": [
        (run(f"nvbandwidth -v -t host_to_device_memcpy_ce {READ}"), 0),
        (run("nvbandwidth -t no_such_case"), 0),
        (run(f"nvbandwidth -t {READ}", tuple(f"gpu_missing gpu={gpu}" for gpu in range(1, 8))), 0),
    ],
    "perftest": [
        (run(f"{tool} localhost", server=tuple(tool.split())), 0)
        for tool in (BANDWIDTH, f"{BANDWIDTH} --report_gbits", LATENCY)
    ],
}
