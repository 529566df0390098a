"""nccl_all_reduce: the table by its header, the largest size, wrong sums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding, Verdict
from provision.checks.nccl import nccl_all_reduce, nccl_collective
from provision.errors import ParseError

Judged = Callable[..., list[Finding]]
Sample = Callable[[str], str]
MakeOutput = Callable[..., Output]
MakeNode = Callable[..., CheckNode]


def bad(findings: list[Finding]) -> list[tuple[Verdict, str, str]]:
    return [(f.verdict, f.device, f.metric) for f in findings if f.verdict is not Verdict.PASS]


@pytest.mark.parametrize(
    ("sku", "largest", "smallest"), [("h100-sxm", "16G", "8G"), ("l40s", "8G", "4G"), (None, "1G", "512M")]
)
def test_three_buffers_of_the_largest_size_fit_the_gpu(
    sku: str | None, largest: str, smallest: str, make_node: MakeNode
) -> None:
    (command,) = nccl_all_reduce.commands(make_node(4, sku), {})
    argv = command.argv
    assert argv[argv.index("-e") + 1] == largest
    assert argv[argv.index("-b") + 1] == smallest
    assert argv[argv.index("-g") + 1] == "4"
    assert argv[-2:] == ("-c", "1")


@pytest.mark.parametrize("memory", [1000, 16_000, 24_000, 40_960, 46_068, 81_559, 183_359])
def test_the_largest_size_never_fills_a_gpu(memory: float) -> None:
    size = nccl_collective.largest_size(memory)
    assert size == 1 or 3 * size * 1024 <= 0.75 * memory


@pytest.mark.parametrize("name", ["healthy.txt", "warnings.txt"])
def test_a_healthy_node_passes_at_the_largest_size(
    name: str, sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    (finding,) = judged("nccl_all_reduce", make_output("all_reduce_perf", sample(f"nccl_all_reduce/{name}")))
    assert finding.verdict is Verdict.PASS
    assert finding.value == pytest.approx(478, abs=0.5)
    assert "16 GiB" in finding.message


def test_a_slow_group_fails_the_node(sample: Sample, make_output: MakeOutput, judged: Judged) -> None:
    findings = judged("nccl_all_reduce", make_output("all_reduce_perf", sample("nccl_all_reduce/slow.txt")))
    assert bad(findings) == [(Verdict.FAIL, "node", "busbw")]


def test_wrong_sums_fail_whatever_the_speed(sample: Sample, make_output: MakeOutput, judged: Judged) -> None:
    findings = judged("nccl_all_reduce", make_output("all_reduce_perf", sample("nccl_all_reduce/wrong.txt")))
    assert bad(findings) == [(Verdict.FAIL, "node", "wrong")]
    assert "96 wrong elements" in findings[0].message


def test_the_limit_follows_the_number_of_gpus(
    sample: Sample, make_output: MakeOutput, judged: Judged, make_node: MakeNode
) -> None:
    output = make_output("all_reduce_perf", sample("nccl_all_reduce/four-gpus.txt"))
    (finding,) = judged("nccl_all_reduce", output, node=make_node(4))  # 365 GB/s: low for 8 GPUs, fine for 4
    assert (finding.verdict, finding.limit) == (Verdict.PASS, "≥ 347 GB/s")


def test_without_a_limit_for_this_count_it_is_a_warning(
    sample: Sample, make_output: MakeOutput, judged: Judged, make_node: MakeNode
) -> None:
    output = make_output("all_reduce_perf", sample("nccl_all_reduce/four-gpus.txt"))
    findings = judged("nccl_all_reduce", output, node=make_node(4, "h100-nvl"))
    assert bad(findings) == [(Verdict.WARN, "node", "busbw")]


def test_fewer_ranks_than_gpus_is_refused(
    sample: Sample, make_output: MakeOutput, make_node: MakeNode
) -> None:
    output = make_output("all_reduce_perf", sample("nccl_all_reduce/four-gpus.txt"))
    with pytest.raises(ParseError, match="ran on 4 GPUs, the node has 8"):
        nccl_all_reduce.parse(make_node(), {"all_reduce_perf": output})


def test_a_failure_is_told_in_its_own_words(
    sample: Sample, make_output: MakeOutput, make_node: MakeNode
) -> None:
    output = make_output("all_reduce_perf", sample("nccl_all_reduce/not-ready.txt"))
    with pytest.raises(ParseError, match="system not yet initialized"):
        nccl_all_reduce.parse(make_node(), {"all_reduce_perf": output})


def test_columns_are_found_by_name(sample: Sample) -> None:
    """`-I 1` and new versions add columns: the same numbers must come out."""
    plain = sample("nccl_all_reduce/healthy.txt")
    wider = []
    for line in plain.splitlines():
        if line.startswith("#       size"):
            line += "  max_time"
        elif line.strip()[:1].isdigit():
            line += "   1.23"
        wider.append(line)
    assert nccl_collective.parse("\n".join(wider) + "\n").rows == nccl_collective.parse(plain).rows


def test_a_row_that_does_not_fit_its_header_is_refused(sample: Sample) -> None:
    with pytest.raises(ParseError, match="row not understood"):
        nccl_collective.parse(sample("nccl_all_reduce/healthy.txt").replace("  269.05", "", 1))


def test_unchecked_sums_are_not_right_sums(sample: Sample, make_output: MakeOutput, judged: Judged) -> None:
    text = sample("nccl_all_reduce/healthy.txt")
    unchecked = "\n".join(
        " ".join("N/A" if cell == "0" else cell for cell in line.split())
        if line.strip()[:1].isdigit()
        else line
        for line in text.splitlines()
    )
    findings = judged("nccl_all_reduce", make_output("all_reduce_perf", unchecked + "\n"))
    assert [f.verdict for f in findings] == [Verdict.ERROR, Verdict.PASS]


def test_the_environment_never_leaves_this_module(sample: Sample) -> None:
    text = sample("nccl_all_reduce/healthy.json")
    assert "hunter2" in text
    for written in (text, "# noise first\n" + text, text[:600]):
        assert "hunter2" not in nccl_collective.without_environment(written)
    plain = sample("nccl_all_reduce/healthy.txt")
    assert nccl_collective.without_environment(plain) == plain


FOLDER = Path(__file__).parent.parent / "fixtures/nccl_all_reduce"
TEXTS = [(FOLDER / name).read_text() for name in ("healthy.txt", "wrong.txt")]
NODE = CheckNode("n", {"gpu": {"count": 8, "sku": "h100-sxm", "fabric": "nvswitch"}}, {})


@given(st.sampled_from(TEXTS), st.floats(0, 1))
def test_cut_anywhere_it_is_refused_or_means_the_same(text: str, where: float) -> None:
    whole = nccl_all_reduce.parse(NODE, {"all_reduce_perf": Output("x", ("x",), 0, text, "", 1.0)})
    cut = Output("x", ("x",), 0, text[: int(where * len(text))], "", 1.0)
    with contextlib.suppress(ParseError):
        assert nccl_all_reduce.parse(NODE, {"all_reduce_perf": cut}) == whole


def test_the_real_captures(captures: Path, make_output: MakeOutput, make_node: MakeNode) -> None:
    output = make_output("all_reduce_perf", (captures / "nccl-tests.all_reduce.log").read_text())
    found = {m.metric: m.value for m in nccl_all_reduce.parse(make_node(), {"all_reduce_perf": output})}
    assert found == {
        "busbw": 235.03,
        "size": 8589934592,
        "ranks": 8,
    }  # the older `error` column says N/A: unchecked


@pytest.mark.parametrize(
    ("rc", "words", "told"),
    [
        (3, "gpu-01: Test NCCL failure common.cu:982 'unhandled cuda error'", "status 3: Test NCCL failure"),
        (-11, "", "status -11"),
    ],
)
def test_a_failure_behind_a_clean_table_is_no_pass(
    rc: int, words: str, told: str, sample: Sample, make_output: MakeOutput, make_node: MakeNode
) -> None:
    """nccl-tests, src/common.h: NCCLCHECK prints and returns a status, after the table as well as before."""
    output = make_output("all_reduce_perf", sample("nccl_all_reduce/healthy.txt") + words + "\n", rc=rc)
    with pytest.raises(ParseError, match=told):
        nccl_all_reduce.parse(make_node(), {"all_reduce_perf": output})
