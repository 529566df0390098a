"""What all nccl_* checks of one node share: each its own program, table, limit and algorithm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding, Verdict
from provision.checks.nccl import nccl_all_reduce, nccl_collective
from provision.checks.registry import CHECKS
from provision.errors import ParseError

Judged = Callable[..., list[Finding]]
Sample = Callable[[str], str]
MakeOutput = Callable[..., Output]
MakeNode = Callable[..., CheckNode]

IDS = ("nccl_all_gather", "nccl_reduce_scatter", "nccl_alltoall")
HEALTHY = {"nccl_all_gather": 359.02, "nccl_reduce_scatter": 360.94, "nccl_alltoall": 341.73}


def program(check: str) -> str:
    return check.removeprefix("nccl_") + "_perf"


def bad(findings: list[Finding]) -> list[tuple[Verdict, str, str]]:
    return [(f.verdict, f.device, f.metric) for f in findings if f.verdict is not Verdict.PASS]


@pytest.mark.parametrize("check", IDS)
def test_a_healthy_node_passes_at_the_largest_size(
    check: str, sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    (finding,) = judged(check, make_output(program(check), sample(f"{check}/healthy.txt")))
    assert (finding.verdict, finding.value) == (Verdict.PASS, HEALTHY[check])
    assert "8 GPUs at 16 GiB" in finding.message


@pytest.mark.parametrize("check", IDS)
@pytest.mark.parametrize(("name", "metric"), [("slow", "busbw"), ("wrong", "wrong")])
def test_a_slow_group_and_a_wrong_one_fail_the_node(
    check: str, name: str, metric: str, sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    findings = judged(check, make_output(program(check), sample(f"{check}/{name}.txt")))
    assert bad(findings) == [(Verdict.FAIL, "node", metric)]
    assert all(f.action == "investigate" for f in findings if f.verdict is Verdict.FAIL)


@pytest.mark.parametrize("check", IDS)
def test_each_collective_starts_its_own_program(check: str, make_node: MakeNode) -> None:
    name = program(check)
    (command,) = CHECKS[check].commands(make_node(8), {})
    assert (command.name, command.argv[0]) == (name, f"/usr/bin/{name}")
    node = make_node(8, **{f"validation_tools_{name}_path": "/opt/x"})
    assert CHECKS[check].commands(node, {})[0].argv[0] == "/opt/x"


@pytest.mark.parametrize("check", IDS)
def test_the_table_of_another_collective_is_refused(
    check: str, sample: Sample, make_output: MakeOutput, make_node: MakeNode
) -> None:
    other = sample("nccl_all_reduce/healthy.txt")
    with pytest.raises(ParseError, match="reports that it is all_reduce_perf"):
        CHECKS[check].parse(make_node(), {program(check): make_output(program(check), other)})
    unnamed = other.replace("# Collective test starting: all_reduce_perf\n", "")
    with pytest.raises(ParseError, match="does not follow from algorithm bandwidth"):
        CHECKS[check].parse(make_node(), {program(check): make_output(program(check), unnamed)})


def test_a_renamed_program_is_still_the_program(
    sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    text = sample("nccl_all_gather/healthy.txt").replace("all_gather_perf", "all_gather_perf_mpi")
    (finding,) = judged("nccl_all_gather", make_output("all_gather_perf", text))
    assert finding.verdict is Verdict.PASS


def test_old_versions_leave_redop_and_root_blank(
    sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    text = sample("nccl_alltoall/healthy.txt")
    for blank in ("    none      -1", "    none"):
        old = text.replace(blank, " " * len(blank))
        assert old != text
        (finding,) = judged("nccl_alltoall", make_output("alltoall_perf", old))
        assert finding.value == HEALTHY["nccl_alltoall"]


@pytest.mark.parametrize("lost", ["  359.41", "  41825.2", "       0"])
def test_a_row_that_lost_a_number_is_refused(lost: str, sample: Sample, make_node: MakeNode) -> None:
    text = sample("nccl_all_gather/healthy.txt")
    cut = text.replace(lost, "", 1)
    assert cut != text, f"the sample has no {lost!r}: name a number that it has"
    with pytest.raises(ParseError):
        CHECKS["nccl_all_gather"].parse(
            make_node(), {"all_gather_perf": Output("all_gather_perf", ("x",), 0, cut, "", 1.0)}
        )


# -- algorithm

NVLS = "n:9:9 [0] NCCL INFO AllReduce: 17179869184 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..23}"
RING = NVLS.replace("Algo NVLS", "Algo RING")


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("", ""),
        ("NCCL INFO nothing of the kind", ""),
        (NVLS, "nvls"),
        (RING, "ring"),
        (RING.replace("17179869184", "8589934592") + "\n" + NVLS, "nvls"),  # of the largest message
        ("n:1:1 [0] NCCL INFO 17179869184 Bytes -> Algo 4 proto 2 time 48210.0", "nvls"),  # before 2.24
        ("n:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo 1 proto 2 time 9.4", "ring"),
        ("n:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo 77 proto 2 time 9.4", ""),
    ],
)
def test_nccl_says_which_algorithm_it_took(text: str, algorithm: str) -> None:
    assert nccl_collective.chosen_algorithm(text) == algorithm


def test_nccl_is_asked_without_disturbing_the_table(make_node: MakeNode) -> None:
    (command,) = nccl_all_reduce.commands(make_node(), {})
    assert command.env["NCCL_DEBUG_FILE"] == "/dev/stderr"
    assert "TUNING" in command.env["NCCL_DEBUG_SUBSYS"]


def test_a_healthy_ring_is_not_a_broken_fabric_and_yet_is_told(
    sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    """367 GB/s is what NCCL_NVLS_ENABLE=0 leaves of an H200's 480: no link is bad."""
    text = rescaled(sample("nccl_all_reduce/healthy.txt"), 367 / 478)
    (finding,) = judged("nccl_all_reduce", make_output("all_reduce_perf", text, stderr=RING))
    assert (finding.verdict, finding.action) == (Verdict.WARN, "fix configuration")
    assert "NVLink SHARP was not used" in finding.message
    # With the switch adding up, the same number is a fault.
    (finding,) = judged("nccl_all_reduce", make_output("all_reduce_perf", text, stderr=NVLS))
    assert finding.verdict is Verdict.FAIL


def test_a_slow_ring_fails_by_the_rings_own_limit(
    sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    text = rescaled(sample("nccl_all_reduce/healthy.txt"), 300 / 478)
    (finding,) = judged("nccl_all_reduce", make_output("all_reduce_perf", text, stderr=RING))
    assert (finding.verdict, finding.limit) == (Verdict.FAIL, "≥ 330 GB/s")


def test_where_no_ring_has_a_limit_of_its_own_the_plain_one_holds(
    sample: Sample, make_output: MakeOutput, judged: Judged, make_node: MakeNode
) -> None:
    """An A100 has no NVLink SHARP: its ring is all there is."""
    node = make_node(8, "a100-sxm-80", arch="ampere")
    text = rescaled(sample("nccl_all_reduce/healthy.txt"), 235 / 478)
    (finding,) = judged("nccl_all_reduce", make_output("all_reduce_perf", text, stderr=RING), node=node)
    assert (finding.verdict, finding.limit) == (Verdict.PASS, "≥ 228 GB/s")


def rescaled(text: str, factor: float) -> str:
    """The table with every rate changed by a factor."""
    lines = []
    for line in text.splitlines():
        cells = line.split()
        if line.strip()[:1].isdigit():
            for at in (6, 7, 10, 11):
                cells[at] = f"{float(cells[at]) * factor:.2f}"
            line = " ".join(cells)
        lines.append(line)
    return "\n".join(lines) + "\n"


def test_the_real_all_to_all(captures: Path, make_node: MakeNode, make_output: MakeOutput) -> None:
    text = (captures / "nccl-tests.alltoall.log").read_text()
    found = CHECKS["nccl_alltoall"].parse(make_node(), {"alltoall_perf": make_output("alltoall_perf", text)})
    assert {m.metric: m.value for m in found} == {"busbw": 224.31, "size": 8589934592, "ranks": 8}
