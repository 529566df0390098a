"""Collectives on AMD GPUs: rccl-tests output, with the rates that AMD publishes for eight MI300X.
Forms: src/common.cu at ae3e635, and newer releases in public outputs of MI350X with RCCL 2.27."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.vendors.amd import rccl
from provision.errors import ParseError
from tests.checks.amd_node import ADDRESSES, documents, facts, node_of, output, said

COLLECTIVES = (rccl.ALL_REDUCE, rccl.ALL_GATHER, rccl.REDUCE_SCATTER, rccl.ALL_TO_ALL)
GIB = 1 << 30


def text(
    busbw: float = 315.84, *, newer: bool = False, wrong: int = 0, ranks: int = 8, factor: float = 2.0
) -> str:
    lines = ["# Collective test starting: all_reduce_perf"] if newer else []
    lines += ["# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 17179869184 step: 2(factor)", "#"]
    lines += ["rccl-tests: Version develop:ae3e635", "# Using devices"]
    for rank, address in enumerate(ADDRESSES[:ranks]):
        where = address.rpartition(".")[0] if newer else address
        group = " Group  0" if newer else ""
        lines.append(
            f"#  Rank {rank:2d}{group} Pid 806883 on node device {rank:2d} [{where}] AMD Instinct MI300X"
        )
    if newer:
        lines += ["RCCL version : 2.27.7-develop:29e1567", "HIP version  : 7.0.51831-a3e329ad8"]
    names = ["time", "algbw", "busbw", "#wrong"] * 2
    lines += ["#", "# size count type redop root " + " ".join(names)]
    lines += ["# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)"]
    algbw = busbw / (factor * 7 / 8)
    for size in (8 * GIB, 16 * GIB):
        run = f"{size / algbw / 1e3:.0f} {algbw:.2f} {busbw:.2f} {wrong}"
        lines.append(f"  {size} {size // 4} float sum -1 {run} {run}")
    lines += ["# Errors with asterisks indicate errors that have exceeded the maximum threshold."]
    verdict = "FAILED" if wrong else "OK"
    return "\n".join(
        [*lines, f"# Out of bounds values : {wrong} {verdict}", f"# Avg bus bandwidth    : {busbw} ", ""]
    )


def run(stdout: str, rc: int = 0, stderr: str = "", program: str = "all_reduce_perf") -> Output:
    argv = (f"/usr/bin/{program}", "-b", "8G", "-e", "16G")
    return Output(program, argv, rc, stdout, stderr, 9.0)


def judged(one: Output, check: str = "nccl_all_reduce") -> list[Finding]:
    node = node_of(facts())
    return list(node_judge.judge_check(node, Raw("gpu-01", check, (one,)), node.limits()).findings)


@pytest.mark.parametrize("newer", [False, True])
def test_the_rates_of_a_healthy_mi300x_pass(newer: bool) -> None:
    (finding,) = judged(run(text(newer=newer)))
    assert (finding.verdict, finding.value, finding.limit) == (Verdict.PASS, 315.84, "≥ 304 GB/s")
    assert "system acceptance" in finding.source


def test_below_amds_minimum_the_node_fails() -> None:
    assert said(judged(run(text(297.0)))) == {("fail", "node", "busbw", "investigate")}


def test_a_collective_for_which_amd_states_nothing_is_a_warning() -> None:
    (finding,) = judged(run(text(300.0, factor=1.0), program="all_gather_perf"), "nccl_all_gather")
    assert finding.verdict is Verdict.WARN
    assert "no limit is known" in finding.message


@pytest.mark.parametrize("newer", [False, True])
def test_wrong_sums_fail_whatever_the_rate(newer: bool) -> None:
    findings = judged(run(text(wrong=3, newer=newer), rc=1))
    assert ("fail", "node", "wrong", "investigate") in said(findings)
    assert any("12 wrong elements" in one.message and "rccl-tests" in one.source for one in findings)


def test_the_version_of_rccl_is_measured() -> None:
    node = node_of(facts()).check_node
    found = rccl.ALL_REDUCE.parse(node, {"all_reduce_perf": run(text(newer=True))})
    assert {one.metric: one.value for one in found}["nccl_version"] == "2.27.7"


TOO_FEW = "[ERROR] The number of requested GPUs (8) is greater than the number of GPUs available (7)\n"


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (run("# nThread 1\n", 3, TOO_FEW), "rccl-tests: The number of requested GPUs (8) is greater"),
        (run("n: Test NCCL failure common.cu:1279 'unhandled system error / '\n", 3), "unhandled system"),
        (
            run("n: Test CUDA failure common.cu:1146 'no ROCm-capable device is detected'\n", 2),
            "no ROCm-capable",
        ),
        (run(text().partition("# Errors")[0]), "rccl-tests: the output stops before its end"),
        (run(text(ranks=7)), "ran on 7 GPUs, the node has 8"),
        (run(""), "printed nothing"),
        (run(text(newer=True), program="all_gather_perf"), "reports that it is all_reduce_perf"),
    ],
)
def test_what_is_no_result_is_an_error_in_amds_words(one: Output, words: str) -> None:
    check = "nccl_all_gather" if one.name == "all_gather_perf" else "nccl_all_reduce"
    findings = judged(one, check)
    assert [finding.verdict for finding in findings] == [Verdict.ERROR]
    assert words in findings[0].message
    assert "CUDA does" not in findings[0].message
    assert "fabric manager" not in findings[0].message


@pytest.mark.parametrize("module", COLLECTIVES)
def test_the_programs_are_those_of_amds_role(module: Any) -> None:
    program = module.NEEDS[0]
    node = node_of(
        facts(),
        {},
        **{
            f"amd_validation_tools_{program}_path": f"/opt/rccl-tests/{program}",
            f"validation_tools_{program}_path": f"/opt/nccl-tests/{program}",
        },
    ).check_node
    (command,) = module.commands(node, {})
    assert command.argv[0] == f"/opt/rccl-tests/{program}"
    assert command.argv[1:5] == ("-b", "8G", "-e", "16G"), "as far as 192 GB go"
    (usual,) = module.commands(node_of(facts()).check_node, {})
    assert usual.argv[0] == f"/usr/bin/{program}"


def test_programs_that_nothing_installs_are_asked_for() -> None:
    """The role installs them only if their source is declared, so `gpuprov up` alone would change nothing."""
    absent = replace(run("", rc=None), not_started="/usr/bin/all_reduce_perf is not installed")  # type: ignore[arg-type]
    with pytest.raises(ParseError) as refused:
        rccl.ALL_REDUCE.parse(node_of(facts()).check_node, {"all_reduce_perf": absent})
    assert refused.value.what == "all_reduce_perf did not start: /usr/bin/all_reduce_perf is not installed"
    assert "amd_validation_tools_rccl_tests_method" in refused.value.fix


def test_a_slow_collective_points_at_the_pair_that_was_found_slow() -> None:
    from provision.checks.suspects import point_at_cause

    pair = Finding("p2p_bandwidth", Verdict.FAIL, "gpu1-gpu4", "slow", "p2p_write", 24.0, "GB/s")
    slow = judged(run(text(240.0)))
    (_, told) = point_at_cause([pair, *slow])
    assert told.verdict is Verdict.WARN
    assert "gpu1-gpu4" in told.message


def test_amd_smi_is_asked_afterwards() -> None:
    node = node_of(facts())
    lost = documents()["static"]
    del lost["gpu_data"][2]
    import json

    answers = output("gpu_answers", json.dumps(lost))
    raw = Raw("gpu-01", "nccl_all_reduce", (run("n: Test NCCL failure x.cu:1 'unhandled'\n", 3), answers))
    found = node_judge.judge_check(node, raw, node.limits()).findings
    assert ("fail", "gpu2", "lost", "power-cycle") in said(found)


def test_a_row_is_refused_where_its_rates_contradict_each_other() -> None:
    strange = text().replace("315.84 0 ", "115.84 0 ")
    with pytest.raises(ParseError, match="does not follow from algorithm bandwidth"):
        rccl.ALL_REDUCE.parse(node_of(facts()).check_node, {"all_reduce_perf": run(strange)})
