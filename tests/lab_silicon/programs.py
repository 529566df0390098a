"""The runs in which the formats of the load tools are seen, failures included."""

from __future__ import annotations

from typing import Any

from tests.lab_silicon.surfaces import Surface

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
        (
            run(
                "all_reduce_perf",
                "-b",
                "8",
                "-e",
                "2048G",
                "-f",
                "16",
                "-g",
                "8",
                "-c",
                "0",
                environment=NCCL,
            ),
            0,
        ),
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
