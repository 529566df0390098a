"""Tests of p2p_bandwidth: matrices from JSON and text, and the GPUs it blames."""

from __future__ import annotations

import json
import re

import pytest

from provision.checks.check import Measurement
from provision.checks.gpu import nvbandwidth, p2p_bandwidth
from provision.checks.judge import Verdict
from provision.checks.judging.registry import CHECKS
from provision.errors import ParseError
from tests.support.checks import answered, flagged, judged, make_node, make_output, sample


def test_the_command() -> None:
    (command,) = p2p_bandwidth.commands(
        make_node(validation_tools_nvbandwidth_path="/usr/bin/nvbandwidth"), {}
    )
    assert command.argv[:4] == ("/usr/bin/nvbandwidth", "-j", "-t", "host_to_device_memcpy_ce")
    assert command.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    host = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce")
    assert command.argv[3:5] == command.argv[-2:] == host


def test_of_two_readings_of_the_way_to_the_host_the_better_counts() -> None:
    """nvbandwidth prints a test case twice if it is requested twice (its main() runs the list in order)."""
    document = json.loads(sample("p2p_bandwidth/healthy.json"))
    cases = document["nvbandwidth"]["testcases"]
    cases += json.loads(json.dumps(cases[:2]))

    def slow(*which: int) -> list[tuple[object, ...]]:
        for number in which:
            cases[number]["bandwidth_matrix"][0][3] = "45.8"
        findings = judged("p2p_bandwidth", make_output("nvbandwidth", json.dumps(document)))
        return flagged(findings, "verdict", "device", "metric")

    assert slow() == []
    assert slow(1) == []
    assert slow(5) == [("fail", "gpu3", "d2h")]
    cases[4]["bandwidth_matrix"][0].pop()
    with pytest.raises(ParseError, match="run twice"):
        p2p_bandwidth.parse(make_node(), {"nvbandwidth": make_output("nvbandwidth", json.dumps(document))})


def test_json_and_text_measure_the_same() -> None:
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


def test_a_pair_above_the_limit_but_far_below_the_median_is_a_warning() -> None:
    document = json.loads(sample("p2p_bandwidth/healthy.json"))
    for case in document["nvbandwidth"]["testcases"][2:]:
        case["bandwidth_matrix"] = [["N/A" if i == j else "420.0" for j in range(8)] for i in range(8)]
        case["bandwidth_matrix"][3][7] = "340.0"
    findings = judged("p2p_bandwidth", make_output("nvbandwidth", json.dumps(document)))
    assert {("warn", "gpu3-gpu7")} == set(flagged(findings, "verdict", "device"))


def test_a_missing_way_is_told_of_beside_a_gpu_that_is_slow_towards_all() -> None:
    document = json.loads(sample("p2p_bandwidth/healthy.json"))
    for case in document["nvbandwidth"]["testcases"][2:]:
        rows = case["bandwidth_matrix"]
        for gpu in range(1, 8):
            rows[0][gpu] = rows[gpu][0] = "N/A" if gpu == 6 else "190.0"
    findings = judged("p2p_bandwidth", make_output("nvbandwidth", json.dumps(document)))
    said = {finding.device: finding.message for finding in findings if finding.verdict is Verdict.FAIL}
    assert said.keys() == {"gpu0", "gpu0-gpu6"}
    assert "no peer access" in said["gpu0-gpu6"]
    assert re.search(r"slow: 190 GB/s \(limit ≥ \d", said["gpu0"])


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


@pytest.mark.parametrize("cell", ["nan", "inf", "-5", "12,5", ""])
def test_a_cell_that_is_no_bandwidth_is_refused(cell: str) -> None:
    document = json.loads(sample("p2p_bandwidth/healthy.json"))
    document["nvbandwidth"]["testcases"][0]["bandwidth_matrix"][0][2] = cell
    with pytest.raises(ParseError, match="is not a bandwidth"):
        nvbandwidth.parse(json.dumps(document), ("host_to_device_memcpy_ce",))


# Public reports of nvbandwidth 0.8 and 0.4: a copy over a wrongly partitioned fabric, and the older form.
@pytest.mark.parametrize(
    "line",
    [f" Invalid value when checking the pattern at {address}" for address in ("0x735f80000000", "<0x73>")],
)
@pytest.mark.parametrize("check", ["p2p_bandwidth", "memory_bandwidth"])
def test_data_that_arrives_corrupted_fails(line: str, check: str) -> None:
    text = (
        "Running device_to_device_memcpy_read_ce.\n"
        f"{line}\n Current offset : 200064 \n"
        "ASSERT in expression h_errorFlag == 0 in void memcmpPatternHelper() : memcpy.cpp:165\n"
    )
    node = make_node()
    measured = CHECKS[check].parse(node, answered(check, node, text, rc=1))
    (finding,) = CHECKS[check].judge(node, measured, {})
    assert (finding.verdict, finding.metric) == (Verdict.FAIL, "corrupt")
    assert "device_to_device_memcpy_read_ce" in finding.message
