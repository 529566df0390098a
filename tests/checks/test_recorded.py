"""Recordings of a real machine: all checks pass, except for faults that were provoked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import Output, Raw
from provision.checks.health import CheckResult
from provision.checks.judge import Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.node.burnin.tool_output import GPU_FIELDS, gpu_row
from provision.node.observe import nvidia_smi
from tests.node.machine import Machine
from tests.support.checks import flagged
from tests.support.scenarios import FIXTURES

H100 = FIXTURES / "recorded/h100-sxm.virtual.580.159.04"
SEEN = json.loads((H100 / "facts.json").read_text())


def result(name: str, **facts: Any) -> CheckResult:
    """Judge a recording; `facts` override those of its machine, with `_` for the dot."""
    document = json.loads((H100 / f"{name}.json").read_text())
    document.pop("format")
    outputs = tuple(Output(**{**one, "argv": tuple(one["argv"])}) for one in document.pop("outputs"))
    merged = {**SEEN["facts"], **{fact.replace("_", ".", 1): value for fact, value in facts.items()}}
    node = NodeFacts("gpu-01", merged, SEEN["node"], {})
    raw = Raw(**{**document, "outputs": outputs})
    return node_judge.judge_check(node, raw, node.limits())


def measured(found: CheckResult) -> Mapping[tuple[str, str], Any]:
    return {(m.metric, m.device): m.value for m in found.measurements}


@pytest.mark.parametrize("check", ["gpu_inventory", "memory_bandwidth", "p2p_bandwidth", "gpu_burn"])
def test_a_healthy_gpu_is_healthy(check: str) -> None:
    found = result(check, driver_nvlink_disabled=True)
    assert flagged(found.findings, quiet=(Verdict.PASS, Verdict.SKIP)) == []
    assert found.verdict is Verdict.PASS


def test_its_numbers_are_read() -> None:
    inventory = measured(result("gpu_inventory"))
    assert inventory["name", "gpu0"] == "NVIDIA H100 80GB HBM3"
    assert (inventory["pcie_width", "gpu0"], inventory["pcie_gen_max", "gpu0"]) == (16, 5)
    copies = measured(result("p2p_bandwidth"))
    assert (copies["h2d", "gpu0"], copies["d2h", "gpu0"]) == (55.1907, 55.2003)
    assert measured(result("memory_bandwidth"))["local_copy", "gpu0"] == 1510.92
    burn = measured(result("gpu_burn"))
    assert 350_000 < burn["rate", "gpu0"] < 355_000


def test_nvlinks_that_the_driver_was_told_to_leave_are_no_fault_of_one_gpu(tmp_path: Path) -> None:
    """nvidia-smi nvlink -s then prints nothing and exits with 0."""
    machine = Machine(tmp_path / "root")
    assert machine.value("driver.nvlink_disabled") is None
    params = (H100 / "proc-driver-nvidia-params.txt").read_text()
    machine.file("/proc/driver/nvidia/params", params)
    assert machine.value("driver.nvlink_disabled") is True
    machine.file("/proc/driver/nvidia/params", params.replace("NvLinkDisable: 1", "NvLinkDisable: 0"))
    assert machine.value("driver.nvlink_disabled") is False
    (left,) = [one for one in result("gpu_inventory", driver_nvlink_disabled=True).findings
               if one.metric == "nvlink_links"]  # fmt: skip
    assert (left.verdict, left.device) == (Verdict.SKIP, "node")
    assert "NVreg_NvLinkDisable=1" in left.message


def test_silence_of_links_that_should_be_there_is_not_known() -> None:
    assert flagged(result("gpu_inventory", driver_nvlink_disabled=False).findings, "verdict", "message") == [
        (Verdict.ERROR, "nvidia-smi nvlink -s does not mention this GPU")
    ]


@pytest.mark.parametrize("condition", ["foreign_process", "memory_taken"])
def test_a_foreign_process_and_its_memory_are_named(condition: str) -> None:
    found = result(f"{condition}.gpu_inventory", driver_nvlink_disabled=True).findings
    (used,) = [one for one in found if one.verdict not in (Verdict.PASS, Verdict.SKIP)]
    assert (used.verdict, used.device, used.metric) == (Verdict.WARN, "gpu0", "processes")
    assert re.search(r"gpu_burn|python", used.message), used.message


def test_a_tool_that_is_missing_and_a_deadline_are_errors() -> None:
    for name in ("missing_tool.memory_bandwidth", "short_deadline.gpu_burn"):
        assert result(name).verdict is Verdict.ERROR, name


def test_the_observer_and_the_sampler_read_its_tables() -> None:
    names = [f"nvidia_smi.{field}" for field in nvidia_smi.FIELDS]
    facts = nvidia_smi.parse_query(names, (H100 / "query-facts.csv").read_text())
    assert facts["nvidia_smi.power.max_limit"] == ["700.00"]
    assert facts["nvidia_smi.fabric.state"] == ["N/A"]
    metrics = [name for name, _ in GPU_FIELDS]
    for file, watts, busy in (
        ("query-sampler.csv", "76.0", "0"),
        ("query-sampler.loaded.csv", "648.4", "100"),
    ):
        found = gpu_row((H100 / file).read_text().strip(), metrics)
        assert found is not None
        assert (found[0], found[1]["power_w"], found[1]["util_pct"]) == (0, watts, busy)
