"""report.junit.xml: CI counts the right outcomes, and no node text breaks the document."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from provision.checks.health import FleetHealth
from provision.report.junit import render
from tests.support import samples


def parsed(fleet: FleetHealth) -> ET.Element:
    return ET.fromstring("".join(render(fleet)))  # noqa: S314


def cases(root: ET.Element, node: str) -> dict[str, str]:
    """Return check → outcome as seen by CI."""
    suite = next(suite for suite in root.iter("testsuite") if suite.get("name") == node)
    return {
        str(case.get("name")): next((c.tag for c in case if c.tag != "system-out"), "passed")
        for case in suite.iter("testcase")
    }


@pytest.mark.parametrize(
    "name", ["healthy", "demo", "unmeasured", "interrupted", "nothing", "hostile", "between"]
)
def test_the_counts_are_those_of_the_cases(name: str) -> None:
    root = parsed(getattr(samples, name)())
    for element in (root, *root.iter("testsuite")):
        assert element.get("tests") == str(len(list(element.iter("testcase"))))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert element.get(attribute) == str(len(list(element.iter(tag))))


def test_a_failure_names_the_device_the_value_the_limit_and_the_evidence() -> None:
    root = parsed(samples.demo())
    assert set(cases(root, "gpu-01").values()) == {"passed"}
    assert cases(root, "gpu-03") == {
        "gpu_inventory": "passed",
        "gpu_burn": "failure",
        "p2p_bandwidth": "failure",
        "nccl_all_reduce": "passed",
    }
    burn, slow = root.iter("failure")
    assert "gpu5" in str(burn.get("message"))
    assert "GPU 5: FAULTY" in str(burn.text)
    assert "61.3 GB/s (limit ≥ 335 GB/s; Azure" in str(slow.text)
    assert samples.BAD_GPU_SERIAL in "".join(str(p.get("value")) for p in root.iter("property"))


def test_what_was_not_measured_never_passes() -> None:
    root = parsed(samples.unmeasured())
    assert cases(root, "gpu-07") == dict.fromkeys(("node", *samples.CHECKS), "error")
    assert cases(root, "gpu-01")["gpu_burn"] == "error"
    assert cases(root, "gpu-03")["nccl_all_reduce"] == "error"
    assert cases(root, "gpu-04")["nccl_all_reduce"] == "skipped"


def test_a_warning_passes_but_is_told() -> None:
    root = parsed(samples.unmeasured())
    assert cases(root, "gpu-05")["nccl_all_reduce"] == "passed"
    assert "no limit is known" in "".join(str(out.text) for out in root.iter("system-out"))


def test_what_lies_between_nodes_fails_in_a_suite_of_its_own() -> None:
    """The nodes only have warnings, which pass; without the separate suite CI would be green."""
    root = parsed(samples.between())
    (failure,) = root.iter("failure")
    assert "link gpu-01-gpu-03/rail mlx5_2 is slow" in str(failure.get("message"))
    assert "limit 360 Gb/s" in str(failure.text)
    assert cases(root, "the fabric") == {"pair_bandwidth link gpu-01-gpu-03/rail mlx5_2": "failure"}
    assert {suite.get("name") for suite in parsed(samples.demo())} == {"gpu-01", "gpu-02", "gpu-03"}
