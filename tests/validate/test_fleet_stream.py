"""Judging a fleet node by node: the same report as from memory, byte for byte, with much less memory."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from provision.checks import check
from provision.checks.check import GpuIdentity, Measurement, Output
from provision.checks.fleet import fleet_judge
from provision.checks.health import CheckResult, FleetHealth, LazyRows, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import node_judge, offenders
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import RunFolderError
from provision.report import json as report_json
from provision.runs import fleet_pairs, node_history, store
from provision.runs.store import RunFolder
from provision.validate import campaign, parallel_map
from tests.support.fleet_versions import judge_fleet
from tests.support.stored import FACTS, FIXTURE, GPU, slower

ASKED = ("versions", "p2p_bandwidth")
H200 = {**GPU, "sku": "h200-sxm", "pci_ids": ["10de:2335"]}
OLD_KERNEL = {**FACTS, "kernel.release": "6.12.99+deb13-amd64"}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Build a run of two products with slow nodes, another kernel, a silent node, a lost one, one with
    unparsable output, an unmeasured one, and one of a product too rare to compare."""
    folder = RunFolder.create("validate", {}, runs=tmp_path / "runs")
    folder.note(inventory="inventory.yml", asked=list(ASKED))
    healthy = FIXTURE.read_text(encoding="utf-8")
    for number in range(1, 25):
        name, gpu = f"gpu-{number:02d}", GPU if number % 2 else H200
        if number == 7:
            folder.append("facts", asdict(NodeFacts(name, {}, {}, {}, "timed out", unreachable=True)))
            continue
        if number == 24:
            gpu = {**GPU, "sku": "h800-sxm"}
        facts = {**(OLD_KERNEL if number == 9 else FACTS), "boot.id": "the third"}
        folder.append("facts", asdict(NodeFacts(name, facts, {"gpu": gpu}, {})))
        store.keep_raw(folder, check.Raw(name, "versions"))
        share = {3: 0.9, 4: 0.6, 5: 0.97}.get(number, 1 + number % 5 / 1000)
        text = "nothing that anybody understands" if number == 11 else slower(healthy, share)
        if number == 24:  # one GPU is slower than its peers, without a known limit
            text = healthy.replace('"54.7"', '"40.1"', 1)
        output = Output("nvbandwidth", ("nvbandwidth",), 0, text, "", 9.0)
        raw = check.Raw(name, "p2p_bandwidth", (output,), 9.0)
        if number == 13:
            raw = check.Raw(name, "p2p_bandwidth", error="gone", unreachable=True)
        if number != 15:
            store.keep_raw(folder, raw)
    folder.append("facts", asdict(NodeFacts("gpu-05", FACTS, {"gpu": GPU}, {})))  # the last record counts
    past = offenders.past_from("", campaign.rejudge(folder).nodes[23], ASKED)
    assert past.bad, "a GPU slower than its peers is a matter of hardware"
    for name, day in (("gpu-24", 1), ("gpu-24", 2), ("gpu-06", 1)):
        one = replace(past, run=f"2026010{day}T000000.000Z-validate", boot=f"boot{day}")
        folder.append("earlier_runs", {"node": name, **one.record()})
    return folder


def held(folder: RunFolder) -> FleetHealth:
    """Return the report of a fleet judged entirely in memory."""
    facts = {record["node"]: NodeFacts(**record) for record in folder.read("facts")}
    nodes = []
    for node in facts.values():
        raws = [raw for check in ASKED if (raw := store.read_raw(folder, node.node, check)) is not None]
        results = {raw.check: node_judge.judge_check(node, raw, node.limits()) for raw in raws}
        nodes.append(node_judge.judge_node(node, results, ASKED, lost=any(raw.unreachable for raw in raws)))
    measured, few = fleet_judge.judge(nodes)
    compared, ambiguous = judge_fleet(measured, {name: one.check_node for name, one in facts.items()})
    escalated = offenders.escalate(compared, node_history.recalled(folder))
    judged, fabric, between = fleet_pairs.judge(folder, escalated, facts)
    head = replace(campaign.rejudge(folder), nodes=())
    return replace(head, nodes=judged, not_compared=(*few, *ambiguous), fabric=fabric, between=between)


def written(fleet: FleetHealth) -> str:
    return "".join(report_json.render(fleet))


def test_the_report_is_that_of_a_fleet_held_in_memory(run: RunFolder) -> None:
    fleet = campaign.rejudge(run)
    text = written(fleet)
    assert text == written(held(run))
    assert fleet == held(run)
    assert [node.node for node in fleet.nodes] == [f"gpu-{number:02d}" for number in range(1, 25)]
    for said in (
        "that is the median of",
        "most nodes of this run",
        "came back 2 times after a reboot or a run without it",
        "timed out",
    ):
        assert said in text, "the fleet is to have one of each"
    assert "h800-sxm: 1 node" in text
    assert {node.verdict for node in fleet.nodes} >= {Verdict.FAIL, Verdict.ERROR}


def test_several_processes_judge_as_one_does(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_map, "processes", lambda _: 1)
    alone = written(campaign.rejudge(run))
    monkeypatch.setattr(parallel_map, "processes", lambda _: 3)
    assert written(campaign.rejudge(run)) == alone


def test_what_processes_give_comes_in_order_and_what_they_raise_is_raised() -> None:
    found = list(parallel_map.in_order(lambda n: (n, os.getpid()), range(100), 2))
    assert [n for n, _ in found] == list(range(100))
    assert os.getpid() not in {process for _, process in found}

    def refuse(number: int) -> int:
        if number == 60:
            raise RunFolderError("node 60 cannot be read", "remove it")
        return number

    with pytest.raises(RunFolderError, match="node 60") as caught:
        list(parallel_map.in_order(refuse, range(100), 2))
    assert caught.value.fix == "remove it"


def test_a_process_that_is_killed_is_one_line() -> None:
    with pytest.raises(RunFolderError, match="was killed"):
        list(parallel_map.in_order(lambda _: os.kill(os.getpid(), signal.SIGKILL), range(9), 2))


def test_a_large_fleet_is_judged_as_a_small_one(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    few = campaign.rejudge(run)
    monkeypatch.setattr(campaign, "FEW", 3)
    for processes in (1, 3):
        monkeypatch.setattr(parallel_map, "processes", lambda _, count=processes: count)
        many = campaign.rejudge(run)
        rows = [
            rows for n in many.nodes for check in n.checks for rows in (check.findings, check.measurements)
        ]
        assert all(isinstance(each, LazyRows) and each.packed is None for each in rows), "in a file"
        assert list(run.path.glob(".rows-*")) == [], "which has no name"
        assert many == few
        assert written(many) == written(few)
        assert [c.wrong for n in many.nodes for c in n.checks] == [
            c.wrong for n in few.nodes for c in n.checks
        ]
        assert [c.may_have("h2d") for n in many.nodes for c in n.checks] == [
            c.may_have("h2d") for n in few.nodes for c in n.checks
        ]


def big(number: int) -> NodeHealth:
    """Return a node with as many measurements as a campaign produces."""
    rows = tuple(
        Measurement("rate" if i < 8 else f"other{i}", 50_000.0 + number % 7 + i, "Gflop/s", f"gpu{i % 8}")
        for i in range(800)
    )
    passed = tuple(
        Finding("gpu_burn", Verdict.PASS, f"gpu{i % 8}", f"rate {i} of {number} is fine") for i in range(100)
    )
    check = CheckResult("gpu_burn", Verdict.PASS, passed, rows, 60.0)
    gpus = tuple(GpuIdentity(i, "H100", f"{number}{i}", f"GPU-{number}-{i}", f"0:{i}") for i in range(8))
    return NodeHealth(f"gpu-{number:05d}", Verdict.PASS, (check,), gpus, {"sku": "h100-sxm", "gpus": 8})


def most(folder: RunFolder, count: int) -> int:
    """Return the peak memory in bytes of judging this many nodes."""
    tracemalloc.start()
    try:
        looks = dict.fromkeys(map(str, range(campaign.FEW + 1)), NodeFacts("", {}, {}, {}))
        fleet = campaign.fleet_health(folder, map(big, range(count)), looks)
        assert len(fleet.nodes) == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_hardly_grows_with_the_fleet(run: RunFolder) -> None:
    few, many = most(run, 20), most(run, 120)
    a_node = len(report_json._encode(big(1)))
    assert a_node > 80_000
    assert (many - few) / 100 < a_node / 8, "the nodes' measurements are held"


def numbers(rows: Mapping[str, float]) -> Iterator[fleet_judge.Measured]:
    for device, value in rows.items():
        yield fleet_judge.Measured("h100-sxm", "gpu_burn.rate", "", device, value, "Gflop/s")


def test_of_a_node_the_comparison_keeps_its_numbers_alone() -> None:
    def added(count: int) -> int:
        tracemalloc.start()
        try:
            peers = fleet_judge.Peers()
            for node in range(count):
                peers.add(numbers({f"gpu{i}": 5e4 + node + i for i in range(8)}))
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert (added(3000) - added(1000)) / 2000 / 8 < 60, "bytes a number"


def test_looks_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    from provision.runs.node_facts import read_node_facts

    folder = RunFolder.create("validate", {}, runs=tmp_path)
    for name, count in (("a", 1), ("ü", 2), ("a", 3)):
        folder.append("facts", asdict(NodeFacts(name, {"gpu.count": count}, {}, {})))
    looks = read_node_facts(folder)
    assert list(looks) == ["a", "ü"]
    found: dict[str, Any] = {name: one.facts["gpu.count"] for name, one in looks.items()}
    assert found == {"a": 3, "ü": 2}
    (folder.path / "facts.jsonl").write_text(json.dumps({"no": "look"}) + "\n")
    with pytest.raises(RunFolderError, match=r"facts\.jsonl is not of a validate run"):
        read_node_facts(folder)
