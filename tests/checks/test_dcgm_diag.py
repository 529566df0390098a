"""dcgm_diag: both JSON forms, whom DCGM accuses, and what it did not get to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import CheckNode, Output
from provision.checks.gpu import dcgm_diag
from provision.checks.judge import Finding, Verdict
from provision.errors import ParseError

Sample = Callable[[str], str]
MakeNode = Callable[..., CheckNode]


@pytest.fixture
def judge(make_node: MakeNode, sample: Sample) -> Callable[..., list[Finding]]:
    def run(name: str, level: Any = 2, count: int = 8, rc: int = 0) -> list[Finding]:
        node = make_node(count, validation_tools_dcgm_level=level)
        output = Output("dcgmi", ("dcgmi",), rc, sample(f"dcgm_diag/{name}.json"), "", 1.0)
        return dcgm_diag.judge(node, dcgm_diag.parse(node, {"dcgmi": output}), {})

    return run


def told(findings: list[Finding]) -> list[tuple[Verdict, str, str, str]]:
    return [(f.verdict, f.device, f.metric, f.action) for f in findings]


@pytest.mark.parametrize("name", ["v4-healthy", "v3-healthy"])
def test_all_passed(name: str, judge: Any) -> None:
    (finding,) = judge(name)
    assert finding.verdict is Verdict.PASS
    assert "3 tests passed" in finding.message


def test_dcgm_names_the_gpu_and_how_severe_it_is(judge: Any) -> None:
    findings = judge("v4-memory-gpu3", rc=205)
    assert told(findings) == [(Verdict.FAIL, "gpu3", "memory", "replace part")]
    assert "A DBE occurred" in findings[0].message


def test_the_older_form_names_the_gpu_and_nothing_else(judge: Any) -> None:
    assert told(judge("v3-memory-gpu5")) == [(Verdict.FAIL, "gpu5", "gpu_memory", "replace part")]


def test_software_tests_of_dcgm_3_have_one_result_for_all_gpus(judge: Any) -> None:
    (finding,) = judge("v3-quick-healthy", level=1)
    assert finding.verdict is Verdict.PASS
    (failed,) = judge("v3-quick-remap-gpu3", level=1)
    assert (failed.verdict, failed.device, failed.metric) == (
        Verdict.FAIL,
        "gpu3",
        "page_retirement/row_remap",
    )
    assert "row remappings are pending" in failed.message


def test_a_gpu_without_a_result_in_dcgm_3_was_not_tested(judge: Any) -> None:
    with pytest.raises(ParseError, match="tested 7 GPUs, the node has 8"):
        judge("v3-memory-without-gpu0")


def test_tests_that_were_asked_for_and_all_skipped_are_an_error(judge: Any) -> None:
    """Seen on a GB10 with DCGM 4.2.3 at level 2."""
    with pytest.raises(ParseError, match="ran none of the tests of level 2: it skipped memory, pcie"):
        judge("v4-all-skipped")


def test_a_test_without_results_hides_no_failure_of_another(judge: Any) -> None:
    assert (Verdict.FAIL, "gpu3", "memory", "replace part") in told(judge("v4-without-results", rc=205))


def test_an_error_attached_to_a_test_that_passed_is_a_warning(judge: Any) -> None:
    """DCGM issue 284."""
    findings = judge("v4-pass-with-error")
    assert told(findings) == [(Verdict.WARN, "gpu6", "memory", "watch")]
    assert "correctable errors" in findings[0].message


def test_a_setting_that_is_off_is_no_broken_gpu(judge: Any) -> None:
    assert told(judge("v4-persistence")) == [(Verdict.WARN, "gpu0", "software", "fix configuration")]


def test_what_did_not_run_did_not_pass(judge: Any) -> None:
    findings = judge("v4-not-run")
    assert [(f.verdict, f.device) for f in findings] == [
        (Verdict.ERROR, f"gpu{number}") for number in range(4, 8)
    ]


def test_it_is_skipped_unless_asked_for(make_node: MakeNode) -> None:
    node = make_node()
    assert dcgm_diag.commands(node, {}) == []
    (finding,) = dcgm_diag.judge(node, dcgm_diag.parse(node, {}), {})
    assert finding.verdict is Verdict.SKIP
    assert "validation_tools_dcgm_level" in finding.message


def test_the_level_asked_for_is_run(make_node: MakeNode) -> None:
    (command,) = dcgm_diag.commands(make_node(validation_tools_dcgm_level=3), {})
    assert command.argv == ("/usr/bin/dcgmi", "diag", "-r", "3", "-j")


@pytest.mark.parametrize("level", [5, "2", True, -1])
def test_a_level_that_is_none_is_refused(level: Any, make_node: MakeNode) -> None:
    node = make_node(validation_tools_dcgm_level=level)
    assert dcgm_diag.commands(node, {}) == []
    with pytest.raises(ParseError, match="validation_tools_dcgm_level is"):
        dcgm_diag.parse(node, {})


def test_fewer_gpus_than_the_node_has_are_refused(judge: Any) -> None:
    with pytest.raises(ParseError, match="tested 8 GPUs, the node has 4"):
        judge("v4-healthy", count=4)


def test_a_run_that_could_not_begin_is_told_in_its_words(judge: Any) -> None:
    with pytest.raises(ParseError, match="Host engine is not running"):
        judge("v4-runtime-error", rc=223)


FOLDER = Path(__file__).parent.parent / "fixtures/dcgm_diag"
TEXT = (FOLDER / "v4-memory-gpu3.json").read_text()
NODE = CheckNode("n", {"gpu": {"count": 8, "sku": None}}, {"validation_tools_dcgm_level": 2})


@given(st.integers(0, len(TEXT)))
def test_cut_anywhere_it_is_refused_or_means_the_same(length: int) -> None:
    def parsed(text: str) -> Any:
        return dcgm_diag.parse(NODE, {"dcgmi": Output("dcgmi", ("dcgmi",), 0, text, "", 1.0)})

    with contextlib.suppress(ParseError):
        assert parsed(TEXT[:length]) == parsed(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"Pass"', '"Perhaps"'), ('"entity_id": 2', '"entity_id": "two"'), ('"status"', '"state"')],
)
def test_an_unknown_form_is_refused(old: str, new: str) -> None:
    assert old in TEXT
    changed = Output("dcgmi", ("dcgmi",), 0, TEXT.replace(old, new), "", 1.0)
    with pytest.raises(ParseError, match="was not understood"):
        dcgm_diag.parse(NODE, {"dcgmi": changed})


def changed(change: Callable[[list[Any]], Any], name: str = "v4-healthy") -> Output:
    """A sample whose categories were changed."""
    document = json.loads((FOLDER / f"{name}.json").read_text())
    change(document["DCGM Diagnostic"]["test_categories"])
    return Output("dcgmi", ("dcgmi",), 0, json.dumps(document), "", 1.0)


def test_a_gpu_that_is_lost_between_two_tests_did_not_pass_the_second() -> None:
    def lose(categories: list[Any]) -> None:
        del categories[-1]["tests"][-1]["results"][6]

    findings = dcgm_diag.judge(NODE, dcgm_diag.parse(NODE, {"dcgmi": changed(lose)}), {})
    assert [(f.verdict, f.device) for f in findings] == [(Verdict.ERROR, "gpu6")]


def test_a_lower_level_than_asked_for_is_refused() -> None:
    """Whole and well-formed, but nothing ran beyond the look at the installation."""
    output = changed(lambda categories: categories.__delitem__(slice(1, None)))
    with pytest.raises(ParseError, match="none of the tests of level 2"):
        dcgm_diag.parse(NODE, {"dcgmi": output})


def test_instances_of_mig_are_no_gpus() -> None:
    def split(categories: list[Any]) -> None:
        for result in [r for category in categories for test in category["tests"] for r in test["results"]]:
            result["entity_group"] = "GPU_I"

    with pytest.raises(ParseError, match="tested 0 GPUs, the node has 8"):
        dcgm_diag.parse(NODE, {"dcgmi": changed(split)})


def test_a_result_that_swallowed_the_next_one_is_refused() -> None:
    """The lines between two results were lost: GPU 3's Fail would give way to GPU 4's Pass."""
    begin = TEXT.index('"status": "Fail"')
    end = TEXT.index('"entity_group"', begin)
    swallowed = TEXT[:begin] + '"status": "Fail",\n' + TEXT[end:]
    with pytest.raises(ParseError, match="stands twice in one object"):
        dcgm_diag.parse(NODE, {"dcgmi": Output("dcgmi", ("dcgmi",), 0, swallowed, "", 1.0)})


def test_a_gpu_that_a_test_names_twice_is_as_well_as_the_worse_says() -> None:
    """The lines between two tests were lost: the results of the second stand below the name of the first."""

    def merge(categories: list[Any]) -> None:
        memory, pcie = (category["tests"][0] for category in categories[1:3])
        memory["results"] += pcie["results"]
        del categories[2]

    findings = dcgm_diag.judge(NODE, dcgm_diag.parse(NODE, {"dcgmi": changed(merge, "v4-memory-gpu3")}), {})
    assert told(findings) == [(Verdict.FAIL, "gpu3", "memory", "replace part")]


def hardware_test(document: dict[str, Any]) -> dict[str, Any]:
    """The first test of DCGM 4's hardware category."""
    for category in document["DCGM Diagnostic"]["test_categories"]:
        if category["category"] != "Deployment":
            test: dict[str, Any] = category["tests"][0]
            return test
    raise AssertionError("no hardware test")


def judged(document: dict[str, Any], make_node: MakeNode) -> list[Finding]:
    node = make_node(8, validation_tools_dcgm_level=2)
    output = Output("dcgmi", ("dcgmi",), 0, json.dumps(document), "", 1.0)
    return dcgm_diag.judge(node, dcgm_diag.parse(node, {"dcgmi": output}), {})


def test_a_gpu_that_a_test_skipped_and_its_peers_passed_was_not_tested(
    sample: Sample, make_node: MakeNode
) -> None:
    document = json.loads(sample("dcgm_diag/v4-healthy.json"))
    results = hardware_test(document)["results"]
    results[3]["status"] = "Skip"
    assert [(f.verdict, f.device) for f in judged(document, make_node)] == [(Verdict.ERROR, "gpu3")]
    for result in results:
        result["status"] = "Skip"
    assert [f.verdict for f in judged(document, make_node)] == [Verdict.PASS], "not for this model"


def test_a_test_without_a_result_was_not_run(sample: Sample, make_node: MakeNode) -> None:
    document = json.loads(sample("dcgm_diag/v4-healthy.json"))
    del hardware_test(document)["results"]
    (finding,) = judged(document, make_node)
    assert (finding.verdict, finding.device) == (Verdict.ERROR, "node")
    assert "did not come to run" in finding.message


def test_a_gpu_that_no_test_names_hides_no_failure_of_another(sample: Sample, make_node: MakeNode) -> None:
    document = json.loads(sample("dcgm_diag/v4-memory-gpu3.json"))
    for category in document["DCGM Diagnostic"]["test_categories"]:
        for test in category["tests"]:
            test["results"] = [one for one in test["results"] if one["entity_id"] != 5]
    found = told(judged(document, make_node))
    assert (Verdict.FAIL, "gpu3") in {one[:2] for one in found}
    assert (Verdict.ERROR, "gpu5") in {one[:2] for one in found}


@pytest.mark.parametrize("status", ["Pass", "Warn"])
def test_a_warning_in_the_summary_alone_is_told(status: str, sample: Sample, make_node: MakeNode) -> None:
    document = json.loads(sample("dcgm_diag/v4-healthy.json"))
    warnings = [{"warning": "Unable to enforce the power limit", "error_severity": 1}]
    hardware_test(document)["test_summary"] = {"status": status, "warnings": warnings}
    (finding,) = judged(document, make_node)
    assert (finding.verdict, finding.device, finding.action) == (Verdict.WARN, "node", "watch")
