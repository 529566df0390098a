"""Common behaviour of all nccl_* checks on one node: program, table, limit and algorithm."""

from __future__ import annotations

import pytest

from provision.checks.judge import Verdict
from provision.checks.judging.registry import CHECKS
from provision.checks.nccl import collectives, nccl_collective, nccl_table
from provision.errors import ParseError
from tests.support.checks import judged, make_node, make_output, sample

HEALTHY = sample("nccl_all_reduce/healthy.txt")


@pytest.mark.parametrize("check", ["nccl_all_gather", "nccl_reduce_scatter", "nccl_alltoall"])
def test_each_collective_starts_its_own_program(check: str) -> None:
    name = check.removeprefix("nccl_") + "_perf"
    (command,) = CHECKS[check].commands(make_node(8), {})
    assert (command.name, command.argv[0]) == (name, f"/usr/bin/{name}")
    node = make_node(8, **{f"validation_tools_{name}_path": "/opt/x"})
    assert CHECKS[check].commands(node, {})[0].argv[0] == "/opt/x"


def test_a_renamed_program_is_still_the_program() -> None:
    text = sample("nccl_all_gather/healthy.txt").replace("all_gather_perf", "all_gather_perf_mpi")
    (finding,) = judged("nccl_all_gather", make_output("all_gather_perf", text))
    assert finding.verdict is Verdict.PASS


def test_old_versions_leave_redop_and_root_blank() -> None:
    text = sample("nccl_alltoall/healthy.txt")
    for blank in ("    none      -1", "    none"):
        old = text.replace(blank, " " * len(blank))
        assert old != text
        (finding,) = judged("nccl_alltoall", make_output("alltoall_perf", old))
        assert finding.value == 341.73


@pytest.mark.parametrize(
    ("sku", "largest", "smallest"), [("h100-sxm", "16G", "8G"), ("l40s", "8G", "4G"), (None, "1G", "512M")]
)
def test_three_buffers_of_the_largest_size_fit_the_gpu(sku: str | None, largest: str, smallest: str) -> None:
    (command,) = collectives.ALL_REDUCE.commands(make_node(4, sku), {})
    argv = command.argv
    assert argv[argv.index("-e") + 1] == largest
    assert argv[argv.index("-b") + 1] == smallest
    assert argv[argv.index("-g") + 1] == "4"
    assert argv[-2:] == ("-c", "1")


@pytest.mark.parametrize("memory", [1000, 16_000, 24_000, 40_960, 46_068, 81_559, 183_359])
def test_the_largest_size_never_fills_a_gpu(memory: float) -> None:
    size = nccl_collective.largest_size(memory)
    assert size == 1 or 3 * size * 1024 <= 0.75 * memory


def test_columns_are_found_by_name() -> None:
    """`-I 1` and newer versions add columns, and the parsed numbers must stay the same."""
    wider = []
    for line in HEALTHY.splitlines():
        if line.startswith("#       size"):
            line += "  max_time"
        elif line.strip()[:1].isdigit():
            line += "   1.23"
        wider.append(line)
    assert nccl_table.parse("\n".join(wider) + "\n").rows == nccl_table.parse(HEALTHY).rows


@pytest.mark.parametrize("word", ["inf", "nan", "-1"])
def test_a_time_that_is_none_is_no_result(word: str) -> None:
    text = HEALTHY.replace(next(line for line in HEALTHY.splitlines() if " float " in line).split()[5], word)
    with pytest.raises(ParseError, match="row not understood"):
        nccl_table.parse(text)


def test_unchecked_sums_are_not_right_sums() -> None:
    unchecked = "\n".join(
        " ".join("N/A" if cell == "0" else cell for cell in line.split())
        if line.strip()[:1].isdigit()
        else line
        for line in HEALTHY.splitlines()
    )
    findings = judged("nccl_all_reduce", make_output("all_reduce_perf", unchecked + "\n"))
    assert [f.verdict for f in findings] == [Verdict.ERROR, Verdict.PASS]


def test_the_environment_never_leaves_this_module() -> None:
    text = sample("nccl_all_reduce/healthy.json")
    assert "hunter2" in text
    for written in (text, "# noise first\n" + text, text[:600]):
        assert "hunter2" not in nccl_table.without_environment(written)
    assert nccl_table.without_environment(HEALTHY) == HEALTHY


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
        (RING.replace("17179869184", "8589934592") + "\n" + NVLS, "nvls"),  # the largest message counts
        ("n:1:1 [0] NCCL INFO 17179869184 Bytes -> Algo 4 proto 2 time 48210.0", "nvls"),  # before NCCL 2.24
        ("n:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo 1 proto 2 time 9.4", "ring"),
        ("n:1:1 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo 77 proto 2 time 9.4", ""),
    ],
)
def test_nccl_says_which_algorithm_it_took(text: str, algorithm: str) -> None:
    assert nccl_collective.chosen_algorithm(text) == algorithm


def test_nccl_is_asked_without_disturbing_the_table() -> None:
    (command,) = collectives.ALL_REDUCE.commands(make_node(), {})
    assert command.env["NCCL_DEBUG_FILE"] == "/dev/stderr"
    assert "TUNING" in command.env["NCCL_DEBUG_SUBSYS"]


def rescaled(rate: float) -> str:
    """Return the 478 GB/s table scaled to this rate."""
    lines = []
    for line in HEALTHY.splitlines():
        cells = line.split()
        if line.strip()[:1].isdigit():
            for at in (6, 7, 10, 11):
                cells[at] = f"{float(cells[at]) * rate / 478:.2f}"
            line = " ".join(cells)
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("rate", "algorithm", "sku", "verdict", "limit"),
    [
        # NCCL_NVLS_ENABLE=0 reduces an H200's 480 GB/s to 367, without any bad link.
        (367, RING, "h100-sxm", Verdict.WARN, "≥ 330 GB/s"),
        (367, NVLS, "h100-sxm", Verdict.FAIL, "≥ 460 GB/s"),
        (300, RING, "h100-sxm", Verdict.FAIL, "≥ 330 GB/s"),
        # An A100 has no NVLink SHARP, so ring is its best algorithm.
        (235, RING, "a100-sxm-80", Verdict.PASS, "≥ 228 GB/s"),
    ],
)
def test_a_ring_is_judged_by_its_own_limit_where_there_is_one(
    rate: float, algorithm: str, sku: str, verdict: Verdict, limit: str
) -> None:
    output = make_output("all_reduce_perf", rescaled(rate), stderr=algorithm)
    (finding,) = judged("nccl_all_reduce", output, node=make_node(8, sku))
    assert (finding.verdict, finding.limit) == (verdict, limit)
    if verdict is Verdict.WARN:
        assert finding.action == "fix configuration"
        assert "NVLink SHARP was not used" in finding.message
