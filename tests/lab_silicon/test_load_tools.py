"""gpu_burn, nvbandwidth and nccl-tests: their output, their pitfalls, and the effect of faults."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab_silicon.silicon import Silicon
from tests.support.processes import until

Make = Callable[..., Silicon]


def rates(text: str) -> list[float]:
    """Return the Gflop/s in gpu_burn's last progress line."""
    last = [line for line in re.split(r"[\r\n]", text) if "proc'd:" in line][-1]
    return [float(number) for number in re.findall(r"\((\d+) Gflop/s\)", last)]


def verdicts(text: str) -> list[str]:
    return re.findall(r"^\tGPU \d+: (\w+)$", text, re.MULTILINE)


def matrix(text: str) -> list[list[float | None]]:
    """Return the last matrix in nvbandwidth's text."""
    rows = re.findall(r"^ ?\d+((?: +(?:N/A|[\d.]+))+)$", text, re.MULTILINE)[-8:]
    return [[None if word == "N/A" else float(word) for word in row.split()] for row in rows]


def busbw(done: Any) -> list[float]:
    """Return the out-of-place bus bandwidth of each size."""
    return [float(line.split()[7]) for line in done.stdout.splitlines() if re.match(r" +\d", line)]


# -- gpu_burn


def test_gpu_burn_burns_every_gpu_for_the_time_asked(node: Make) -> None:
    text = node().printed("gpu_burn", "60")
    assert "Burning for 60 seconds.\n" in text
    assert verdicts(text) == ["OK"] * 8
    assert all(48000 < rate < 55000 for rate in rates(text))
    assert text.count("\tSummary at:   ") >= 5
    assert "100.0%  proc'd: " in text


def test_a_faulty_gpu_still_exits_0(node: Make) -> None:
    one = node()
    one.break_("burn_errors gpu=3 errors=5")
    text = one.printed("gpu_burn", "60")
    assert verdicts(text) == ["OK"] * 3 + ["FAULTY"] + ["OK"] * 4
    assert re.search(r"errors: 0 - 0 - 0 - \d+  \(WARNING!\)- 0 ", text)


def test_a_slow_and_a_throttled_gpu_burn_slower(node: Make) -> None:
    one = node()
    one.break_("gpu_slow gpu=1 factor=0.5", "throttle gpu=2 factor=0.6")
    done = one.run("gpu_burn", "60")
    found = rates(done.stdout)
    assert 0.45 < found[1] / found[0] < 0.55
    assert 0.55 < found[2] / found[0] < 0.65
    assert verdicts(done.stdout) == ["OK"] * 8


def test_a_dead_client_and_no_client_left(node: Make) -> None:
    one = node("a100-pcie-80")
    one.break_("burn_dies gpu=2")
    done = one.run("gpu_burn", "60")
    assert done.returncode == 0
    assert "-1 (0 Gflop/s) " in done.stdout
    assert "(DIED!)" in done.stdout
    assert verdicts(done.stdout) == ["OK", "OK", "FAULTY", "OK"]
    one.break_(*(f"burn_dies gpu={gpu}" for gpu in (0, 1, 3)))
    done = one.run("gpu_burn", "60")
    assert done.returncode == 123
    assert "No clients are alive!  Aborting" in done.stderr


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["-t", "60"], 0),  # an unknown option is taken as the time
        (["-tc", "60"], 60),
        (["60", "-tc"], 0),
        (["-d", "30"], 30),
        (["-m", "50%", "20"], 20),
        (["-m50%", "20"], 20),
        (["-i", "2", "15"], 15),
        (["abc"], 0),
        (["12abc"], 12),
        (["-gpus", "0,1", "9"], 0),
        (["-stts", "5", "7"], 7),
        ([], 10),
    ],
)
def test_the_loose_command_line(node: Make, words: list[str], seconds: int) -> None:
    text = node("a100-pcie-80").printed("gpu_burn", *words)
    assert f"Burning for {seconds} seconds.\n" in text
    assert set(verdicts(text)) == {"OK"}
    assert text.startswith("GPU 0: ")
    assert ("Run length not specified" in text) == (not words)


def test_no_work_is_done_in_no_time_and_yet_all_is_well(node: Make) -> None:
    done = node("a100-pcie-80").run("gpu_burn", "-t", "60")
    assert "proc'd" not in done.stdout
    assert verdicts(done.stdout) == ["OK"] * 4


def test_i_burns_one_gpu_and_calls_it_0(node: Make) -> None:
    one = node("a100-pcie-80")
    one.break_("burn_errors gpu=2")
    done = one.run("gpu_burn", "-i", "2", "60")
    assert "Initialized device 2 " in done.stdout
    assert verdicts(done.stdout) == ["FAULTY"]
    assert "Tested 1 GPUs:\n\tGPU 0: FAULTY\n" in done.stdout


def test_visible_devices_are_obeyed(node: Make) -> None:
    one = node("a100-pcie-80")
    one.break_("burn_errors gpu=2")
    done = one.run("gpu_burn", "60", CUDA_VISIBLE_DEVICES="2,0")
    assert verdicts(done.stdout) == ["FAULTY", "OK"]
    assert one.run("gpu_burn", "60", CUDA_VISIBLE_DEVICES="").returncode == 19


def test_the_kernel_is_looked_for_where_gpu_burn_is_started(node: Make) -> None:
    one = node("l40s")
    (one.root / "usr/share/gpu-burn/compare.ptx").unlink()
    done = one.run("gpu_burn", "10")
    assert done.returncode == 123
    assert "couldn't find compare kernel: compare.ptx" in done.stderr


def test_gpu_burn_without_a_fabric_or_a_driver(node: Make, bare: Make) -> None:
    done = node(fabric=False).run("gpu_burn", "10")
    assert done.returncode == 19
    assert "system not yet initialized" in done.stderr
    assert verdicts(done.stdout) == []
    other = bare(name="bare")
    assert other.run("gpu_burn", "10").returncode == 127
    other.install("580.126.09")
    assert "no CUDA-capable device is detected" in other.run("gpu_burn", "10").stderr


def test_a_library_of_another_version_stops_cuda(node: Make) -> None:
    one = node("l40s")
    one.install("580.142")
    assert "unsupported display driver / cuda driver combination" in one.run("gpu_burn", "10").stderr


def test_the_mark_of_a_load_is_gone_after_term(node: Make) -> None:
    one = node("a100-pcie-80", speed=1)
    burning = subprocess.Popen(
        one.command("gpu_burn", "600"),
        env=one.environment(),
        cwd=one.root / "usr/share/gpu-burn",
        stdout=subprocess.PIPE,
    )
    try:
        until(lambda: list((one.state / "run").glob("load.*")), 30)
        assert "100 %" in one.smi("--query-gpu=utilization.gpu", "--format=csv")
    finally:
        burning.send_signal(signal.SIGTERM)
        burning.communicate(timeout=30)
    assert list((one.state / "run").glob("load.*")) == []


# -- nvbandwidth


def test_nvbandwidth_text(node: Make) -> None:
    text = node().printed("nvbandwidth", "-t", "device_to_device_memcpy_read_ce")
    assert "Running device_to_device_memcpy_read_ce.\n" in text
    found = matrix(text)
    for i, row in enumerate(found):
        assert row[i] is None
        assert all(value is None or 370 < value < 405 for value in row)
    total = sum(value or 0 for row in found for value in row)
    said = float(re.findall(r"^SUM device_to_device_memcpy_read_ce ([\d.]+)$", text, re.MULTILINE)[0])
    assert said == pytest.approx(total, abs=0.5)


def test_nvbandwidth_json_has_texts_for_numbers(node: Make) -> None:
    done = node().run(
        "nvbandwidth", "-j", "-t", "host_to_device_memcpy_ce", "device_to_device_memcpy_write_ce"
    )
    first, second = json.loads(done.stdout)["nvbandwidth"]["testcases"]
    assert first["status"] == second["status"] == "Passed"
    assert all(45 < float(value) < 64 for value in first["bandwidth_matrix"][0])
    assert second["bandwidth_matrix"][3][3] == "N/A"
    assert "max" not in first


def test_a_slow_pair_is_slow_both_ways_and_alone(node: Make) -> None:
    one = node()
    one.fault("set", "slow_pair", "a=2", "b=5", "factor=0.4")
    for case in ("device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce"):
        found = matrix(one.run("nvbandwidth", "-t", case).stdout)
        slow = {(i, j) for i, row in enumerate(found) for j, value in enumerate(row) if value and value < 300}
        assert slow == {(2, 5), (5, 2)}


def test_a_disabled_pair_and_slow_host_copies(node: Make) -> None:
    one = node()
    one.break_("pair_disabled a=0 b=1")
    found = matrix(one.run("nvbandwidth", "-t", "device_to_device_memcpy_read_ce").stdout)
    assert (found[0][1], found[1][0]) == (None, None)
    one.break_("h2d_slow gpu=4 factor=0.5", "pcie_width gpu=5 width=8", "pcie_gen gpu=6 gen=3")
    text = one.run("nvbandwidth", "-t", "host_to_device_memcpy_ce").stdout
    row = [float(word) for word in re.findall(r"^ 0((?: +[\d.]+){8})$", text, re.MULTILINE)[0].split()]
    relative = [value / row[0] for value in row]
    assert relative == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.25, 1], rel=0.04)


def test_bridged_cards_copy_fast_within_a_pair_only(node: Make) -> None:
    text = node("a100-pcie-80").run("nvbandwidth", "-t", "device_to_device_memcpy_read_ce").stdout
    rows = [line.split()[1:] for line in text.splitlines() if re.match(r" \d +(N/A|\d)", line)]
    assert float(rows[0][1]) > 240
    assert float(rows[0][2]) < 30


def test_nvbandwidth_exits_0_whatever_a_case_says(node: Make) -> None:
    one = node()
    done = one.run("nvbandwidth", "-t", "no_such_case")
    assert (done.returncode, "ERROR: Testcase no_such_case not found!" in done.stdout) == (0, True)
    done = one.run("nvbandwidth", "-t", "device_to_device_memcpy_read_ce", CUDA_VISIBLE_DEVICES="0")
    assert (done.returncode, "\nWaived: \n" in done.stdout) == (0, True)
    case = ["-j", "-t", "device_to_device_memcpy_read_ce"]
    done = one.run("nvbandwidth", *case, CUDA_VISIBLE_DEVICES="0")
    assert json.loads(done.stdout)["nvbandwidth"]["testcases"] == [{"name": case[2], "status": "Waived"}]


def test_nvbandwidth_fails_outright_without_a_fabric(node: Make) -> None:
    one = node(fabric=False)
    done = one.run("nvbandwidth", "-t", "0")
    assert done.returncode == 1
    assert done.stderr.startswith("[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized")
    done = one.run("nvbandwidth", "-j", "-t", "0")
    assert "SYSTEM_NOT_READY" in json.loads(done.stdout)["nvbandwidth"]["error"]
    assert one.run("nvbandwidth", "-t", "0", "-p", "host").returncode == 1
    assert one.run("nvbandwidth", "--nonsense").returncode == 1


def test_prefixes_and_bidirectional_cases(node: Make) -> None:
    done = node("a100-pcie-80").run(
        "nvbandwidth", "-j", "-p", "device_to_device_bidirectional_memcpy_read_ce"
    )
    (case,) = json.loads(done.stdout)["nvbandwidth"]["testcases"]
    # The three matrices of this case are concatenated, as in the real program.
    assert len(case["bandwidth_matrix"]) == 12


# -- nccl-tests


def test_all_reduce_saturates_at_large_sizes(node: Make) -> None:
    done = node().run("all_reduce_perf", "-b", "8", "-e", "16G", "-f", "2", "-g", "8")
    assert done.returncode == 0
    found = busbw(done)
    assert len(found) == 32
    assert found[-1] == pytest.approx(478, rel=0.02)
    assert found[0] < 1
    assert all(later > earlier * 0.9 for earlier, later in itertools.pairwise(found) if earlier > 0.1)
    average = float(re.findall(r"# Avg bus bandwidth    : ([\d.]+) $", done.stdout, re.MULTILINE)[0])
    assert average < 0.6 * found[-1]
    assert done.stdout.endswith("#\n# Collective test concluded: all_reduce_perf\n#\n\n")


@pytest.mark.parametrize(
    ("tool", "least", "most"),
    [("all_gather_perf", 350, 368), ("reduce_scatter_perf", 350, 370), ("alltoall_perf", 330, 350)],
)
def test_the_other_collectives(node: Make, tool: str, least: float, most: float) -> None:
    done = node().run(tool, "-b", "8G", "-e", "8G", "-g", "8")
    assert least < busbw(done)[0] < most
    row = next(line.split() for line in done.stdout.splitlines() if re.match(r" +\d", line))
    assert row[3] == ("sum" if tool == "reduce_scatter_perf" else "none")
    assert int(row[1]) * 4 * 8 == int(row[0])


def test_nvls_can_be_turned_off(node: Make) -> None:
    words = ["-b", "8G", "-e", "8G", "-g", "8"]
    assert busbw(node("h200-sxm").run("all_reduce_perf", *words, NCCL_NVLS_ENABLE="0"))[0] < 372


def test_what_slows_a_collective(node: Make) -> None:
    one = node()
    words = ["-b", "8G", "-e", "8G", "-g"]
    healthy = busbw(one.run("all_reduce_perf", *words, "8"))[0]
    one.fault("set", "slow_pair", "a=6", "b=7", "factor=0.4")
    assert busbw(one.run("all_reduce_perf", *words, "8"))[0] < 0.75 * healthy
    assert busbw(one.run("all_reduce_perf", *words, "4"))[0] > 355
    one.fault("clear")
    one.break_("collective_slow factor=0.5")
    assert busbw(one.run("all_reduce_perf", *words, "8"))[0] == pytest.approx(healthy / 2, rel=0.03)
    one.fault("clear")
    one.break_("nvlink_down gpu=0 link=1")
    assert busbw(one.run("all_reduce_perf", *words, "8"))[0] == pytest.approx(healthy * 17 / 18, rel=0.03)


def test_wrong_results_fail(node: Make) -> None:
    one = node()
    one.break_("wrong_result count=16")
    text = one.printed("all_reduce_perf", "-b", "1M", "-e", "4M", "-f", "2", "-g", "8", status=7)
    assert "# Out of bounds values : 6 FAILED\n" in text
    unchecked = one.run("all_reduce_perf", "-b", "1M", "-e", "4M", "-f", "2", "-g", "8", "-c", "0")
    assert unchecked.returncode == 0
    assert unchecked.stdout.count("  N/A") == 6


def test_a_floor_for_the_average(node: Make) -> None:
    one = node()
    words = ["-b", "8G", "-e", "8G", "-g", "8"]
    assert one.run("all_reduce_perf", *words, NCCL_TESTS_MIN_BW="400").returncode == 0
    text = one.printed("all_reduce_perf", *words, NCCL_TESTS_MIN_BW="600", status=7)
    assert re.search(r"# Avg bus bandwidth    : [\d.]+ FAILED\n", text)


def test_sizes_beyond_the_memory_are_reduced(node: Make) -> None:
    done = node("l40s").run("all_reduce_perf", "-b", "16G", "-e", "16G", "-g", "8")
    assert re.search(r"^# Reducing maxBytes to \d+ due to memory limitation$", done.stdout, re.MULTILINE)


def test_the_json_report(node: Make) -> None:
    one = node()
    path = one.root / "out.json"
    words = ["-b", "1M", "-e", "4M", "-f", "2", "-g", "8", "-J", str(path)]
    assert one.run("all_reduce_perf", *words, SECRET="x").returncode == 0
    report = json.loads(path.read_text())
    assert report["version"] == 2
    assert "SECRET=x" in report["env"]
    assert report["nccl_version"] == 22707
    assert [row["size"] for row in report["results"]] == [1 << 20, 1 << 21, 1 << 22]
    assert report["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert report["average_bus_bandwidth"]["okay"] == "unchecked"
    assert len(report["config"]["devices"]) == 1
    one.run("all_reduce_perf", *words)
    assert (one.root / "out.json.0").exists()


def test_a_bad_command_line(node: Make) -> None:
    done = node().run("all_reduce_perf", "-b", "x")
    assert done.returncode != 0
    assert "invalid size specified for 'minbytes'" in done.stderr


# -- broken tools


def ignores(pid: int, number: int) -> bool:
    """Whether the process ignores a signal, according to /proc."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = re.findall(r"^SigIgn:\t([0-9a-f]+)$", status, re.MULTILINE)[0]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_hanging_tool_sleeps_until_killed(node: Make) -> None:
    one = node("l40s")
    one.break_("tool_hang tool=nvidia-smi args=topo stubborn=yes")
    one.smi("-L")
    hanging = subprocess.Popen(
        one.command("nvidia-smi", "topo", "-m"), env=one.environment(), stdout=subprocess.PIPE
    )
    until(lambda: ignores(hanging.pid, signal.SIGTERM), 30)
    hanging.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        hanging.wait(timeout=0.3)
    hanging.kill()
    assert hanging.communicate(timeout=60)[0] == b""


def test_garbage_truncation_and_absence(node: Make) -> None:
    one = node("l40s")
    whole = one.run("nvbandwidth", "-t", "0").stdout
    garbled = ("tool_garbage tool=gpu_burn", "tool_truncated tool=nvbandwidth percent=40")
    one.break_(*garbled, "tool_missing tool=all_reduce_perf")
    done = one.run("gpu_burn", "10")
    assert (done.returncode, "GPU 0" in done.stdout) == (0, False)
    cut = one.run("nvbandwidth", "-t", "0")
    assert cut.returncode == 0
    assert 0.3 < len(cut.stdout) / len(whole) < 0.5
    assert one.run("all_reduce_perf", "-g", "8").returncode == 127
