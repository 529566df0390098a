"""memory_bandwidth: the GPU with slow memory by its name; slices and missing values are no measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.gpu import memory_bandwidth
from provision.checks.judge import Finding, Verdict
from provision.checks.thresholds import for_sku
from provision.errors import ParseError

Sample = Callable[[str], str]
MakeNode = Callable[..., CheckNode]


def outputs(text: str, mig: str = "Disabled\n" * 8) -> dict[str, Output]:
    return {
        "mig": Output("mig", ("nvidia-smi",), 0, mig, "", 1.0),
        "nvbandwidth": Output("nvbandwidth", ("nvbandwidth",), 0, text, "", 1.0),
    }


@pytest.fixture
def judge(make_node: MakeNode, sample: Sample) -> Callable[..., list[Finding]]:
    def run(name: str, sku: str | None = "h100-sxm", count: int = 8, **more: Any) -> list[Finding]:
        node = make_node(count, sku)
        given = outputs(sample(f"memory_bandwidth/{name}"), **more)
        return memory_bandwidth.judge(node, memory_bandwidth.parse(node, given), for_sku(sku))

    return run


def told(findings: list[Finding]) -> list[tuple[Verdict, str]]:
    return [(f.verdict, f.device) for f in findings]


@pytest.mark.parametrize("name", ["healthy.json", "healthy.txt"])
def test_healthy_memory_passes(name: str, judge: Any) -> None:
    (finding,) = judge(name)
    assert (finding.verdict, finding.value) == (Verdict.PASS, 1518.86)
    assert "gpu5" in finding.message


def test_slow_memory_names_its_gpu(judge: Any) -> None:
    (finding,) = judge("slow-gpu5.json")
    assert (finding.verdict, finding.device, finding.value) == (Verdict.FAIL, "gpu5", 1208.44)
    assert (finding.action, finding.limit) == ("investigate", "≥ 1367 GB/s")


def test_peers_find_what_keeps_to_the_limit(judge: Any) -> None:
    (finding,) = judge("slightly-slow-gpu2.json")
    assert (finding.verdict, finding.device) == (Verdict.WARN, "gpu2")
    assert "8% below the 1519" in finding.message


def test_without_a_limit_peers_still_condemn_and_nobody_passes(judge: Any) -> None:
    assert told(judge("slow-gpu5.json", sku=None)) == [(Verdict.FAIL, "gpu5")]
    assert told(judge("healthy.json", sku=None)) == [(Verdict.WARN, "node")]


def test_a_slice_has_a_part_of_the_memory_bandwidth(judge: Any) -> None:
    (finding,) = judge("four-gpus.json", mig="Disabled\n" * 3 + "Enabled\n" + "Disabled\n" * 4)
    assert finding.verdict is Verdict.SKIP
    assert "gpu3" in finding.message


def test_gpus_without_such_a_mode_are_measured(judge: Any) -> None:
    assert told(judge("healthy.json", mig="[N/A]\n" * 8)) == [(Verdict.PASS, "node")]


def test_a_gpu_without_a_value_is_not_healthy(judge: Any) -> None:
    assert told(judge("no-value-gpu4.json")) == [(Verdict.ERROR, "node")]


@pytest.mark.parametrize(
    ("name", "mig", "said"),
    [
        ("four-gpus.json", "Disabled\n" * 8, "shows 4 GPUs, the node has 8"),
        ("not-found.json", "Disabled\n" * 8, "Not Found"),
        ("healthy.json", "Disabled\n" * 7, "did not report the MIG mode of 8 GPUs"),
        ("healthy.json", "No devices were found\n" * 8, "did not report the MIG mode"),
    ],
)
def test_what_is_not_understood_is_refused(name: str, mig: str, said: str, judge: Any) -> None:
    with pytest.raises(ParseError, match=said):
        judge(name, mig=mig)
