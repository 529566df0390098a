"""dcgmi, fio, and a slow socket that only programs without CPU binding see: forms and faults."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Silicon]
FIO = ("--output-format=json", "--runtime=15", "--filename=/scratch/x")


def statuses(done: Any) -> dict[str, list[str]]:
    body = json.loads(done.stdout)["DCGM Diagnostic"]
    tests = [test for one in body["test_categories"] for test in one["tests"]]
    return {test["name"]: [result["status"] for result in test["results"]] for test in tests}


def test_dcgmi_names_the_gpu_and_does_not_exit_0(node: Make) -> None:
    one = node()
    done = one.run("dcgmi", "diag", "-r", "2", "-j")
    assert done.returncode == 0
    assert statuses(done) == {name: ["Pass"] * 8 for name in ("software", "memory", "pcie")}
    one.break_("dcgm_fails gpu=3")
    done = one.run("dcgmi", "diag", "-r", "2", "-j")
    assert done.returncode == 226
    assert statuses(done)["memory"] == ["Pass"] * 3 + ["Fail"] + ["Pass"] * 4


def test_fio_writes_and_reads(node: Make) -> None:
    one = node()
    (one.root / "scratch").mkdir()
    words = ("--name=write", "--rw=write", *FIO, "--name=read", "--rw=read", *FIO)

    def rates() -> dict[str, float]:
        jobs = json.loads(one.run("fio", *words).stdout)["jobs"]
        return {job["jobname"]: job[job["jobname"]]["bw_bytes"] / 1e6 for job in jobs}

    healthy = rates()
    one.break_("disk_slow factor=0.25")
    slow = rates()
    assert all(0.2 < slow[way] / healthy[way] < 0.3 for way in ("write", "read"))


def test_the_other_socket_is_seen_only_by_a_program_that_does_not_bind_itself(node: Make) -> None:
    one = node()
    one.break_("numa_remote factor=0.6")

    def rate(*more: str) -> float:
        done = one.run("nvbandwidth", "-t", "host_to_device_memcpy_ce", *more)
        return float(re.findall(r"^SUM host_to_device_memcpy_ce ([\d.]+)", done.stdout, re.MULTILINE)[0])

    assert 0.55 < rate("-d") / rate() < 0.65
