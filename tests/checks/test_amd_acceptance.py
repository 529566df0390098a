"""Tests of amd_acceptance: RVS power and memory tests, rocBLAS, BabelStream and the last AGFHC result.

Output lines: AMD's guide to system acceptance (iet, mem, hip-stream, results.json), the source of RVS for
failing tests (no public log has one), rocBLAS's testing_gemm.hpp for rocblas-bench.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.vendors.amd import acceptance_extras, amd_acceptance, rvs_power_memory
from tests.checks.amd_node import ADDRESSES, Said, documents, facts, node_of, output, said

NUMBERS = [28851, 23018, 29122, 22683, 53458, 63883, 53667, 63738]
BEGINS = (
    *(": Change one bit memory addresss  ", ": Each Memory location is filled with its own address"),
    *(" [Moving inversions, ones&zeros] ", " [Moving inversions, 8 bit pat]", " [Moving inversions, random"),
    *(" [Block move, 64 moves]", " [Moving inversions, 32 bit pat]", " [Random number sequence]"),
    *(" [Modulo 20, random pattern]", " [Bit fade test, 90 min, 2 patterns]", " [memory stress test]"),
)


def listed() -> str:
    lines = ["ROCm Validation Suite (version 0.0.60202)", "", "Supported GPUs available:"]
    for index, (at, number) in enumerate(zip(ADDRESSES, NUMBERS, strict=True), 2):
        lines.append(f"{at} - GPU[{index:2d} - {number}] AMD Instinct MI300X (Device 29857)")
    return "\n".join(lines)


def patterns(number: int, silent: int = 0, errors: int = 0, rate: float = 2003.01709) -> list[str]:
    """Return RVS's mem output for one GPU; `silent`: number of the test without a PASS line."""
    say = f"[214775.925788] [gpuprov-mem-{number}] mem"
    lines = []
    for index, begin in enumerate(BEGINS, 1):
        lines.append(f"[RESULT] {say} {' ' * (index == 9)}Test {index}{begin}")
        if index == 11:
            lines.append(f"[RESULT] {say} Test 11: elapsedtime = 6390.423828 bandwidth = {rate:.6f}GB/s ")
        if index == 1 and errors:
            lines.append(f"[INFO  ] {say} Number of errors :{errors}")
        if index != silent:
            lines.append(f"[RESULT] {say} Test {index} : PASS")
    return lines


def power(number: int, watts: float = 750.0) -> list[str]:
    say = f"[RESULT] [1102597.333747] [gpuprov-iet] [GPU:: {number:5d}]"
    return [f"{say} Power(W) 127.000000", f"{say} Power(W) {watts:.6f}", f"{say} pass: TRUE"]


def run(lines: list[str], **more: Any) -> Output:
    return output("rvs", "\n".join(lines), argv=("/opt/rocm/bin/rvs", "-c", "x", "-d", "3"), **more)


def shown(**changed: Any) -> dict[str, Output]:
    """Return the outputs of eight healthy GPUs on a node without the optional programs."""
    lines = [line for number in NUMBERS for line in (*patterns(number), *power(number))]
    outputs = {"rvs_gpus": output("rvs_gpus", listed()), "rvs": run(lines)}
    outputs["amd_smi_before"] = output("amd_smi_before", json.dumps(documents()["static"]))
    names = ("stream", "gemm_fp32", "gemm_bf16", "gemm_int8", "agfhc")
    outputs |= {name: output(name, "", rc=127) for name in names}
    return outputs | changed


def judged(outputs: dict[str, Output]) -> list[Finding]:
    known = facts()
    raw = Raw("gpu-01", amd_acceptance.ID, tuple(outputs.values()))
    return list(node_judge.judge_check(node_of(known), raw, node_of(known).limits()).findings)


def with_gpu3(lines: list[str]) -> dict[str, Output]:
    rest = [line for n in NUMBERS if n != 22683 for line in (*patterns(n), *power(n))]
    return shown(rvs=run(rest + lines))


def test_a_healthy_node_passes_and_names_what_is_not_installed() -> None:
    findings = judged(shown())
    assert said(findings) == set()
    assert {one.metric for one in findings} == {"memory_errors", "power", "memory_stress", "absent"}
    (absent,) = [one for one in findings if one.verdict is Verdict.SKIP]
    assert absent.message == "not installed, so not measured: AGFHC, hip-stream, rocblas-bench"


BAD: list[tuple[list[str], Said]] = [
    # A failing test prints nothing, except the first, which prints PASS even if it counted errors.
    ([*patterns(22683, silent=7), *power(22683)], {("fail", "gpu3", "memory_errors", "replace part")}),
    ([*patterns(22683, errors=5), *power(22683)], {("fail", "gpu3", "memory_errors", "replace part")}),
    ([*patterns(22683), *power(22683, 610.0)], {("fail", "gpu3", "power", "investigate")}),
    ([*patterns(22683, rate=1500.0), *power(22683)], {("fail", "gpu3", "memory_stress", "investigate")}),
    # Within AMD's limits, although below RVS's own target.
    ([*patterns(22683, rate=1900.0), *power(22683, 745.0)[:2]], set()),
]


@pytest.mark.parametrize(("lines", "found"), BAD)
def test_what_rvs_finds_is_named_by_its_gpu(lines: list[str], found: Said) -> None:
    assert said(judged(with_gpu3(lines))) == found


@pytest.mark.parametrize("limit", [None, {"value": 600, "unit": "W"}], ids=["a guest", "lowered"])
def test_a_gpu_whose_limit_of_power_is_lowered_or_unknown_is_not_judged_by_it(limit: Any) -> None:
    static = documents()["static"]
    for entry in static["gpu_data"]:
        entry["limit"] = {**entry["limit"], "socket_power": limit} if limit else {}
    lines = [line for number in NUMBERS for line in (*patterns(number), *power(number, 598.0))]
    outputs = shown(rvs=run(lines), amd_smi_before=output("amd_smi_before", json.dumps(static)))
    findings = judged(outputs)
    assert said(findings) == set()
    assert [one.verdict for one in findings if one.metric == "power"] == [Verdict.SKIP]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (with_gpu3(power(22683)), "no whole result of gpu3"),
        (with_gpu3(patterns(22683)), "no whole result of gpu3"),
        (with_gpu3([*patterns(22683)[:9], *power(22683)]), "no whole result of gpu3"),
        (shown(rvs=run([], rc=None, timed_out=True)), "did not end within"),
        (shown(rvs=run([], truncated=True)), "cut at its size limit"),
    ],
)
def test_without_a_whole_result_nothing_passes(outputs: dict[str, Output], words: str) -> None:
    (finding,) = judged(outputs)
    assert finding.verdict is Verdict.ERROR
    assert words in finding.message


STREAM = (
    "Using HIP device AMD Instinct MI300X\nFunction    MBytes/sec  Min (sec)   Max         Average     \n"
)
RATES = {"Copy": 4255995.148, "Mul": 4115971.910, "Add": 3956389.991, "Triad": 3920853.0, "Dot": 3701229.0}


def stream(**changed: float) -> Output:
    """Return BabelStream's output for each GPU; `gpu3`: the copy rate of gpu3."""
    text = ""
    for gpu in range(8):
        rates = RATES | ({"Copy": changed["gpu3"]} if gpu == 3 and changed else {})
        rows = "".join(
            f"{name:<11} {rate:<11.3f} 0.00101     0.00117     0.00106\n" for name, rate in rates.items()
        )
        text += f"gpuprov: DC9128{gpu}\n{STREAM}{rows}"
    return output("stream", text)


def gemm(name: str, rate: float) -> Output:
    head = "transA,transB,M,N,K,alpha,lda,beta,ldb,ldc,rocblas-Gflops,us"
    text = "".join(
        f"gpuprov: DC9128{gpu}\nQuery device success: there are 1 devices\n{head}\n"
        f"N,T,4000,4000,4000,1,4000,0,4000,4000,{rate},1354.5\n"
        for gpu in range(8)
    )
    return output(name, text)


def test_optional_programs_are_judged_by_amds_minima() -> None:
    healthy = judged(shown(stream=stream(), gemm_fp32=gemm("gemm_fp32", 94500.1)))
    assert said(healthy) == set()
    slow = judged(shown(stream=stream(gpu3=3900000.0), gemm_fp32=gemm("gemm_fp32", 90000.0)))
    assert ("fail", "gpu3", "stream_copy", "investigate") in said(slow)
    assert {device for _, device, metric, _ in said(slow) if metric == "gemm_fp32"} == {
        f"gpu{index}" for index in range(8)
    }


def test_the_best_of_several_runs_counts() -> None:
    """AMD's guide says that rocBLAS varies between runs and that the best of several runs counts."""
    for first, again in (
        (gemm("gemm_fp32", 90000.0), gemm("gemm_fp32", 94500.1)),
        (stream(gpu3=3900000.0), stream()),
    ):
        pairs = zip(*(one.stdout.split("gpuprov: ")[1:] for one in (first, again)), strict=True)
        text = "".join(f"gpuprov: {one}{other.partition(chr(10))[2]}" for one, other in pairs)
        assert said(judged(shown(**{first.name: output(first.name, text)}))) == set()


def test_gpus_without_a_unique_number_are_no_error() -> None:
    known = facts()
    for one in known["amdgpu.devices"]:
        one["unique_id"] = None
    raw = Raw("gpu-01", amd_acceptance.ID, tuple(shown(stream=output("stream", "")).values()))
    findings = node_judge.judge_check(node_of(known), raw, node_of(known).limits()).findings
    assert said(findings) == set()
    assert [one.message for one in findings if one.metric == "unnumbered"] == [
        "no GPU's unique number is known, so not measured: hip-stream"
    ]


@pytest.mark.parametrize(
    "text", ["gpuprov: DC91280\n", stream().stdout.replace("Dot ", "Dit "), stream().stdout[:900], ""]
)
def test_an_optional_program_without_rates_costs_no_other_result(text: str) -> None:
    findings = judged(shown(stream=output("stream", text)))
    assert [one.message[:10] for one in findings if one.verdict is Verdict.ERROR] == ["hip-stream"]
    assert {"power", "memory_errors"} <= {one.metric for one in findings if one.verdict is Verdict.PASS}


def agfhc(*runs: tuple[str, Any]) -> Output:
    """Return AGFHC results, newest first."""
    texts = (one if isinstance(one, str) else json.dumps(one) for _, one in runs)
    whens = (f"gpuprov: {when} boot\n" for when, _ in runs)
    return output("agfhc", "".join(f"{when}{text}\n" for when, text in zip(whens, texts, strict=True)))


GOOD = {"recipe": "hbm_lvl5", "overall_result": "PASS", "tests": [{"name": "hbm_bw", "result": "PASS"}]}
WRONG = {"recipe": "hbm_lvl5", "overall_result": "FAIL", "tests": [{"name": "hbm_bw", "result": "FAIL"}]}
LATER = {"recipe": "pcie_lvl2", "overall_result": "PASS", "tests": [{"name": "pcie_bw", "result": "PASS"}]}
LEFT_OUT = {**GOOD, "tests": [*LATER["tests"], {"name": "sprites", "result": "SKIP"}]}
FAILED = {("fail", "node", "agfhc", "investigate")}
UNSURE = {("warn", "node", "agfhc", "investigate")}


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (agfhc(("since", GOOD)), set()),
        (agfhc(("since", WRONG)), FAILED),
        (agfhc(("since", LATER), ("since", WRONG)), FAILED),  # a pass of another recipe does not count
        (agfhc(("since", GOOD), ("since", WRONG)), set()),  # the recipe passed again after a repair
        (agfhc(("since", LATER), ("before", WRONG)), set()),
        (agfhc(("before", WRONG)), UNSURE),  # may have been repaired since
        (agfhc(("since", LEFT_OUT)), UNSURE),
        (agfhc(("since", {**GOOD, "overall_result": "ABORTED"})), UNSURE),
        (agfhc(("since", "{")), UNSURE),
        (agfhc(("since", {**GOOD, "tests": [{"name": "a"}]})), UNSURE),
        (agfhc(), set()),
    ],
)
def test_the_last_results_of_agfhc_count(result: Output, found: Said) -> None:
    assert said(judged(shown(agfhc=result))) == found


def test_the_results_of_agfhc_are_listed_newest_first(tmp_path: Path) -> None:
    command = acceptance_extras.commands(node_of(facts()).check_node)[-1]
    script = command.argv[2].replace("/opt/amd", str(tmp_path)).replace("/root", str(tmp_path))

    def printed() -> Output:
        done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
        return output("agfhc", done.stdout, rc=done.returncode)

    assert printed().rc == 127
    (tmp_path / "agfhc" / "logs").mkdir(parents=True)
    (tmp_path / "agfhc" / "agfhc").touch()
    assert said(judged(shown(agfhc=printed()))) == set()
    for age, (name, document) in enumerate({"b": LATER, "a": WRONG, "c": GOOD}.items()):
        file = tmp_path / "agfhc" / "logs" / name / "results.json"
        file.parent.mkdir()
        file.write_text(json.dumps(document))
        os.utime(file, (time.time() - age, time.time() - age))
    assert said(judged(shown(agfhc=printed()))) == FAILED


def test_the_configuration_has_an_action_for_each_gpu_and_heat_last(tmp_path: Path) -> None:
    """The shell script runs as it does on a node, with a fake rvs that prints AMD's list."""
    program, config = tmp_path / "rvs", tmp_path / "rvs.conf"
    program.write_text(f"#!/bin/sh\ncat <<'X'\n{listed()}\nX\n")
    program.chmod(0o755)
    command = rvs_power_memory.commands(node_of(facts()).check_node)[1]
    shell, option, script, name, _, _, *rest = command.argv
    subprocess.run([shell, option, script, name, str(program), str(config), *rest], check=True)
    text = config.read_text()
    assert [f"name: gpuprov-mem-{n}\n  device: {n}\n" in text for n in NUMBERS] == [True] * 8
    assert text.index("gpuprov-iet") > text.rindex("gpuprov-mem")
    assert "  target_power: 750\n" in text
    assert text.endswith("  matrix_init: hiprand\n" + dgemm(28000))


def dgemm(size: int) -> str:
    sizes = "".join(f"  ld{name}: {size}\n" for name in "abc")
    return f"  matrix_size: {size}\n  ops_type: dgemm\n{sizes}  alpha: 1\n  beta: 1\n"


@pytest.mark.parametrize(
    ("device", "watts", "end"),
    [
        ("74a2", 650, "  bw_workload: true\n  cp_workload: false\n"),
        ("74a8", 650, "  bw_workload: true\n  cp_workload: false\n  wg_count: 64\n"),
        ("75a3", 1400, "  cp_workload: false\n  wg_count: 256\n  nt_loads: true\n"),
        ("75a8", 600, dgemm(8192)),
        ("740f", 300, dgemm(8640)),
    ],
)
def test_each_product_is_loaded_as_amd_loads_it(device: str, watts: int, end: str) -> None:
    known = facts()
    for one in known["gpu.pci"]:
        one["device_id"] = f"1002:{device}"
    *_, iet, _ = rvs_power_memory.commands(node_of(known).check_node)[1].argv
    assert f"  target_power: {watts}\n" in iet
    assert iet.endswith(end)


def test_each_gpu_is_shown_alone_and_a_missing_program_is_no_error(tmp_path: Path) -> None:
    program = tmp_path / "hip-stream"
    program.write_text('#!/bin/sh\necho "$ROCR_VISIBLE_DEVICES $*"\n')
    command = next(
        one for one in acceptance_extras.commands(node_of(facts(2)).check_node) if one.name == "stream"
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    missing = subprocess.run(command.argv, env=env, capture_output=True, text=True, check=False)
    assert missing.returncode == 127
    program.chmod(0o755)
    done = subprocess.run(command.argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:4] == [
        *("gpuprov: DC91280", *["GPU-DC91280 -n 50 -s 268435456 --device 0"] * 3),
    ]
    assert done.stdout.count("gpuprov: ") == 2
