"""Drift report on a fleet of twenty in every format: drift, outliers, expired results, CI formats."""

from __future__ import annotations

import json
import os
import re
import stat
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from provision import cli, paths
from provision.checks.judging.registry import CHECKS
from provision.desired import inventory, stack
from provision.drift import drift_report, drift_text, formats
from provision.errors import ExitCode
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from provision.runs import fingerprint, node_history, store
from tests.support.observed import debian, fleet_here, promised, unknown, vault

KERNEL = "6.1.0"
GOOD, OLD = "96.00.74.00.01", "96.00.10.00.99"
NAMES = tuple(f"gpu-{number:02}" for number in range(1, 21))


def answer_of(number: int) -> dict[str, Any]:
    """Return the facts of an H100 node that no role promises."""
    return {
        **debian("12", "bookworm", KERNEL),
        "gpu.count": 2,
        "gpu.nvswitch_count": 4,
        "gpu.pci": [
            {"address": f"0000:{slot}b:00.0", "device_id": "10de:2330", "subsystem_id": "10de:16c1"}
            | {"link_width": 16, "link_width_max": 16}
            for slot in range(2)
        ],
        "firmware.gpu_uuid": [f"GPU-{number}-{slot}" for slot in range(2)],
        "firmware.gpu_vbios": [GOOD] * 2,
        "firmware.gpu_gsp": ["580.126.09"] * 2,
        "firmware.system": "Supermicro SYS-821GE",
        "firmware.bios_version": "1.4b",
        "firmware.cpu_microcode": "0x2b000603",
        "firmware.rdma": [],
        "package.libnccl2.version": "2.29.7-1+cuda12.9",
        "package.libnccl.version": None,
    }


class Twenty:
    """Twenty identical nodes without drift, except for `changed`, `problems` and `silent`."""

    def __init__(self) -> None:
        self.changed: dict[str, dict[str, Any]] = {}
        self.problems: dict[str, dict[str, str]] = {}
        self.silent: dict[str, str] = {}
        self.asked: set[str] = set()
        self.bare: set[str] = set()  # nodes on which no expectation holds

    def answer(self, node: Node, asked: Collection[str]) -> Observation:
        if node.name in self.silent:
            return Observation(node.name, error=self.silent[node.name], unreachable=True)
        self.asked |= set(asked)
        return Observation(node.name, self.facts(node, asked), self.problems.get(node.name, {}))

    def facts(self, node: Node, asked: Collection[str]) -> dict[str, Any]:
        own = answer_of(int(node.name.removeprefix("gpu-")))
        declared = {**stack.declared(node, {}), "inventory_hostname": node.name}
        wanted = {} if node.name in self.bare else promised(declared, own)
        whole = {**unknown(asked, KERNEL), **own, **wanted, **self.changed.get(node.name, {})}
        return {name: value for name, value in whole.items() if name not in self.problems.get(node.name, {})}


@pytest.fixture
def twenty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Twenty:
    nodes = Twenty()
    for name in ("GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    fleet_here(monkeypatch, tmp_path, NAMES, nodes.answer)
    return nodes


@pytest.fixture
def gpuprov(twenty: Twenty, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    del twenty

    def call(*words: str) -> tuple[int, str]:
        code = cli.main(["drift", *words])
        return code, capsys.readouterr().out

    return call


def passed(
    twenty: Twenty,
    *names: str,
    at: str = "2026-11-02T10:00:00Z",
    verdict: str = "pass",
    only: Mapping[str, str] | None = None,
    **then: Any,
) -> None:
    """Record a validation of these nodes by every check, with their present facts except `then`.

    `only`: differing verdicts, by check.
    """
    runs = store.runs_home()
    folder = store.RunFolder.create("validate", {}, runs)
    for name in names:
        facts = twenty.facts(Node(name, (), {}), fingerprint.FACTS)
        facts.update({fact.replace("__", "."): value for fact, value in then.items()})
        current = fingerprint.of(facts, {})
        node_history.note_look(folder, name, current)
        for check in CHECKS:
            node_history.note_result(folder, name, check, current, at)
    verdicts = {check: (only or {}).get(check, verdict) for check in CHECKS}
    node_history.record(folder, {(name, check): each for name in names for check, each in verdicts.items()})


def expiry(part: str, nodes: str, named: str, change: str) -> str:
    """Return the report's lines on the checks that depend on this part, in the order they run."""
    checks = [check for check in CHECKS if part in fingerprint.depends(check)]
    run = f"gpuprov validate inventory.yml --nodes {named} --checks {','.join(checks)}"
    return f"  {nodes}  passed {', '.join(checks)} on 2026-11-03, expired: {change}\n      run: {run}\n"


def everything_at_once(twenty: Twenty) -> None:
    """Set up three outlier VBIOSes, an unreadable one, a tie, a drift, a silent node, two expired passes."""
    for name in ("gpu-03", "gpu-08", "gpu-15"):
        twenty.changed[name] = {"firmware.gpu_vbios": [OLD] * 2}
    twenty.problems["gpu-11"] = {"firmware.gpu_vbios": "no answer within 8 s"}
    for name in NAMES[:10]:
        twenty.changed.setdefault(name, {})["firmware.bios_version"] = "1.5"
    passed(twenty, *NAMES)
    passed(twenty, "gpu-07", "gpu-09", at="2026-11-03T10:00:00Z", driver__loaded_version="570.124.06")
    twenty.changed["gpu-05"] |= {"module.nouveau.loaded": True}


def test_a_fleet_that_is_alike_and_validated_is_fine(twenty: Twenty, gpuprov: Any) -> None:
    passed(twenty, *NAMES)
    code, out = gpuprov("--require-validated")
    assert code == ExitCode.OK, out
    assert "20 of 20 nodes as declared" in out
    assert "20 of 20 nodes like the majority of their kind (21 undeclared facts compared)" in out
    assert "20 of 20 nodes with a current validation" in out


def test_undeclared_facts_cost_no_second_question_and_no_tool(twenty: Twenty, gpuprov: Any) -> None:
    gpuprov()
    assert twenty.asked >= drift_report.FACTS
    assert not any(name.startswith("nvidia_smi.") for name in drift_report.FACTS)


def test_three_odd_ones_a_silent_one_a_tie_and_expired_passes(twenty: Twenty, gpuprov: Any) -> None:
    everything_at_once(twenty)
    twenty.silent["gpu-20"] = "no route to host"
    code, out = gpuprov()
    assert code == ExitCode.DRIFT
    most = f"15 of 18 (h100-sxm on debian 12) have {GOOD}\n"
    assert f"  gpu-[03,08,15]  firmware.gpu_vbios is {OLD}, {most}" in out
    assert f"  gpu-11  firmware.gpu_vbios has no value (no answer within 8 s), {most}" in out
    tie = "  firmware.bios_version ambiguous, no value has a majority of h100-sxm on debian 12: "
    assert tie not in out, "10 of 19 is a majority"
    assert "gpu-[11-19]  firmware.bios_version is 1.4b, 10 of 19 (h100-sxm on debian 12) have 1.5\n" in out
    del twenty.silent["gpu-20"]
    _, out = gpuprov()
    assert f"{tie}10 have 1.5 (gpu-[01-10]), 10 have 1.4b (gpu-[11-20])\n" in out
    expired = "driver.loaded_version 570.124.06 → 580.126.09"
    assert expiry("driver.loaded_version", "gpu-[07,09]", "gpu-07,gpu-09", expired) in out
    # The node with the unreadable VBIOS has no current pass either.
    assert "17 of 20 nodes with a current validation" in out


def test_only_the_checks_that_depend_on_it_expire(twenty: Twenty, gpuprov: Any) -> None:
    passed(twenty, *NAMES)
    passed(twenty, "gpu-07", at="2026-11-03T10:00:00Z", package__libnccl2__version="2.27.7-1+cuda12.9")
    code, out = gpuprov()
    assert code == ExitCode.OK
    assert (
        expiry("nccl.version", "gpu-07", "gpu-07", "nccl.version 2.27.7-1+cuda12.9 → 2.29.7-1+cuda12.9")
        in out
    )


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("pass", ExitCode.OK),
        ("warn", ExitCode.OK),
        ("fail", ExitCode.UNHEALTHY),
        ("error", ExitCode.INCOMPLETE),
        ("skip", ExitCode.INCOMPLETE),
    ],
)
def test_require_validated_asks_for_a_current_pass(
    twenty: Twenty, gpuprov: Any, verdict: str, code: int
) -> None:
    passed(twenty, *NAMES)
    passed(twenty, "gpu-07", at="2026-11-03T10:00:00Z", verdict=verdict)
    assert gpuprov()[0] == ExitCode.OK, "without it, it is only said"
    assert gpuprov("--require-validated")[0] == code


def test_a_check_that_does_not_apply_is_not_missed(twenty: Twenty, gpuprov: Any) -> None:
    """A node without RDMA cards skips their checks in every run and still counts as validated."""
    passed(twenty, *NAMES, only={"network_ports": "skip", "rdma_loopback": "skip"})
    assert gpuprov("--require-validated")[0] == ExitCode.OK
    _, out = gpuprov()
    assert "20 of 20 nodes with a current validation" in out


def test_a_node_that_was_never_validated_is_said(twenty: Twenty, gpuprov: Any) -> None:
    passed(twenty, *NAMES[:18])
    code, out = gpuprov()
    assert code == ExitCode.OK
    assert (
        "gpu-[19-20]  never validated\n      run: gpuprov validate inventory.yml --nodes gpu-19,gpu-20\n"
        in out
    )
    assert gpuprov("--require-validated")[0] == ExitCode.INCOMPLETE


def test_drift_is_worse_than_a_failed_check(twenty: Twenty, gpuprov: Any) -> None:
    passed(twenty, *NAMES, verdict="fail")
    twenty.changed["gpu-01"] = {"firmware.gpu_vbios": [OLD] * 2}
    assert gpuprov("--require-validated")[0] == ExitCode.DRIFT
    assert gpuprov("--require-validated", "--no-majority")[0] == ExitCode.UNHEALTHY


def test_the_comparison_can_be_turned_off_and_a_node_left_out(twenty: Twenty, gpuprov: Any) -> None:
    twenty.changed["gpu-03"] = {"firmware.gpu_vbios": [OLD] * 2}
    code, out = gpuprov("--no-majority")
    assert code == ExitCode.OK
    assert "kind" not in out
    assert gpuprov("--set", "gpuprov_ignore_majority=[firmware.gpu_vbios]")[0] == ExitCode.OK
    assert gpuprov()[0] == ExitCode.DRIFT


# --- formats


def test_prometheus_counts_expectations_of_nodes_that_answered(
    twenty: Twenty, gpuprov: Any, tmp_path: Path
) -> None:
    everything_at_once(twenty)
    twenty.silent["gpu-20"] = "no route to host"
    file = tmp_path / "drift.prom"
    before = time.time()
    assert gpuprov("--format", f"prometheus={file}")[0] == ExitCode.DRIFT
    found = {
        (sample.name.removeprefix("gpuprov_drift_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    document = json.loads(gpuprov("--json")[1])
    for node in NAMES:
        if node == "gpu-20":
            assert not [key for key in found if node in key]
            continue
        drifts = [each for each in document["drifts"] if each["node"] == node]
        unknown = sum(each["unknown"] for each in drifts)
        assert before <= found["timestamp_seconds", node] <= time.time()
        assert found["expectations", node, "drifted"] == len(drifts) - unknown
        assert found["expectations", node, "unreadable"] == unknown
    total = sum(value for key, value in found.items() if key[0] == "expectations")
    assert total == document["expectations"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, "the exporter is another user"
    assert [path.name for path in tmp_path.glob(".drift*")] == []


def test_a_file_that_is_none_is_written_to_and_not_replaced(gpuprov: Any, tmp_path: Path) -> None:
    target = tmp_path / "there.json"
    target.touch()
    link = tmp_path / "link.json"
    link.symlink_to(target)
    gpuprov("--format", f"json={link}")
    assert link.is_symlink()
    assert json.loads(target.read_text())["format"] == 1
    gpuprov("--format", "json=/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116


def test_json_is_the_documented_document(twenty: Twenty, gpuprov: Any) -> None:
    schema = json.loads((paths.DATA / "schemas/drift.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(json.loads(gpuprov("--json")[1]))
    everything_at_once(twenty)
    twenty.silent["gpu-20"] = "no route to host"
    code, out = gpuprov("--format", "json", "--require-validated")
    document = json.loads(out)
    validator.validate(document)
    assert document["exit_code"] == code == ExitCode.DRIFT
    odd = {(each["node"], each["fact"]) for each in document["majority"]["outliers"]}
    assert ("gpu-03", "firmware.gpu_vbios") in odd
    assert [each["rule"] for each in document["diagnoses"]] == ["nouveau-loaded"]
    without = {each["node"] for each in document["validation"]["not_validated"]}
    assert without == {"gpu-07", "gpu-09", "gpu-11"}
    assert document["unreachable"] == {"gpu-20": "no route to host"}
    assert json.loads(gpuprov("--json", "--no-majority")[1])["majority"] is None


def test_sarif_is_2_1_0_with_a_result_for_each_node_and_rule(twenty: Twenty, gpuprov: Any) -> None:
    everything_at_once(twenty)
    twenty.silent["gpu-20"] = "no route to host"
    code, out = gpuprov("--format", "sarif")
    log = json.loads(out)
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        for location in result["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"] == "inventory.yml"
            assert location["physicalLocation"]["region"]["startLine"] >= 1
            assert {each["name"] for each in location["logicalLocations"]} <= set(NAMES)
    named = {(r["ruleId"], r["locations"][0]["logicalLocations"][0]["name"]) for r in run["results"]}
    assert ("nvidia_driver/module.nouveau.loaded", "gpu-05") in named
    assert ("majority/firmware.gpu_vbios", "gpu-08") in named
    assert ("validation/expired", "gpu-07") in named
    prints = [result["partialFingerprints"]["gpuprovDrift/v1"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    (invocation,) = run["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (code, False)
    (silent,) = invocation["toolExecutionNotifications"]
    assert silent["message"]["text"] == "gpu-20: unreachable: no route to host"


def test_an_alert_stays_the_same_when_only_the_value_moves(twenty: Twenty, gpuprov: Any) -> None:
    def alerts() -> set[str]:
        run = json.loads(gpuprov("--format", "sarif", "--no-majority")[1])["runs"][0]
        errors = [result for result in run["results"] if result["level"] == "error"]
        return {result["partialFingerprints"]["gpuprovDrift/v1"] for result in errors}

    twenty.changed["gpu-03"] = {"sysctl.kernel.numa_balancing.value": "1", "driver.flavour": "proprietary"}
    first = alerts()
    twenty.changed["gpu-03"]["driver.flavour"] = "unheard of"
    assert alerts() == first != set()


def test_github_annotations_cannot_be_forged_by_a_node(
    twenty: Twenty, gpuprov: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    evil = "1.0,title=x::y\n::set-output name=a::b\r\n::error::100% %0A"
    twenty.changed["gpu-03"] = {"driver.flavour": evil}
    twenty.changed["gpu-04"] = {"driver.flavour": evil}
    code, out = gpuprov("--format", "github", "--no-majority")
    assert code == ExitCode.DRIFT
    lines = out.splitlines()
    assert all(
        re.match(r"^::(error|warning|notice) file=inventory\.yml,title=[^,:]*::", line) for line in lines
    )
    errors = [line for line in lines if line.startswith("::error")]
    assert len(errors) == 1, "two nodes with the same are one annotation"
    title = "title=gpu-[03-04]%3A nvidia_driver/driver.flavour::"
    assert f"{title}gpu-[03-04]: NVIDIA kernel module: " in errors[0]
    assert "::error::100%25 %250" in errors[0]
    assert "%0A" in errors[0]


def test_github_gets_no_more_annotations_than_it_shows_and_the_summary_has_the_rest(
    twenty: Twenty, gpuprov: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    for number, name in enumerate(NAMES):
        twenty.changed[name] = {"driver.flavour": f"odd {number}", "sysctl.kernel.numa_balancing.value": "7"}
    _, out = gpuprov("--format", "github", "--no-majority")
    errors = [line for line in out.splitlines() if line.startswith("::error")]
    assert len(errors) == 10
    left = "11 more findings not shown here"
    assert errors[-1].endswith(f"title={left}::{left}: gpuprov drift --format markdown has them all")
    assert errors[0].count("driver.flavour") == 2
    assert len([line for line in out.splitlines() if line.startswith("::notice")]) == 1, "nodes are folded"

    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    _, out = gpuprov("--format", "github", "--no-majority")
    assert f"{left}: the job's summary has them all\n" in out
    written = summary.read_text()
    assert written.startswith("before\n## gpuprov drift\n")
    assert all(f"odd {number} is loaded" in written for number in range(20))
    gpuprov("--format", "github", "--format", "markdown=drift.md")
    assert summary.read_text() == written, "who asks for the Markdown puts it there"


def test_a_bare_node_is_a_few_annotations(twenty: Twenty, gpuprov: Any) -> None:
    twenty.bare.add("gpu-02")
    code, out = gpuprov("--format", "github", "--no-majority")
    assert code == ExitCode.DRIFT
    lines = out.splitlines()
    assert len([line for line in lines if line.startswith("::error")]) == 9, "one for each role"
    assert len(lines) == 10, "all else is that nobody was validated"
    assert any("title=gpu-02%3A nvidia_driver%2C " in line and "%0Aand " in line for line in lines)
    _, out = gpuprov("--format", "markdown", "--no-majority")
    assert out.count("| gpu-02 |") > 100, "the summary has all of them"


@pytest.mark.usefixtures("twenty")
def test_a_summary_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "folder"))
    assert cli.main(["drift", "--format", "github"]) == ExitCode.USAGE
    assert "the job's summary cannot be written: No such file or directory" in capsys.readouterr().err


def test_markdown_ends_before_github_refuses_it(
    twenty: Twenty, gpuprov: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(NAMES):
        twenty.changed[name] = {"driver.flavour": f"odd {number} {'x' * 1000}"}
    monkeypatch.setattr(drift_text, "SUMMARY", 6_000)
    _, out = gpuprov("--format", "markdown", "--no-majority")
    assert len(out.encode()) < 6_000
    shown = out.count("odd ")
    assert 0 < shown < 20
    assert f"and {20 - shown} more: `gpuprov drift --format json` has them all" in out


def test_markdown_shows_the_words_of_nodes_as_words(twenty: Twenty, gpuprov: Any) -> None:
    everything_at_once(twenty)
    twenty.changed["gpu-13"] = {"driver.flavour": "<img src=x>|[a](http://b)`c`&amp;"}
    code, out = gpuprov("--format", "markdown")
    assert code == ExitCode.DRIFT
    assert out.startswith("## gpuprov drift\n\n**drift** (exit code 4)\n")
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows), "three cells each"
    (row,) = [row for row in rows if "driver.flavour" in row and "img" in row and "unknown" not in row][:1]
    assert "<img" not in out
    assert r"&lt;img src=x&gt;\|\[a\]\(http\://b\)\`c\`&amp;amp;" in row
    assert r"| gpu-\[03,08,15\] | firmware.gpu\_vbios is" in out
    assert "gpuprov validate inventory.yml --nodes gpu-07,gpu-09" in out


def test_junit_blames_nodes_and_gives_the_tie_a_case_of_its_own(twenty: Twenty, gpuprov: Any) -> None:
    everything_at_once(twenty)
    twenty.silent["gpu-19"] = twenty.silent["gpu-20"] = "no route to host"
    twenty.changed["gpu-10"].pop("firmware.bios_version")
    _, out = gpuprov("--format", "junit")
    suite = ElementTree.fromstring(out)  # noqa: S314 - our own output
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert suite.get("tests") == str(len(cases)) == "21"
    assert cases["gpu-03"] == ["failure"]
    assert cases["gpu-20"] == ["error"]
    assert cases["gpu-07"] == ["system-out"]
    assert cases["gpu-12"] == []
    assert cases["(fleet)"] == ["failure"]
    counts = [sum(kind in tags for tags in cases.values()) for kind in ("failure", "error")]
    assert [suite.get("failures"), suite.get("errors")] == [str(count) for count in counts]
    _, out = gpuprov("--format", "junit", "--require-validated")
    suite = ElementTree.fromstring(out)  # noqa: S314 - our own output
    assert [child.tag for child in suite.findall("testcase[@name='gpu-07']")[0]] == ["error"], "as its 5"


@pytest.mark.parametrize("name", formats.NAMES)
def test_no_format_lets_a_node_write_control_characters_or_tell_a_secret(
    twenty: Twenty, gpuprov: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    vault(monkeypatch, "hidden-word")
    odd = "\x1b[2J\x07hidden-word"
    texts = ("driver.flavour", "driver.userspace_version", "firmware.bios_version")
    twenty.changed["gpu-03"] = {"firmware.gpu_vbios": [odd, odd], **dict.fromkeys(texts, odd)}
    twenty.silent["gpu-04"] = odd
    passed(twenty, "gpu-05", "gpu-03", firmware__gpu_gsp=[odd, odd])
    _, out = gpuprov("--format", name)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", out)
    assert "hidden-word" not in out
    assert "gpu-03" in out


# --- output files


def test_several_formats_in_one_look(twenty: Twenty, gpuprov: Any, tmp_path: Path) -> None:
    twenty.changed["gpu-03"] = {"driver.flavour": "proprietary"}
    code, out = gpuprov("--format", "sarif=drift.sarif,markdown=drift.md", "--format", "junit=drift.xml")
    assert code == ExitCode.DRIFT
    assert json.loads((tmp_path / "drift.sarif").read_text())["version"] == "2.1.0"
    assert (tmp_path / "drift.md").read_text().startswith("## gpuprov drift")
    assert (tmp_path / "drift.xml").read_text().startswith("<?xml")
    assert "19 of 20 nodes as declared" in out, "when all have a file, the text is printed"
    _, out = gpuprov("--format", "sarif=other.sarif,github")
    assert out.startswith("::error ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--format", "json", "--format", "sarif"], "two formats would go to standard output"),
        (["--format", "sarif=no/such/folder/x"], "is in a folder that does not exist"),
        (["--format", "junit=."], "is a folder"),
    ],
)
def test_a_mistake_is_said_before_a_node_is_asked(
    twenty: Twenty, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["drift", *words]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""
    assert twenty.asked == set()


def test_the_formats_offered_are_those_there_are() -> None:
    files = {path.stem for path in Path(formats.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(formats.NAMES) == files


def test_the_run_folder_keeps_who_was_odd(twenty: Twenty, gpuprov: Any) -> None:
    everything_at_once(twenty)
    gpuprov()
    kept = list(store.latest("drift").read("majority"))
    assert {each["node"] for each in kept if "node" in each} == {"gpu-03", "gpu-08", "gpu-11", "gpu-15"}
    assert [each["fact"] for each in kept if "sides" in each] == ["firmware.bios_version"]


# --- one verdict in every format

SERVER = "gpu-20"


@pytest.fixture
def with_monitoring_host(twenty: Twenty, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add SERVER, a monitoring host that has GPUs and nouveau."""
    original = inventory.load

    def load(source: Path, files: Any = ()) -> Fleet:
        fleet = original(source, files)
        nodes = {**fleet.nodes, SERVER: Node(SERVER, ("gpuprov_monitoring",), {})}
        return replace(fleet, nodes=nodes)

    monkeypatch.setattr(inventory, "load", load)
    twenty.changed[SERVER] = {"module.nouveau.loaded": True, "driver.loaded_version": None}


def _drift(twenty: Twenty) -> None:
    twenty.changed["gpu-03"] = {"module.nouveau.loaded": True}


def _lost_gpu(twenty: Twenty) -> None:
    twenty.changed["gpu-03"] = {"nvidia_smi.silent": ["0000:4b:00.0: GPU is lost"]}


def _unread(twenty: Twenty) -> None:
    twenty.problems["gpu-03"] = {"nvidia_smi.silent": "nvidia-smi: no answer within 24 s"}


def _outlier(twenty: Twenty) -> None:
    twenty.changed["gpu-03"] = {"firmware.bios_version": "1.5"}


def _unreachable(twenty: Twenty) -> None:
    twenty.silent["gpu-03"] = "no route to host"


def _refused(twenty: Twenty) -> None:
    twenty.changed["gpu-03"] = {"gpu.pci": [], "gpu.count": 0}


def _nouveau(twenty: Twenty) -> None:
    twenty.changed["gpu-03"] = {"module.nouveau.loaded": True, "fabric.manager_version": "1.2-1"}


def _never_validated(_: Twenty) -> None:
    """Leave gpu-03 without a pass."""


def _expired(twenty: Twenty) -> None:
    passed(twenty, "gpu-03", at="2026-11-03T10:00:00Z", driver__loaded_version="570.124.06")


def _failed(twenty: Twenty) -> None:
    passed(twenty, "gpu-03", at="2026-11-03T10:00:00Z", only={"gpu_burn": "fail"})


HOST_ONLY = ("--set", "gpuprov_roles=[host_settings]")
SCENARIOS: dict[str, tuple[Callable[[Twenty], None], tuple[str, ...], ExitCode]] = {
    "as declared": (lambda _: None, (), ExitCode.OK),
    "drift": (_drift, (), ExitCode.DRIFT),
    "lost GPU": (_lost_gpu, (), ExitCode.DRIFT),
    "lost GPU, and no role of the GPUs": (_lost_gpu, HOST_ONLY, ExitCode.DRIFT),
    "unread": (_unread, (), ExitCode.INCOMPLETE),
    "outlier": (_outlier, (), ExitCode.DRIFT),
    "unreachable": (_unreachable, (), ExitCode.INCOMPLETE),
    "refused": (_refused, ("--no-majority",), ExitCode.INCOMPLETE),
    "a cause that no role explains": (_nouveau, HOST_ONLY, ExitCode.OK),
    "never validated": (_never_validated, (), ExitCode.OK),
    "never validated, required": (_never_validated, ("--require-validated",), ExitCode.INCOMPLETE),
    "expired, required": (_expired, ("--require-validated",), ExitCode.INCOMPLETE),
    "failed": (_failed, (), ExitCode.OK),
    "failed, required": (_failed, ("--require-validated",), ExitCode.UNHEALTHY),
}


def _worst(name: str, text: str) -> str:
    """Return the worst level in the output of a machine-readable format: error, warning, or neither."""
    if name == "github":
        levels = {line.split()[0].strip(":") for line in text.splitlines()}
    elif name == "sarif":
        (run,) = json.loads(text)["runs"]
        levels = {each["level"] for each in run["results"]}
        if run["invocations"][0]["toolExecutionNotifications"]:
            levels.add("warning")
    elif name == "junit":
        suite = ElementTree.fromstring(text)  # noqa: S314 - our own output
        words = {"failure": "error", "error": "warning"}
        levels = {words.get(child.tag, "") for case in suite for child in case}
    else:
        headings = {"### Differs": "error", "### Unknown": "warning"}
        levels = {level for heading, level in headings.items() if heading in text}
    return "error" if "error" in levels else "warning" if "warning" in levels else ""


@pytest.mark.usefixtures("with_monitoring_host")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_format_and_the_exit_code_agree(scenario: str, twenty: Twenty, gpuprov: Any) -> None:
    change, words, expected = SCENARIOS[scenario]
    passed(
        twenty, *(name for name in NAMES if name != SERVER and (name, change) != ("gpu-03", _never_validated))
    )
    change(twenty)
    for name in ("github", "sarif", "junit", "markdown"):
        code, out = gpuprov("--format", name, *words)
        assert code == expected, out
        level = {ExitCode.OK: "", ExitCode.INCOMPLETE: "warning"}.get(expected, "error")
        assert _worst(name, out) == level, f"{name}: {out}"
    code, out = gpuprov("--json", *words)
    assert code == json.loads(out)["exit_code"] == expected
    code, out = gpuprov(*words)
    assert code == expected
    assert ("20 of 20 nodes as declared" in out) == (scenario not in NOT_AS_DECLARED), out


NOT_AS_DECLARED = {
    *("drift", "lost GPU", "lost GPU, and no role of the GPUs"),
    *("unread", "unreachable", "refused"),
}


@pytest.mark.usefixtures("with_monitoring_host")
def test_a_monitoring_host_is_neither_diagnosed_nor_asked_for_a_pass(twenty: Twenty, gpuprov: Any) -> None:
    twenty.changed[SERVER] |= {"nvidia_smi.silent": ["0000:4b:00.0: GPU is lost"]}
    passed(twenty, *NAMES[:-1])
    code, out = gpuprov("--require-validated")
    assert code == ExitCode.OK, out
    assert "19 of 19 nodes with a current validation" in out
    assert "nouveau" not in out
