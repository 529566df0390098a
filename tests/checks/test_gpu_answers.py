"""GPUs lost during a test: they are named, whatever the test program prints about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.gpu import gpu_answers
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import CHECKS
from tests.support.checks import sample
from tests.support.scenarios import ON_NVIDIA

GPUS = {f"0000:{0x1A + index:02x}:00": f"gpu{index}" for index in range(8)}
SERIAL = "serial 1652322403643, PCI 0000:1d:00"
# Output of each program when a GPU is lost while it runs: stdout, stderr, exit status.
HEAD = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20\n"
# Format string: CUDACHECK of nccl-tests (src/common.h, 2.0 to 2.18); 'unknown error': nccl-tests #66.
NCCL = (
    HEAD
    + "gpu-01: Test CUDA failure common.cu:730 'unknown error'\n"
    + " .. gpu-01 pid 12: Test failure common.cu:1452\n"
)
NCCL_INSIDE = (  # nccl-tests #322
    HEAD + "gpu-01: Test NCCL failure common.cu:1204 'unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details) / '\n .. gpu-01 pid 12: Test failure common.cu:915\n"
)
# nvbandwidth 0.8, error_handling.h CU_ASSERT: `[NAME] words in expression … in function() : file:line`.
BANDWIDTH = (
    '{"nvbandwidth" : {"CUDA Runtime Version" : 12080, "error" : "[CUDA_ERROR_UNKNOWN] unknown error in '
    'expression cuStreamSynchronize(stream) in doMemcpy() : memcpy.cpp:412"}}\n'
)
# Older versions print it on standard error, after nothing or after the beginning of the table.
ASSERTED = (
    "[CUDA_ERROR_UNKNOWN] unknown error in expression cuStreamSynchronize(stream) in "
    "double doMemcpy()() : memcpy.cpp:412\n"
)
TOO_FEW = "Invalid number of GPUs: 8 requested but only 7 were found.\nPlease check the number of processes\n"
FAILURE = HEAD + " .. gpu-01 pid 12: Test failure common.cu:915\n"
LOST: list[tuple[str, str, str, str, int]] = [
    *((f"nccl_{name}", f"{name}_perf", NCCL, "", 3) for name in ("all_reduce", "all_gather", "alltoall")),
    ("nccl_reduce_scatter", "reduce_scatter_perf", NCCL_INSIDE, "", 3),
    ("memory_bandwidth", "nvbandwidth", BANDWIDTH, "", 1),
    ("p2p_bandwidth", "nvbandwidth", BANDWIDTH, "", 1),
    ("p2p_bandwidth", "nvbandwidth", "", ASSERTED, 1),
    ("memory_bandwidth", "nvbandwidth", "Running device_local_copy.\n", ASSERTED, 1),
    ("nccl_all_reduce", "all_reduce_perf", FAILURE, TOO_FEW, 4),
    ("gpu_burn", "gpu_burn", "12.5%  proc'd: 2 (1 Gflop/s)\n", "No clients are alive!  Aborting\n", 0),
]

IDS = [f"{one[0]}-{number}" for number, one in enumerate(LOST)]


def judged(check: str, *outputs: Output) -> CheckResult:
    """Return the check's result on an H100 node, judged as in a run."""
    gpu = {"count": 8, "sku": "h100-sxm", "fabric": "nvswitch", "architecture": "hopper", "product_names": []}
    node = NodeFacts("gpu-01", {}, {"gpu": gpu}, {"gpuprov_pci_addresses": list(GPUS)})
    return node_judge.judge_check(node, Raw("gpu-01", check, outputs), {})


def answers(text: str, **more: Any) -> Output:
    return replace(Output(gpu_answers.NAME, ("nvidia-smi",), 0, text, "", 0.4), **more)


def failed(result: CheckResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.verdict is Verdict.FAIL]


@pytest.mark.parametrize(("check", "name", "stdout", "stderr", "rc"), LOST, ids=IDS)
def test_the_gpu_that_a_test_lost_is_named_and_without_one_no_gpu_is_accused(
    check: str, name: str, stdout: str, stderr: str, rc: int
) -> None:
    outputs = [Output(name, (name,), rc, stdout, stderr, 3.0)]
    if check == "memory_bandwidth":
        outputs.insert(0, Output("mig", ("nvidia-smi",), 0, sample("memory_bandwidth/mig-off.txt"), "", 0.1))
    unmeasured = (Verdict.ERROR, "node", "investigate")
    result = judged(check, *outputs, answers(sample("gpu_answers/gpu3-lost.csv")))
    assert result.verdict is Verdict.FAIL
    (lost,) = failed(result)
    assert (lost.device, lost.action) == ("gpu3", "power-cycle")
    assert "GPU is lost" in lost.message
    assert SERIAL in lost.message
    assert [(f.verdict, f.device, f.action) for f in result.findings if f is not lost] == [unmeasured]
    for after in ((), (answers(sample("gpu_answers/healthy.csv")),)):
        (only,) = judged(check, *outputs, *after).findings
        assert (only.verdict, only.device, only.action) == unmeasured


@pytest.mark.parametrize("check", ON_NVIDIA)
def test_each_check_that_loads_gpus_looks_afterwards(check: str) -> None:
    quick = {"gpu_inventory", "versions", "host_health", "network_ports", "disk_speed"}
    assert gpu_answers.loads(CHECKS[check].NEEDS) is (check not in quick)


def test_a_test_that_passed_is_no_proof_of_a_gpu_that_answers_no_more() -> None:
    collective = Output(
        "all_reduce_perf", ("all_reduce_perf",), 0, sample("nccl_all_reduce/healthy.txt"), "", 9.0
    )
    assert judged("nccl_all_reduce", collective, answers(sample("gpu_answers/healthy.csv"))).verdict in (
        Verdict.PASS, Verdict.WARN
    )  # fmt: skip
    after = answers(sample("gpu_answers/gpu3-lost.csv"))
    assert [one.device for one in failed(judged("nccl_all_reduce", collective, after))] == ["gpu3"]
    stuck = judged("nccl_all_reduce", collective, answers("", timed_out=True, rc=None))
    assert [(one.verdict, one.action) for one in stuck.findings[1:]] == [(Verdict.ERROR, "investigate")]


def test_one_line_in_place_of_the_answer_names_its_gpu() -> None:
    line = "Unable to determine the device handle for GPU3: 0000:1D:00.0: GPU is lost.  Reboot the system\n"
    found = gpu_answers.judge("gpu_burn", answers(line, rc=255), GPUS, [])
    assert [(one.device, one.verdict, one.action) for one in found] == [("gpu3", Verdict.FAIL, "power-cycle")]
    assert "PCI 0000:1d:00" in found[0].message


@pytest.mark.parametrize(
    ("cells", "devices", "action"),
    [
        ("3, 00000000:1D:00.0, 16523, [GPU requires reset]", ["gpu3"], "reset GPU"),
        ("[GPU is lost], 00000000:1D:00.0, [GPU is lost], [GPU is lost]", ["gpu3"], "power-cycle"),
    ],
)
def test_an_error_in_a_cell_is_the_gpus(cells: str, devices: list[str], action: str) -> None:
    listed = sample("gpu_answers/healthy.csv").splitlines(keepends=True)
    listed[3] = f"{cells}\n"
    found = gpu_answers.judge("gpu_burn", answers("".join(listed)), GPUS, [])
    assert [one.device for one in found] == devices
    assert all((one.verdict, one.action) == (Verdict.FAIL, action) for one in found)


@pytest.mark.parametrize("gone", [(3,), (0, 7)])
def test_a_gpu_that_the_driver_no_longer_lists_is_lost(gone: tuple[int, ...]) -> None:
    """An Xid 79 removes it from nvidia-smi's list, and the indices of the GPUs behind it move up."""
    listed = sample("gpu_answers/healthy.csv").splitlines(keepends=True)
    text = "".join(line for at, line in enumerate(listed) if at not in gone)
    found = gpu_answers.judge("p2p_bandwidth", answers(text), GPUS, [])
    assert sorted((one.verdict.value, one.device) for one in found) == [("fail", f"gpu{at}") for at in gone]
    known = [
        Finding("gpu_burn", Verdict.FAIL, f"gpu{gone[0]}", "left the list", "lost", action="power-cycle")
    ]
    assert len(gpu_answers.judge("gpu_burn", answers(text), GPUS, known)) == len(gone), "told once"


@pytest.mark.parametrize("cell", ["[N/A]", "[Insufficient Permissions]", ""])
def test_a_reading_that_one_gpu_alone_does_not_give_is_an_error_of_it(cell: str) -> None:
    text = sample("gpu_answers/healthy.csv").replace("1652322403643, 33", f"1652322403643, {cell}")
    (found,) = gpu_answers.judge("p2p_bandwidth", answers(text), GPUS, [])
    assert (found.verdict, found.device) == (Verdict.ERROR, "gpu3")


@pytest.mark.parametrize(
    ("text", "rc"),
    [
        ("No devices were found\n", 6),
        ("No devices were found\n", 0),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9),
        ("x, y, z, [GPU is lost]\n", 0),
        ("", 0),
        ("{healthy}", -11),
        ("{cut}", 0),
    ],
)
def test_an_answer_that_names_no_gpu_is_no_proof_of_health(text: str, rc: int) -> None:
    healthy = sample("gpu_answers/healthy.csv")
    text = text.format(healthy=healthy, cut=healthy[:-30])
    (found,) = gpu_answers.judge("p2p_bandwidth", answers(text, rc=rc), GPUS, [])
    assert (found.verdict, found.device, found.action) == (Verdict.ERROR, "node", "investigate")


def test_what_telemetry_names_gets_its_serial_number_and_is_told_once() -> None:
    known = [Finding("gpu_burn", Verdict.FAIL, "gpu3", "was lost under load", "lost", action="power-cycle")]
    found = gpu_answers.judge("gpu_burn", answers(sample("gpu_answers/gpu3-lost.csv")), GPUS, known)
    assert [one.message for one in found] == [f"was lost under load ({SERIAL})"]
