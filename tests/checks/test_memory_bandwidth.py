"""Tests of memory_bandwidth: a MIG slice is not measured as if it were the GPU."""

from __future__ import annotations

import pytest

from provision.checks.check import Raw
from provision.checks.gpu import memory_bandwidth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.thresholds import for_sku
from provision.errors import ParseError
from tests.support.checks import answered, make_node, make_output, sample


def judge(name: str, mig: str) -> list[Finding]:
    node = make_node()
    outputs = answered("memory_bandwidth", node, sample(f"memory_bandwidth/{name}"))
    outputs["mig"] = make_output("mig", mig)
    return memory_bandwidth.judge(node, memory_bandwidth.parse(node, outputs), for_sku(node.sku))


def test_a_slice_has_a_part_of_the_memory_bandwidth() -> None:
    (finding,) = judge("four-gpus.json", "Disabled\n" * 3 + "Enabled\n" + "Disabled\n" * 4)
    assert finding.verdict is Verdict.SKIP
    assert "gpu3" in finding.message


def test_gpus_without_such_a_mode_are_measured() -> None:
    (finding,) = judge("healthy.json", "[N/A]\n" * 8)
    assert (finding.verdict, finding.device) == (Verdict.PASS, "node")


@pytest.mark.parametrize("mig", ["Disabled\n" * 7, "No devices were found\n" * 8])
def test_a_mode_that_is_not_told_of_all_gpus_is_refused(mig: str) -> None:
    with pytest.raises(ParseError, match="did not report the MIG mode of 8 GPUs"):
        judge("healthy.json", mig)


def test_a_program_that_is_not_installed_has_no_evidence_from_the_others() -> None:
    node = make_node()
    asked = make_output("mig", "Disabled\n" * 8)
    absent = make_output("nvbandwidth", rc=None, not_started="nvbandwidth is not installed")
    facts = NodeFacts("gpu-01", {}, node.gpuprov_node, node.variables)
    result = node_judge.judge_check(facts, Raw("gpu-01", "memory_bandwidth", (asked, absent)), {})
    (finding,) = result.findings
    assert "nvbandwidth is not installed" in finding.message
    assert finding.evidence == ()
