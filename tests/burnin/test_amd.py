"""Burn-in of an AMD GPU node: its order, and the findings from its hours."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.burnin import acceptance, campaign, judge, orders, plan, profile, results
from provision.burnin.campaign import Campaign
from provision.burnin.judge import Burned
from provision.burnin.node_talk import Answer, status
from provision.burnin.own_findings import Reported
from provision.burnin.plan import Part
from provision.burnin.watch import extremes, series
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import UsageError
from provision.fleet import Fleet, Node
from provision.node.burnin.order import read_order
from provision.remote.reach.observe import Observation
from provision.runs import fingerprint
from provision.validate import validation
from tests.checks.amd_node import ADDRESSES, documents, facts, node_of
from tests.support import burnin
from tests.support.burnin import Made
from tests.support.burnin_nodes import FakeNode, files
from tests.support.spools import BOOT, T0, burned, event, raw, sample

PART = Part("gpu-01", 1, 0.0, 3600.0, 5000.0, None)
LINE = "not measured on AMD GPUs yet"
Change = Callable[[float, int], dict[str, Any] | None]


def order_of(name: str, node: NodeFacts, **changes: Any) -> dict[str, Any]:
    fitted = profile.fitted(profile.load(name), None, plan.cost)
    fitted = dataclasses.replace(fitted, **changes)
    return orders.order("20261118T120000.000Z-burnin", fitted, node, PART, None, {})


@pytest.fixture
def node() -> NodeFacts:
    return node_of(facts())


@pytest.fixture
def amd(made: Made, node: NodeFacts) -> Made:
    made.node = node
    return made


# --- orders


@pytest.mark.parametrize("name", profile.available())
def test_each_shipped_profile_is_an_order_with_amds_programs(name: str, node: NodeFacts) -> None:
    given = order_of(name, node)
    understood = read_order(json.dumps(given))
    assert (understood["vendor"], understood["gpus"]) == ("amd", [at.rpartition(".")[0] for at in ADDRESSES])
    named = {one.name for one in profile.load(name).segments if one.kind != "fleet"}
    assert named == {one["name"] for one in given["segments"] if one["kind"] != "fleet"}
    commands = {
        step["check"]: {command["argv"][0].rpartition("/")[2] for command in step["commands"]}
        for segment in given["segments"]
        for step in segment["steps"]
    }
    assert "rvs" in commands["gpu_burn"]
    assert "TransferBench" in commands["memory_bandwidth"]
    assert not any("nvidia" in program for programs in commands.values() for program in programs)


def test_its_stops_are_those_of_its_vendor(node: NodeFacts) -> None:
    amd, nvidia = (order_of("smoke", one)["abort"] for one in (node, burnin.NODE))
    assert (amd["gpu_celsius"], nvidia["gpu_celsius"]) == (102, 92)
    line = "amdgpu 0000:05:00.0: amdgpu: device lost from bus!"
    assert any(re.search(pattern, line) for pattern in amd["kernel"])
    assert not any(re.search(pattern, line) for pattern in nvidia["kernel"])
    without = profile.Abort(gpu_celsius=95, xids=(79,))
    asked = [order_of("smoke", one, abort=without)["abort"] for one in (node, burnin.NODE)]
    assert [one["gpu_celsius"] for one in asked] == [95, 95], "one number is of every GPU"
    assert [list(one["kernel"]) for one in asked] == [[], []]


@pytest.mark.parametrize("given", ["{}", "{intel: 90}", "{amd: hot}", "{amd: 300}", "true", "[92]"])
def test_a_temperature_that_is_none_is_refused(given: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yml"
    segments = "segments: [{name: look, kind: load, checks: [gpu_inventory], repeat: 1}]"
    file.write_text(f"minutes: 5\nabort: {{gpu_celsius: {given}}}\n{segments}\n")
    with pytest.raises(
        UsageError, match="gpu_celsius must be a number from 40 to 130, or a mapping of nvidia"
    ):
        profile.load(str(file))


MORE = ("dcgm_diag", "gpu_burn", "ddp_scaling")


def test_a_check_that_was_not_built_for_it_is_left_out_and_said(node: NodeFacts) -> None:
    segment = profile.Segment("all", "load", MORE, repeat=1)
    given = order_of("smoke", node, segments=(segment,))
    assert [step["check"] for step in given["segments"][0]["steps"]] == ["gpu_burn"]
    chosen = dataclasses.replace(profile.load("smoke"), segments=(segment,))
    planned = plan.plan([plan.Load("gpu-01")], plan.Caps(), {"gpu-01": (60.0, 90.0)})
    able = {"gpu-01": node, "gpu-02": burnin.NODE}
    said = [line for line in orders.lines(chosen, planned, {}, able) if LINE in line]
    assert said == [f"ddp_scaling, dcgm_diag: {LINE}: gpu-01"]
    assert orders.document(chosen, planned, {}, able)["left_out"] == [
        {"checks": ["ddp_scaling", "dcgm_diag"], "why": LINE, "nodes": ["gpu-01"]}
    ]


def test_the_record_says_what_was_not_measured(amd: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"profile": {"segments": [{"name": "heat", "checks": list(MORE)}, {"checks": 7}, "x"]}}
    usual = burnin.order
    monkeypatch.setattr(burnin, "order", lambda repeat: usual(repeat, about=about))
    found = amd.soak({1: None}).judged(1)
    skipped = {
        check.check: check.findings[0].message
        for check in found.health.checks
        if check.verdict is Verdict.SKIP
    }
    assert skipped == {"ddp_scaling": LINE, "dcgm_diag": LINE}


def test_a_burn_that_partitioned_gpus_cannot_take_is_in_the_record(
    amd: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = facts()
    for one in known["amdgpu.devices"]:
        one["compute_partition"] = "CPX"
    amd.node = node_of(known)
    about = {"profile": {"segments": [{"name": "heat", "checks": ["gpu_burn"]}]}}
    looks = {"name": "look", "kind": "load", "repeat": 1, "steps": [{"check": "gpu_inventory"}]}
    monkeypatch.setattr(burnin, "order", lambda _: {"segments": [looks], "about": about})
    (burn,) = [check for check in amd.soak({}).judged(1).health.checks if check.check == "gpu_burn"]
    assert burn.verdict is Verdict.SKIP
    assert "GPUs are partitioned (CPX" in burn.findings[0].message


# --- findings


def usual(**more: Any) -> dict[str, Any]:
    """Return the samples of a loaded MI300X in addition to those of any GPU."""
    return {"violations": "0x0", "throttle": "", "pcie_replays": 5, **more}


def healthy(_up: float, _gpu: int) -> dict[str, Any]:
    return usual()


def judged(amd: Made, change: Change = healthy, *events: Any) -> Burned:
    return amd.soak(dict.fromkeys((1, 2, 3, 4)), *events, change=change).judged()


def told(found: Burned) -> dict[tuple[str, str], Reported]:
    """Return the burn-in's own failures and warnings, by (device, metric)."""
    return {
        (one.finding.device, one.finding.metric): one
        for one in found.reported
        if one.finding.verdict in (Verdict.FAIL, Verdict.WARN)
    }


def test_healthy_hours_show_nothing(amd: Made) -> None:
    assert told(judged(amd)) == {}
    watched = amd.sampled()
    assert set(watched.gpus) == {f"gpu{number}" for number in range(8)}
    assert extremes(watched.gpus["gpu3"])["throttled_share"] == {}
    assert {place.temperatures[3] for place in series(watched).values()} == {60.0}


@pytest.mark.parametrize(
    ("bits", "verdict", "said"),
    [
        ("0x1", Verdict.FAIL, "the board asks for it (PROCHOT)"),
        ("0x4", Verdict.FAIL, "its memory is too hot"),
        ("0x8", Verdict.WARN, "it is at its limit of temperature"),
    ],
)
def test_what_holds_the_clocks_down_is_said_in_its_vendors_words(
    amd: Made, bits: str, verdict: Verdict, said: str
) -> None:
    def held(up: float, gpu: int) -> dict[str, Any]:
        return usual(violations=bits) if gpu == 5 and up >= 65 else usual()

    (found,) = told(judged(amd, held)).items()
    assert found[0] == ("gpu5", "throttled")
    assert found[1].finding.verdict is verdict
    assert said in found[1].finding.message
    assert found[1].since == T0 + 65


def test_errors_and_replays_that_come_meanwhile_are_counted(amd: Made) -> None:
    def grows(up: float, gpu: int) -> dict[str, Any]:
        return usual(ecc_ue=int(gpu == 2 and up > 100), pcie_replays=5 + int(up) * (gpu == 6))

    found = told(judged(amd, grows))
    assert {key: one.finding.verdict for key, one in found.items()} == {
        ("gpu2", "load_ecc_uncorrectable"): Verdict.FAIL,
        ("gpu6", "load_replays"): Verdict.FAIL,
    }


def test_a_hot_gpu_is_one_against_its_peers(amd: Made) -> None:
    def hot(_up: float, gpu: int) -> dict[str, Any]:
        return usual(temperature_c=60 + 25 * (gpu == 1))

    assert set(told(judged(amd, hot))) == {("gpu1", "load_temperature")}


def test_a_gpu_that_amd_smi_lists_no_more_is_gone_since_then(amd: Made) -> None:
    def gone(up: float, gpu: int) -> dict[str, Any] | None:
        return None if gpu == 7 and up > 150 else usual()

    (found,) = told(judged(amd, gone)).items()
    assert found[0] == ("gpu7", "silent")
    assert found[1].finding.message.startswith("amd-smi stopped listing it ")
    assert (found[1].since, found[1].finding.action) == (T0 + 150, "power-cycle")


LOST = "amdgpu 0000:e5:00.0: amdgpu: device lost from bus!"


def test_a_line_of_the_driver_between_the_tests_is_told_with_its_gpu(amd: Made) -> None:
    line = "amdgpu 0000:46:00.0: {1}3 uncorrectable hardware errors detected in umc block"
    other = "amdgpu 0000:fe:00.0: amdgpu: GPU reset(1) failed"
    events = [event(75, "kernel", line=line), event(76, "kernel", line=other)]
    events += [event(77, "kernel", line="EDAC MC1: 1 CE memory read error")]
    (found,) = told(judged(amd, healthy, *events)).items()
    assert found[0] == ("gpu2", "amdgpu.uncorrectable")
    assert (found[1].since, found[1].finding.verdict) == (T0 + 75, Verdict.FAIL)


def test_a_gpu_that_its_driver_lost_is_told_once(amd: Made) -> None:
    def gone(up: float, gpu: int) -> dict[str, Any] | None:
        return None if gpu == 7 and up > 150 else usual()

    found = told(judged(amd, gone, event(152, "kernel", line=LOST)))
    assert set(found) == {("gpu7", "amdgpu.lost")}


def test_on_another_vendors_node_the_same_line_accuses_nobody(made: Made) -> None:
    assert told(judged(made, lambda _up, _gpu: {}, event(75, "kernel", line=LOST))) == {}


def test_a_line_of_the_driver_dates_what_a_step_found(amd: Made) -> None:
    line = "amdgpu 0000:46:00.0: {1}3 uncorrectable hardware errors detected in umc block"
    amd.soak(
        {1: burned(), 2: burned()},
        event(30, "kernel", line=LOST),
        event(40, "kernel", line=line),
        change=healthy,
    )
    timeline, watch, _ = amd.reported()
    found = Finding("gpu_burn", Verdict.FAIL, "gpu2", "bad", "amdgpu.uncorrectable")
    first = judge._Judged(timeline.steps[0], CheckResult("gpu_burn", Verdict.FAIL, (found,), (), 60.0))
    assert judge._since(found, first, [first], timeline, watch) == T0 + 40


# --- records


def burn(node: NodeFacts) -> dict[str, Any]:
    """Return the result of a gpu_burn step without findings by RVS."""
    lines = [f"{at} - GPU[{n:2d} - {n + 1000:5d}] AMD Instinct MI300X\n" for n, at in enumerate(ADDRESSES)]
    output = ""
    for number in range(1000, 1008):
        for moment, words in (
            (100, "End of GPU ramp up"), (120, "GFLOPS 690000"), (161, "GFLOPS 690000"),
            (162, "GFLOPS 690500 Target GFLOPS: 0 met: TRUE"),
        ):  # fmt: skip
            output += f"[RESULT] [{moment:6d}.5     ] [gpuprov-burn] [GPU:: {number:5d}] {words}\n"
    static, metric = documents()["static"], documents()["metric"]
    for entry in metric["gpu_data"]:
        entry["usage"]["gfx_activity"]["value"] = 100
    sampled = "".join(f"{at} {json.dumps(metric)}\n" for at in range(100, 162, 3))
    texts = {"rvs_gpus": "ROCm Validation Suite (version 1.1.0)\n" + "".join(lines), "gpu_burn": output}
    texts |= {"telemetry": sampled, "kernel_log_delta": ""}
    commands = node_judge.commands_for("gpu_burn", node.check_node, {"burn_seconds": 60})
    ran = [(one.name, list(one.argv), one.beside) for one in commands]
    plain = {
        "rc": 0,
        "stderr": "",
        "seconds": 62.0,
        "timed_out": False,
        "truncated": False,
        "not_started": "",
    }
    outputs = [
        {**plain, "name": name, "argv": argv, "beside": beside, "stdout": texts.get(name, json.dumps(static))}
        for name, argv, beside in [*ran, ("kernel_log_delta", ["dmesg"], "")]
    ]
    return {"outputs": outputs, "boot_id": BOOT, "boot_id_before": BOOT}


def test_one_record_holds_nodes_of_both_vendors(run: Campaign, nodes: dict[str, FakeNode]) -> None:
    second = dataclasses.replace(node_of(facts()), node="gpu-02")
    samples = "".join(
        sample(up, gpu, temperature_c=75, power_w=740, sm_mhz=1410, util_pct=99, violations="0x0")
        for up in range(1, 67, 5)
        for gpu in range(8)
    )
    about = {"seen": dataclasses.asdict(second), "fingerprint": {"values": {}, "unknown": {}}}
    about["profile"] = {"name": "x", "minutes": 1, "segments": [{"checks": ["gpu_burn", "ddp_scaling"]}]}
    nodes["gpu-01"] = FakeNode("gpu-01", files())
    nodes["gpu-02"] = FakeNode("gpu-02", files(**{
        "order.json": json.dumps(burnin.order(1, about=about)).encode(),
        "raw/000001-gpu_burn.json.gz": raw(burn(second)),
        f"telemetry/{BOOT}.csv": samples.encode(),
    }))  # fmt: skip
    run.fetch(["gpu-01", "gpu-02"], lambda line: pytest.fail(line))
    found = results.results(run)
    assert {one.node: (one.verdict, one.facts["sku"]) for one in found.health.nodes} == {
        "gpu-01": (Verdict.PASS, "h100-sxm"),
        "gpu-02": (Verdict.PASS, "mi300x"),
    }
    written = acceptance.write(run, found)
    page = written["record"].read_text()
    assert "2 of 2 nodes accepted" in page
    record = json.loads((run.folder.path / "record.json").read_text())
    amd = record["nodes"][1]
    assert {name: len(one) for name, one in amd["telemetry"]["devices"].items()} == {
        f"gpu/gpu{number}": 7 for number in range(8)
    }
    assert amd["load_by_segment"] == {"heat": {"gpu_burn": 62.0}}
    assert amd["checks"] == {"gpu_burn": "pass", "ddp_scaling": "skip", "burnin": "pass"}
    assert [row["sku"] for row in record["thermal"]] == ["h100-sxm"] * 8 + ["mi300x"] * 8


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (LOST, True),
        ("amdgpu 0000:e5:00.0: amdgpu: GPU reset(1) succeeded!", False),
        ("EDAC MC1: 1 CE", False),
    ],
)
def test_the_state_of_a_node_says_that_a_gpu_broke(line: str, bad: bool) -> None:
    events = [{"event": []}, {"event": "kernel", "line": line}]
    said = {"campaign": "it", "finished": False, "alive": True, "events": events}
    found = status(Answer("gpu-01", said), "it")
    assert (found.bad, found.words.endswith("; kernel")) == (bad, bad)


# --- observation before the burn-in


def test_what_only_its_checks_read_is_asked_in_a_second_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known, asked = facts(), []
    late = {name for name in known if name.startswith("amdgpu.")} - fingerprint.FACTS

    def observe(nodes: Any, ask: Mapping[str, Any], **_more: Any) -> dict[str, Observation]:
        asked.append({name: frozenset(wanted) for name, wanted in ask.items()})
        first = len(asked) == 1
        base = {name: value for name, value in known.items() if name not in late} if first else {}
        return {one.name: Observation(one.name, {**base, **({} if first else known)}) for one in nodes}

    for module in (campaign, validation):
        monkeypatch.setattr(module, "observe", observe)
    fleet = Fleet(tmp_path / "i.yml", {"gpu-01": Node("gpu-01", (), {})}, {})
    looked = campaign.look(fleet, {}, profile.load("smoke"), timeout=5.0, connections=1)
    assert looked.seen["gpu-01"].error == ""
    assert late <= asked[1]["gpu-01"]
    assert looked.able["gpu-01"].facts["amdgpu.devices"] == known["amdgpu.devices"]
