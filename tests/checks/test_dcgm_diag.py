"""Tests of dcgm_diag: tests that DCGM skipped, and documents damaged in transit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from provision.checks.judge import Finding, Verdict
from provision.checks.vendors.nvidia import dcgm_diag
from provision.errors import ParseError
from tests.support.checks import answered, make_node, node_for, sample

HEALTHY, MEMORY = (sample(f"dcgm_diag/{name}.json") for name in ("v4-healthy", "v4-memory-gpu3"))


def judged(text: str) -> list[Finding]:
    node = node_for("dcgm_diag")
    return dcgm_diag.judge(node, dcgm_diag.parse(node, answered("dcgm_diag", node, text)), {})


def altered(change: Callable[[list[Any]], Any], text: str = HEALTHY) -> str:
    """Return a sample with changed categories (Deployment, then memory and pcie)."""
    document = json.loads(text)
    change(document["DCGM Diagnostic"]["test_categories"])
    return json.dumps(document)


def memory_test(categories: list[Any]) -> dict[str, Any]:
    test: dict[str, Any] = categories[1]["tests"][0]
    return test


def every_test(categories: list[Any]) -> list[dict[str, Any]]:
    return [test for category in categories for test in category["tests"]]


def merge_two_tests(categories: list[Any]) -> None:
    """Drop the lines between two tests, so that the results of the second appear under the first."""
    memory_test(categories)["results"] += categories[2]["tests"][0]["results"]
    del categories[2]


def leave_out_gpu5(categories: list[Any]) -> None:
    for test in every_test(categories):
        test["results"] = [one for one in test["results"] if one["entity_id"] != 5]


def skip_on_all(categories: list[Any]) -> None:
    for result in memory_test(categories)["results"]:
        result["status"] = "Skip"


def partition(categories: list[Any]) -> None:
    for result in [one for test in every_test(categories) for one in test["results"]]:
        result["entity_group"] = "GPU_I"


def test_the_level_that_was_asked_for_is_run() -> None:
    (command,) = dcgm_diag.commands(make_node(validation_tools_dcgm_level=3), {})
    assert command.argv == ("/usr/bin/dcgmi", "diag", "-r", "3", "-j")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (altered(lambda all_: all_[-1]["tests"][-1]["results"].pop(6)), {("error", "gpu6")}),
        (altered(lambda all_: memory_test(all_)["results"][3].update(status="Skip")), {("error", "gpu3")}),
        (altered(skip_on_all), {("pass", "node")}),  # not supported on this model
        (altered(lambda all_: memory_test(all_).pop("results")), {("error", "node")}),
        (altered(merge_two_tests, MEMORY), {("fail", "gpu3")}),  # the worse result counts
        (altered(leave_out_gpu5, MEMORY), {("fail", "gpu3"), ("error", "gpu5")}),
    ],
    ids=["lost after a test", "skipped by one", "skipped by all", "no results", "twice", "not named"],
)
def test_what_was_not_tested_did_not_pass_and_hides_no_failure(
    text: str, expected: set[tuple[str, str]]
) -> None:
    findings = judged(text)
    assert {(f.verdict, f.device) for f in findings} == expected
    assert all(
        "did not come to run" in f.message for f in findings if f.device == "node" and f.action != "none"
    )


HEAD, FAIL, REST = MEMORY.partition('"status": "Fail",')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # Complete and well-formed, but only the installation check ran.
        (altered(lambda all_: all_.__delitem__(slice(1, None))), "none of the tests of level 2"),
        (altered(partition), "tested 0 GPUs, the node has 8"),
        # The lines between two results were lost: GPU 3's Fail would give way to GPU 4's Pass.
        (HEAD + FAIL + REST[REST.index('"entity_group"') :], "stands twice in one object"),
    ],
    ids=["a lower level", "instances of MIG", "a result that swallowed the next"],
)
def test_less_than_all_gpus_and_tests_is_refused(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        judged(text)


@pytest.mark.parametrize("status", ["Pass", "Warn"])
def test_a_warning_in_the_summary_alone_is_told(status: str) -> None:
    warnings = [{"warning": "Unable to enforce the power limit", "error_severity": 1}]
    summary = {"status": status, "warnings": warnings}
    (finding,) = judged(altered(lambda all_: memory_test(all_).update(test_summary=summary)))
    assert (finding.verdict, finding.device, finding.action) == (Verdict.WARN, "node", "watch")
