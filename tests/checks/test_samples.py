"""Samples of program output with their expected findings, or the expected reason for refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import Measurement
from provision.checks.gpu import nvidia_smi
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.registry import CHECKS
from provision.checks.network import perftest
from provision.checks.pairs import write_lat
from provision.errors import ParseError
from tests.support.checks import answered, changed, make_node, make_output, node_for, sample
from tests.support.scenarios import limits_of

QUICK = {"validation_tools_dcgm_level": 1}
L40S = {"count": 4, "sku": "l40s", "fabric": "none", "arch": "ada"}
TORCH = {"validation_tools_torch_python": "/opt/pytorch/bin/python3"}
RESEAT = "reseat or check cable"
DISK, HOST, PEERS = (
    tuple(f"pass node {metric}" for metric in metrics)
    for metrics in (("write", "read"), ("h2d", "d2h"), ("p2p_read", "p2p_write"))
)
NARROW = [f"fail gpu{gpu} {way} → {RESEAT}" for way in ("h2d", "d2h") for gpu in range(4)]
UNREACHED = [f"fail node p2p_{way} → fix configuration" for way in ("read", "write")]
KEPT, STRAGGLER = "pass node kept", "fail gpu3 overlapped → investigate"
REMAP = "fail gpu3 page_retirement/row_remap → investigate"
BUSBW = "pass node busbw"
FAULTY, UNMEASURED = "fail gpu3 errors → replace part", "error node  → investigate"

# By check: sample, node, expected message, and each finding as verdict, device, metric and action, if any.
FINDINGS: dict[str, list[tuple[Any, ...]]] = {
    "disk_speed": [
        ("healthy.json", {}, "read in /scratch is 6702.9 MB/s", *DISK),
        ("note-first.json", {}, "write in /scratch is 2811.4 MB/s", *DISK),
        ("slow.json", {}, "", "fail node write → investigate", "fail node read → investigate"),
    ],
    "memory_bandwidth": [
        ("healthy.json", {}, "gpu5's, is 1518.86 GB/s", "pass node local_copy"),
        ("healthy.txt", {}, "gpu5's, is 1518.86 GB/s", "pass node local_copy"),
        ("slow-gpu5.json", {}, "at 1208.44 GB/s (limit ≥ 1367 GB/s)", "fail gpu5 local_copy → investigate"),
        # A GPU within the limit is flagged by its peers.
        ("slightly-slow-gpu2.json", {}, "8% below the 1519", "warn gpu2 local_copy → investigate"),
        ("slow-gpu5.json", {"sku": None}, "", "fail gpu5 local_copy → investigate"),
        ("no-value-gpu4.json", {}, "no copy for some", "error node  → investigate"),
    ],
    "ddp_scaling": [
        ("healthy.jsonl", {}, "(limit ≥ 45 %)", KEPT),
        ("overlap-slow-gpu3.jsonl", {}, "without communication it keeps up", STRAGGLER, KEPT),
        ("overlap-slightly-slow-gpu3.jsonl", {}, "14% below", "warn gpu3 overlapped → investigate", KEPT),
        ("slow-gpu5.jsonl", {}, "is 30% below them as well", "fail gpu5 overlapped → investigate", KEPT),
        ("overlap-slow-all.jsonl", {}, "is 35.1 %", "fail node kept → investigate"),
        ("overlap-slow-gpu3.jsonl", {"sku": None}, "", STRAGGLER, "warn node kept → fix configuration"),
        ("absent.jsonl", {}, "no torch in /usr/bin/python3", "skip node kept"),
        ("absent.jsonl", TORCH, "no torch", "error node  → fix configuration"),
    ],
    "dcgm_diag": [
        ("v4-healthy.json", {}, "3 tests passed", "pass node level"),
        ("v3-healthy.json", {}, "3 tests passed", "pass node level"),
        ("v4-memory-gpu3.json", {"rc": 205}, "A DBE occurred", "fail gpu3 memory → replace part"),
        ("v4-without-results.json", {"rc": 205}, "", "fail gpu3 memory → replace part"),
        ("v3-memory-gpu5.json", {}, "", "fail gpu5 gpu_memory → replace part"),
        ("v3-quick-healthy.json", QUICK, "level 1", "pass node level"),
        ("v3-quick-remap-gpu3.json", QUICK, "row remappings are pending", REMAP),
        # DCGM issue 284: an error attached to a test that passed.
        ("v4-pass-with-error.json", {}, "correctable errors", "warn gpu6 memory → watch"),
        ("v4-persistence.json", {}, "disabled", "warn gpu0 software → fix configuration"),
        ("v4-not-run.json", {}, "did not come to run", *(f"error gpu{n}  → run again" for n in range(4, 8))),
    ],
    "nccl_all_reduce": [
        ("healthy.txt", {}, "over 8 GPUs at 16 GiB is 478 GB/s", BUSBW),
        ("warnings.txt", {}, "over 8 GPUs at 16 GiB is 478 GB/s", BUSBW),
        ("slow.txt", {}, "", "fail node busbw → investigate"),
        ("wrong.txt", {}, "96 wrong elements", "fail node wrong → investigate", BUSBW),
        # 365 GB/s is low for eight GPUs and fine for four.
        ("four-gpus.txt", {"count": 4}, "(limit ≥ 347 GB/s)", BUSBW),
        ("four-gpus.txt", {"count": 4, "sku": "h100-nvl"}, "", "warn node busbw → fix configuration"),
    ],
    **{
        f"nccl_{name}": [
            ("healthy.txt", {}, f"over 8 GPUs at 16 GiB is {rate} GB/s", BUSBW),
            ("slow.txt", {}, "", "fail node busbw → investigate"),
            ("wrong.txt", {}, "48 wrong elements", "fail node wrong → investigate", BUSBW),
        ]
        for name, rate in {"all_gather": 359.02, "reduce_scatter": 360.94, "alltoall": 341.73}.items()
    },
    "p2p_bandwidth": [
        ("healthy.json", {}, "of all 56 is ≥ 335 GB/s", *HOST, *PEERS),
        ("healthy.txt", {}, "of all 56 is ≥ 335 GB/s", *HOST, *PEERS),
        ("slow-pair-2-6.json", {}, "172.105 GB/s", *HOST, "fail gpu2-gpu6 p2p_write → reset GPU"),
        ("slow-pair-2-6.txt", {}, "171.97 GB/s", *HOST, "fail gpu2-gpu6 p2p_read → reset GPU"),
        ("slow-pair-one-way.json", {}, "229.912 GB/s", *HOST, "fail gpu1-gpu4 p2p_read → reset GPU"),
        ("slow-gpu5.json", {}, "its pairs", *HOST, "fail gpu5 p2p_write → reset GPU"),
        ("slow-h2d-gpu7.json", {}, "is 27.2328 GB/s", f"fail gpu7 h2d → {RESEAT}", HOST[1], *PEERS),
        ("no-peer-access.json", {}, "no peer access", *HOST, "fail gpu0-gpu3 p2p_read → reset GPU"),
        ("waived.json", L40S, "no peer access", *HOST, "skip node p2p_read", "skip node p2p_write"),
        ("waived.json", {"count": 4}, "no GPU can reach another", *NARROW, *UNREACHED),
    ],
    "gpu_burn": [
        ("healthy.txt", {}, "at 428946 Gflop/s", "pass node rate"),  # the first report is warm-up
        ("healthy-power.txt", {}, "at 430040 Gflop/s", "pass node rate"),
        ("faulty-gpu3.txt", {}, "FAULTY, 426 errors", FAULTY),  # exit status 0
        ("faulty-gpu3.txt", {"count": 9}, "tested 8 GPUs, the node has 9", FAULTY, UNMEASURED),
        ("died-gpu6.txt", {}, "worker died", "error gpu6  → investigate"),
        ("slow-gpu5.txt", {}, "16% below", "warn gpu5 rate → investigate"),
        ("very-slow-gpu5.txt", {}, "40% below", "fail gpu5 rate → investigate"),
        ("zero-seconds.txt", {"count": 1}, "0 s instead of 60 s", UNMEASURED, "warn node rate → run again"),
        ("no-temperatures.txt", {"count": 2}, "", "pass node rate"),
    ],
}


def measured(check: str, text: str, **more: Any) -> list[Measurement]:
    """Parse this output. `more`: exit status and the like, and the node."""
    fate = {name: more.pop(name) for name in ("rc", "stderr", "timed_out", "seconds") if name in more}
    node = node_for(check, **more)
    return CHECKS[check].parse(node, answered(check, node, text, **fate))


def judged(check: str, name: str, **more: Any) -> list[Finding]:
    node = node_for(check, **{key: value for key, value in more.items() if key != "rc"})
    return CHECKS[check].judge(node, measured(check, changed(check, name), **more), limits_of(node))


def row(finding: Finding) -> str:
    action = "" if finding.action == "none" else f" → {finding.action}"
    return f"{finding.verdict} {finding.device} {finding.metric}{action}"


@pytest.mark.parametrize(
    ("check", "case"),
    [(check, case) for check, cases in FINDINGS.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_sample_is_judged(check: str, case: tuple[Any, ...]) -> None:
    name, node, said, *expected = case
    found = judged(check, name, **node)
    assert [row(finding) for finding in found] == expected
    assert said in " ".join(finding.message for finding in found)


@pytest.mark.parametrize(
    ("check", "count"), [("disk_speed", 2), ("memory_bandwidth", 1), ("ddp_scaling", 1), ("p2p_bandwidth", 4)]
)
def test_without_a_limit_nobody_passes(check: str, count: int) -> None:
    node = node_for(check, sku=None)
    text = changed(check, "healthy.jsonl" if check == "ddp_scaling" else "healthy.json")
    found = CHECKS[check].judge(node, measured(check, text, sku=None), {})
    assert [(f.verdict, f.device, f.action) for f in found] == [
        (Verdict.WARN, "node", "fix configuration")
    ] * count
    assert all("--thresholds" in f.message for f in found)


BANDWIDTH = '"bw_bytes": 2811400000'
NOT_UNDERSTOOD = "was not understood"
# Check, sample, node and exit status, replacement in the sample, and the reason for refusal.
REFUSED: list[tuple[Any, ...]] = [
    ("disk_speed", "no-space.json", {}, "fio failed to write"),
    ("disk_speed", "healthy.json", {"rc": 1, "stderr": "fio: bad header"}, "ended with status 1: fio: bad"),
    ("disk_speed", "healthy.json", {}, "fio ran the jobs", ('"jobname": "read"', '"jobname": "trim"')),
    *(
        ("disk_speed", "healthy.json", {}, NOT_UNDERSTOOD, change)
        for change in (
            ('"bw_bytes": 6', '"bw_bytes": -6'),
            ('"jobs"', '"work"'),
            (BANDWIDTH, '"bw_bytes": "2811400000"'),
            (BANDWIDTH, '"bw_bytes": true'),
            (BANDWIDTH, '"bw_bytes": "N/A"'),
            (BANDWIDTH, '"bw_bytes": 1e999'),
            ('"io_bytes": 42171000000', '"io_bytes": null'),
        )
    ),
    ("memory_bandwidth", "four-gpus.json", {}, "shows 4 GPUs, the node has 8"),
    ("memory_bandwidth", "not-found.json", {}, "Not Found"),
    ("ddp_scaling", "seven-gpus.jsonl", {}, "8 ranks, gpu0 first: RuntimeError: torch sees 7 GPUs instead"),
    ("ddp_scaling", "no-driver.jsonl", {}, "2 ranks, gpu1 first: RuntimeError: Found no NVIDIA driver"),
    ("dcgm_diag", "v3-memory-without-gpu0.json", {}, "tested 7 GPUs, the node has 8"),
    ("dcgm_diag", "v4-healthy.json", {"count": 4}, "tested 8 GPUs, the node has 4"),
    # Seen on a GB10 with DCGM 4.2.3.
    ("dcgm_diag", "v4-all-skipped.json", {}, "none of the tests of level 2: it skipped memory, pcie"),
    ("dcgm_diag", "v4-runtime-error.json", {"rc": 223}, "Host engine is not running"),
    *(
        ("dcgm_diag", "v4-memory-gpu3.json", {}, NOT_UNDERSTOOD, change)
        for change in (
            ('"Pass"', '"Perhaps"'),
            ('"entity_id": 2', '"entity_id": "two"'),
            ('"status"', '"state"'),
        )
    ),
    ("nccl_all_reduce", "four-gpus.txt", {}, "ran on 4 GPUs, the node has 8"),
    ("nccl_all_reduce", "not-ready.txt", {}, "system not yet initialized"),
    # nccl-tests, src/common.h: NCCLCHECK prints and returns a status, before or after the table.
    ("nccl_all_reduce", "healthy.txt", {"rc": -11}, "status -11"),
    ("nccl_all_reduce", "healthy.txt", {}, "row not understood", ("  269.05", "", 1)),
    *(
        ("nccl_all_gather", "healthy.txt", {}, "nccl-tests", (lost, "", 1))
        for lost in ("  359.41", "  41825.2", "       0")
    ),
    # A number in an unexpected unit could be ten times too large and pass any limit.
    *(
        ("nccl_all_reduce", "healthy.txt", {}, "units are not", change)
        for change in (
            ("(us)", "(ms)"),
            *(("(GB/s)", f"({unit}/s)", *count) for unit in ("Gb", "MB", "TB") for count in ((), (1,))),
        )
    ),
    *(
        (check, "nccl_all_reduce/healthy.txt", {}, *refusal)
        for check in ("nccl_all_gather", "nccl_reduce_scatter", "nccl_alltoall")
        for refusal in (
            ("reports that it is all_reduce_perf",),
            (
                "does not follow from algorithm bandwidth",
                ("# Collective test starting: all_reduce_perf\n", ""),
            ),
        )
    ),
    ("p2p_bandwidth", "error-beside-cases.json", {}, "CUDA_ERROR"),  # exit status 0
    ("p2p_bandwidth", "error-in-case.json", {}, "CUDA_ERROR"),
    ("p2p_bandwidth", "healthy.json", {"count": 7}, "1x8, but the node has 7 GPUs"),
    ("p2p_bandwidth", "healthy.json", {}, "another unit", ("(GB/s)", "(Gb/s)")),
    ("p2p_bandwidth", "healthy.txt", {}, "another unit", ("(GB/s)", "(Gb/s)")),
    ("gpu_burn", "stopped.txt", {}, "printed no result"),
    ("gpu_burn", "no-clients.txt", {}, "every worker died"),
    ("gpu_burn", "healthy.txt", {}, "Tflop/s", ("Gflop/s", "Tflop/s")),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_sample_is_refused(case: tuple[Any, ...]) -> None:
    check, name, more, said, *change = case
    with pytest.raises(ParseError) as refusal:
        measured(check, changed(check, name, *change), **more)
    assert said in refusal.value.what


# Folders, levels and Python paths that cannot be right.
NONSENSE = {
    ("disk_speed", "validation_tools_scratch_dir"): ["scratch", "/a:/etc", "/scratch/../etc", 7],
    ("dcgm_diag", "validation_tools_dcgm_level"): [5, "2", True, -1],
    ("ddp_scaling", "validation_tools_torch_python"): ["python3", 3, ["/a"]],
}


@pytest.mark.parametrize(
    ("check", "name", "value"), [(*key, value) for key, values in NONSENSE.items() for value in values]
)
def test_a_declaration_that_cannot_be_meant_is_refused(check: str, name: str, value: Any) -> None:
    node = make_node(**{name: value})
    assert CHECKS[check].commands(node, {}) == []
    with pytest.raises(ParseError, match=f"{name} is"):
        CHECKS[check].parse(node, {})


@pytest.mark.parametrize(
    ("check", "count", "said"),
    [
        ("dcgm_diag", 8, "validation_tools_dcgm_level"),
        ("disk_speed", 8, "validation_tools_scratch_dir"),
        ("ddp_scaling", 1, "one GPU"),
    ],
)
def test_where_there_is_nothing_to_run_it_is_skipped_with_the_reason(
    check: str, count: int, said: str
) -> None:
    node = make_node(count)
    assert CHECKS[check].commands(node, {}) == []
    (finding,) = CHECKS[check].judge(node, CHECKS[check].parse(node, {}), {})
    assert finding.verdict is Verdict.SKIP
    assert said in finding.message


HUNG = {"rc": None, "timed_out": True, "seconds": 150.0}
FAILED = "gpu-01: Test NCCL failure common.cu:982 'unhandled cuda error'\n"
NO_CLIENTS = {"rc": 123, "stderr": "\nNo clients are alive!  Aborting\n"}


@pytest.mark.parametrize(
    ("check", "text", "more", "said"),
    [
        ("gpu_burn", "", {}, "no result"),
        ("gpu_burn", "\x00\x01 segmentation fault \r\r\n", {}, "no result"),
        ("gpu_burn", "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: OK\n", {"count": 2}, "stopped at 0 %"),
        ("gpu_burn", "Burning for 60 seconds.\n", HUNG, "did not end within 150 s"),
        ("gpu_burn", "", NO_CLIENTS, "every worker died"),
        (
            "nccl_all_reduce",
            sample("nccl_all_reduce/healthy.txt") + FAILED,
            {"rc": 3},
            "3: Test NCCL failure",
        ),
        *(
            ("p2p_bandwidth", text, {}, "nvbandwidth")
            for text in ("", "garbage", "{", "[]", '{"nvbandwidth": {"testcases": 3}}', '{"nvbandwidth": []}')
        ),
    ],
)
def test_garbage_is_refused(check: str, text: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ParseError) as refusal:
        measured(check, text, **more)
    assert said in refusal.value.what


def xml(text: str) -> Any:
    return nvidia_smi.parse_xml(make_output("nvidia_smi", text))


CUT: dict[str, tuple[Callable[[str], Any], str]] = {
    "nvidia-smi -q -x": (xml, sample("gpu_inventory/h100-sick-v13.xml")),
    "ib_write_bw": (perftest.parse, sample("rdma_loopback/healthy.txt")),
    "ib_write_lat": (write_lat.parse, sample("pair_latency/healthy.txt")),
    **{
        f"{check}-{name}": (partial(measured, check), changed(check, name))
        for check, name in [
            ("dcgm_diag", "v4-memory-gpu3.json"),
            ("disk_speed", "healthy.json"),
            ("ddp_scaling", "healthy.jsonl"),
            ("gpu_burn", "faulty-gpu3.txt"),
            ("nccl_all_reduce", "healthy.txt"),
            ("nccl_all_reduce", "wrong.txt"),
            ("p2p_bandwidth", "slow-pair-2-6.json"),
            ("p2p_bandwidth", "slow-pair-2-6.txt"),
        ]
    },
}


@pytest.mark.parametrize(("parse", "text"), CUT.values(), ids=CUT)
@given(share=st.floats(0, 1))
def test_cut_anywhere_it_is_refused_or_means_the_same(
    parse: Callable[[str], Any], text: str, share: float
) -> None:
    try:
        cut = parse(text[: int(share * len(text))])
    except ParseError:
        return
    assert cut == parse(text)
