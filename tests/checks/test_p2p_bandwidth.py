"""p2p_bandwidth: matrices from JSON and text, and who is named."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import CheckNode, Measurement, Output
from provision.checks.gpu import nvbandwidth, p2p_bandwidth
from provision.checks.judge import Finding, Verdict
from provision.checks.registry import CHECKS
from provision.errors import ParseError

Judged = Callable[..., list[Finding]]
Sample = Callable[[str], str]
MakeOutput = Callable[..., Output]
MakeNode = Callable[..., CheckNode]


def bad(findings: list[Finding]) -> list[tuple[Verdict, str]]:
    return [(f.verdict, f.device) for f in findings if f.verdict is not Verdict.PASS]


def test_the_command(make_node: MakeNode) -> None:
    (command,) = p2p_bandwidth.commands(
        make_node(validation_tools_nvbandwidth_path="/usr/bin/nvbandwidth"), {}
    )
    assert command.argv[:4] == ("/usr/bin/nvbandwidth", "-j", "-t", "host_to_device_memcpy_ce")
    assert command.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize("name", ["healthy.json", "healthy.txt"])
def test_a_healthy_node_passes_in_all_four_directions(
    name: str, sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    findings = judged("p2p_bandwidth", make_output("nvbandwidth", sample(f"p2p_bandwidth/{name}")))
    assert [f.verdict for f in findings] == [Verdict.PASS] * 4
    assert {f.metric for f in findings} == {"h2d", "d2h", "p2p_read", "p2p_write"}


def test_json_and_text_measure_the_same(sample: Sample, make_output: MakeOutput, make_node: MakeNode) -> None:
    def measured(name: str) -> list[Measurement]:
        return p2p_bandwidth.parse(make_node(), {"nvbandwidth": make_output("nvbandwidth", sample(name))})

    from_json, from_text = (
        measured("p2p_bandwidth/slow-pair-2-6.json"),
        measured("p2p_bandwidth/slow-pair-2-6.txt"),
    )
    assert [(m.metric, m.device) for m in from_json] == [(m.metric, m.device) for m in from_text]
    assert len(from_json) == 8 + 8 + 56 + 56
    slow = [m.device for m in from_text if m.metric == "p2p_read" and float(m.value) < 335]
    assert sorted(slow) == ["gpu2->gpu6", "gpu6->gpu2"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slow-pair-2-6.json", [(Verdict.FAIL, "gpu2-gpu6")]),
        ("slow-pair-2-6.txt", [(Verdict.FAIL, "gpu2-gpu6")]),
        ("slow-pair-one-way.json", [(Verdict.FAIL, "gpu1-gpu4")]),
        ("slow-gpu5.json", [(Verdict.FAIL, "gpu5")]),
        ("slow-h2d-gpu7.json", [(Verdict.FAIL, "gpu7")]),
        ("no-peer-access.json", [(Verdict.FAIL, "gpu0-gpu3")]),
    ],
)
def test_one_culprit_is_named_once(
    name: str, expected: list[tuple[Verdict, str]], sample: Sample, make_output: MakeOutput, judged: Judged
) -> None:
    assert (
        bad(judged("p2p_bandwidth", make_output("nvbandwidth", sample(f"p2p_bandwidth/{name}")))) == expected
    )


def test_a_pair_above_the_limit_but_far_below_the_median_is_a_warning(
    make_output: MakeOutput, judged: Judged
) -> None:
    document = json.loads((Path(__file__).parent.parent / "fixtures/p2p_bandwidth/healthy.json").read_text())
    for case in document["nvbandwidth"]["testcases"][2:]:
        case["bandwidth_matrix"] = [["N/A" if i == j else "420.0" for j in range(8)] for i in range(8)]
        case["bandwidth_matrix"][3][7] = "340.0"
    findings = judged("p2p_bandwidth", make_output("nvbandwidth", json.dumps(document)))
    assert bad(findings) == [(Verdict.WARN, "gpu3-gpu7")]


def test_the_arrow_says_who_sends() -> None:
    document = {
        "nvbandwidth": {
            "testcases": [
                {
                    "name": name,
                    "status": "Passed",
                    "bandwidth_description": f"memcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s) ",
                    "bandwidth_matrix": [["N/A", "100"], ["200", "N/A"]],
                }
                for name, arrow in (("read", "->"), ("write", "<-"))
            ]
        }
    }
    found = nvbandwidth.parse(json.dumps(document), ("read", "write"))
    assert not found["read"].columns_send
    assert found["write"].columns_send


def test_waived_pairs_are_skipped_with_a_reason_without_a_fabric(
    sample: Sample, make_output: MakeOutput, judged: Judged, make_node: MakeNode
) -> None:
    output = make_output("nvbandwidth", sample("p2p_bandwidth/waived.json"))
    findings = judged("p2p_bandwidth", output, node=make_node(4, "l40s", "none", "ada"))
    assert bad(findings) == [(Verdict.SKIP, "node")] * 2
    assert "no peer access" in findings[-1].message


def test_waived_pairs_fail_where_nvswitches_join_the_gpus(
    sample: Sample, make_output: MakeOutput, judged: Judged, make_node: MakeNode
) -> None:
    output = make_output("nvbandwidth", sample("p2p_bandwidth/waived.json"))
    assert (Verdict.FAIL, "node") in bad(judged("p2p_bandwidth", output, node=make_node(4)))


def test_without_a_limit_it_is_a_warning(
    sample: Sample, make_output: MakeOutput, judged: Judged, make_node: MakeNode
) -> None:
    output = make_output("nvbandwidth", sample("p2p_bandwidth/healthy.json"))
    findings = judged("p2p_bandwidth", output, node=make_node(sku=None))
    assert bad(findings) == [(Verdict.WARN, "node")] * 4
    assert "--thresholds" in findings[0].message


@pytest.mark.parametrize("name", ["error-beside-cases.json", "error-in-case.json"])
def test_an_error_with_exit_status_0_is_refused(
    name: str, sample: Sample, make_output: MakeOutput, make_node: MakeNode
) -> None:
    output = make_output("nvbandwidth", sample(f"p2p_bandwidth/{name}"), rc=0)
    with pytest.raises(ParseError, match="CUDA_ERROR"):
        p2p_bandwidth.parse(make_node(), {"nvbandwidth": output})


def test_a_matrix_of_another_size_is_refused(
    sample: Sample, make_output: MakeOutput, make_node: MakeNode
) -> None:
    output = make_output("nvbandwidth", sample("p2p_bandwidth/healthy.json"))
    with pytest.raises(ParseError, match="1x8, but the node has 7 GPUs"):
        p2p_bandwidth.parse(make_node(count=7), {"nvbandwidth": output})


@pytest.mark.parametrize(
    "text", ["", "garbage", "{", "[]", '{"nvbandwidth": {"testcases": 3}}', '{"nvbandwidth": []}']
)
def test_garbage_is_refused(text: str, make_output: MakeOutput, make_node: MakeNode) -> None:
    with pytest.raises(ParseError):
        p2p_bandwidth.parse(make_node(), {"nvbandwidth": make_output("nvbandwidth", text)})


@pytest.mark.parametrize("cell", ["nan", "inf", "-5", "12,5", ""])
def test_a_cell_that_is_no_bandwidth_is_refused(cell: str, sample: Sample) -> None:
    document = json.loads(sample("p2p_bandwidth/healthy.json"))
    document["nvbandwidth"]["testcases"][0]["bandwidth_matrix"][0][2] = cell
    with pytest.raises(ParseError, match="is not a bandwidth"):
        nvbandwidth.parse(json.dumps(document), ("host_to_device_memcpy_ce",))


FOLDER = Path(__file__).parent.parent / "fixtures/p2p_bandwidth"
TEXTS = [(FOLDER / name).read_text() for name in ("slow-pair-2-6.json", "slow-pair-2-6.txt")]
NODE = CheckNode("n", {"gpu": {"count": 8, "sku": "h100-sxm", "fabric": "nvswitch"}}, {})


@given(st.sampled_from(TEXTS), st.floats(0, 1))
def test_cut_anywhere_it_is_refused_or_means_the_same(text: str, where: float) -> None:
    whole = p2p_bandwidth.parse(
        NODE, {"nvbandwidth": Output("nvbandwidth", ("nvbandwidth",), 0, text, "", 1.0)}
    )
    cut = Output("nvbandwidth", ("nvbandwidth",), 0, text[: int(where * len(text))], "", 1.0)
    with contextlib.suppress(ParseError):
        assert p2p_bandwidth.parse(NODE, {"nvbandwidth": cut}) == whole


def test_the_real_capture(captures: Path) -> None:
    text = (captures / "nvbandwidth.text.log").read_text()
    found = nvbandwidth.parse(text, ("host_to_device_memcpy_ce", "device_to_device_memcpy_read_ce"))
    assert found["host_to_device_memcpy_ce"].rows[0] == (369.36, 269.33, 412.11)
    assert found["device_to_device_memcpy_read_ce"].waived
    with pytest.raises(ParseError, match="but the node has 8 GPUs"):
        p2p_bandwidth.parse(NODE, {"nvbandwidth": Output("nvbandwidth", ("nvbandwidth",), 0, text, "", 1.0)})


# In public reports (nvbandwidth 0.8 and 0.4): the copy of a wrongly partitioned fabric, and the older form.
@pytest.mark.parametrize(
    "line",
    [f" Invalid value when checking the pattern at {address}" for address in ("0x735f80000000", "<0x73>")],
)
@pytest.mark.parametrize("check", ["p2p_bandwidth", "memory_bandwidth"])
def test_data_that_arrives_corrupted_fails(
    line: str, check: str, make_node: MakeNode, make_output: MakeOutput
) -> None:
    text = (
        "Running device_to_device_memcpy_read_ce.\n"
        f"{line}\n Current offset : 200064 \n"
        "ASSERT in expression h_errorFlag == 0 in void memcmpPatternHelper() : memcpy.cpp:165\n"
    )
    module = CHECKS[check]
    outputs = {"nvbandwidth": make_output("nvbandwidth", text, rc=1)}
    if check == "memory_bandwidth":
        outputs["mig"] = make_output("mig", "Disabled\n" * 8)
    node = make_node()
    (finding,) = module.judge(node, module.parse(node, outputs), {})
    assert (finding.verdict, finding.metric) == (Verdict.FAIL, "corrupt")
    assert "device_to_device_memcpy_read_ce" in finding.message
