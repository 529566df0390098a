"""Segments between nodes: measured once all nodes wait, an error if no controller attended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from provision.burnin import fleet
from provision.burnin.campaign import Campaign
from provision.burnin.fleet import Between
from provision.burnin.node_talk import Answer, Status
from provision.checks.health import NodeHealth
from provision.checks.judge import Verdict
from provision.checks.judging.registry import PAIRS
from provision.runs.store import RunFolder
from provision.validate.pairs import pair_campaign
from tests.support.burnin import NODE

WANTED = {"pairs": Between(("pair_bandwidth",))}
OPTIONAL = {"pairs": Between(("pair_bandwidth",), optional=True)}


def waits(node: str, holding: str = "pairs", over: bool = False) -> Status:
    return Status(node, "", alive=True, holding=holding, over=over)


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        ([waits("a"), waits("b")], {"pairs": ["a", "b"]}),
        ([waits("a"), waits("b", "")], {}),  # b still burns
        ([waits("a"), waits("b", "", over=True)], {"pairs": ["a"]}),  # b ended early
        ([waits("a"), waits("b"), waits("c", "")], {"pairs": ["a", "b"]}),  # c is in the next turn
        ([waits("a", "other"), waits("b", "other")], {}),  # no segment of this kind
        ([], {}),
    ],
)
def test_pairs_are_measured_once_all_of_a_turn_wait(found: list[Status], ready: dict[str, list[str]]) -> None:
    assert fleet.ready(found, {"a": 1, "b": 1, "c": 2}, WANTED) == ready


def test_the_segments_of_a_profile_from_a_node_are_not_trusted() -> None:
    row = {"name": "x", "kind": "fleet", "checks": ["pair_bandwidth"]}
    assert fleet.segments({"segments": [row, 3]}) == {"x": Between(("pair_bandwidth",))}
    strange = {**row, "attended": "only", "checks": 3}
    assert fleet.segments({"segments": [strange]}) == {"x": Between((), optional=True)}
    assert fleet.segments({"segments": "x"}) == fleet.segments(None) == {}


@pytest.fixture
def run(tmp_path: Path) -> Campaign:
    folder = RunFolder.create("burnin", {}, tmp_path)
    folder.note(nodes=["gpu-01"])
    return Campaign(folder, {"gpu-01": {}})


TWO = [NodeHealth("gpu-01", Verdict.PASS, ()), NodeHealth("gpu-02", Verdict.PASS, ())]


def test_a_segment_nobody_attended_is_an_error_of_the_nodes_that_waited(run: Campaign) -> None:
    judged, _, reported = fleet.judge(run, TWO, {}, WANTED, {"gpu-01": ["pairs"], "gpu-02": []}, {})
    assert [node.verdict for node in judged] == [Verdict.ERROR, Verdict.PASS]
    (finding,) = judged[0].checks[0].findings
    assert finding.message.startswith("pairs: not measured, because no controller was attached")
    assert [line.partition(":")[0] for line in reported] == ["pairs of gpu-01"]


def test_one_that_is_for_those_who_attend_is_told_and_no_error(run: Campaign) -> None:
    judged, _, reported = fleet.judge(run, TWO, {}, OPTIONAL, {"gpu-01": ["pairs"], "gpu-02": ["pairs"]}, {})
    assert [node.verdict for node in judged] == [Verdict.PASS, Verdict.PASS]
    (finding,) = judged[0].checks[0].findings
    assert (finding.verdict, finding.metric) == (Verdict.SKIP, fleet.UNATTENDED)
    (line,) = reported
    assert line.startswith("pairs of gpu-[01-02]: not measured, because no controller was attached")


def test_a_node_with_nobody_beside_it_skips_them(run: Campaign) -> None:
    judged, _, reported = fleet.judge(run, TWO[:1], {}, WANTED, {"gpu-01": []}, {"gpu-01": ["pairs"]})
    assert judged[0].verdict is Verdict.PASS
    assert [finding.verdict for finding in judged[0].checks[0].findings] == [Verdict.SKIP]
    assert reported == ["pairs of gpu-01: not measured, because no other node was in its batch"]


Measure = Callable[..., list[Verdict]]


@pytest.fixture
def measured(run: Campaign) -> Measure:
    """Return a function that judges a measurement which left out two nodes, each for a given reason."""

    def judge(
        wanted: fleet.Segments, *why: str, check: str = "pair_bandwidth", **meta: object
    ) -> list[Verdict]:
        folder = RunFolder.adopt("pairs", "burnin", {}, run.folder.path / "fleet")
        left_out = {node.node: reason for node, reason in zip(TWO, why, strict=True)}
        took = {check: {"nodes": [], "left_out": left_out}}
        folder.note(asked=[check], nodes=["gpu-01", "gpu-02"], pairs=took, **meta)
        passed = {node.node: ["pairs"] for node in TWO}
        judged, _, _ = fleet.judge(run, TWO, {"gpu-01": NODE, "gpu-02": NODE}, wanted, passed, {})
        return [node.verdict for node in judged]

    return judge


NONE_THERE = f"ib_write_bw is not installed: the role {PAIRS['pair_bandwidth'].METRIC.installs} installs it"


def test_a_program_that_not_one_node_has_is_told_where_only_those_who_attend_measure(
    measured: Measure,
) -> None:
    assert measured(OPTIONAL, NONE_THERE, NONE_THERE) == [Verdict.PASS, Verdict.PASS]
    assert measured(WANTED, NONE_THERE, NONE_THERE) == [Verdict.ERROR, Verdict.ERROR]
    # The unreachable node may have it.
    assert measured(OPTIONAL, NONE_THERE, "it cannot be reached") == [Verdict.ERROR, Verdict.ERROR]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_that_each_vendor_s_nodes_lack_its_programs_is_told_as_well(measured: Measure, vendor: str) -> None:
    check = PAIRS.of_vendor("nccl_pair", vendor)
    assert check is not None
    none_there = f"all_reduce_perf is not installed: the role {check.METRIC.installs} installs it"
    wanted = {"pairs": Between(("nccl_pair",), optional=True)}
    assert measured(wanted, none_there, none_there, check="nccl_pair") == [Verdict.PASS, Verdict.PASS]


def test_what_was_measured_while_a_node_burned_again_is_not_judged(measured: Measure) -> None:
    late = {"check": "pair_bandwidth", "nodes": ["gpu-02"]}
    assert measured(OPTIONAL, NONE_THERE, NONE_THERE, late=late) == [Verdict.ERROR, Verdict.ERROR]


def test_nodes_are_let_go_on_whatever_came_of_the_measuring(
    run: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Mock(return_value={})
    monkeypatch.setattr(Campaign, "ask", ask)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pair_campaign, "measure", fails)
    with pytest.raises(KeyboardInterrupt):
        fleet.measure(run, "pairs", ["pair_bandwidth"], {"gpu-01": NODE}, print, 5)
    (asked,) = ask.mock_calls
    assert (asked.args[0], asked.kwargs["shared"]) == ("release", {"segment": "pairs"})
    assert RunFolder(run.folder.path / "fleet" / "pairs").meta()["asked"] == ["pair_bandwidth"]


@pytest.mark.parametrize(
    ("alive", "holding", "late"), [(True, "pairs", False), (True, "", True), (False, "", False)]
)
def test_who_went_on_while_it_was_measured_is_noted(
    run: Campaign, monkeypatch: pytest.MonkeyPatch, alive: bool, holding: str, late: bool
) -> None:
    said = {"campaign": run.name, "alive": alive, "finished": not alive, "holding": holding}

    def ask(_self: object, state: str, nodes: list[str], **_: object) -> dict[str, Answer]:
        return {name: Answer(name, said) for name in nodes} if state == "status" else {}

    monkeypatch.setattr(Campaign, "ask", ask)
    monkeypatch.setattr(pair_campaign, "measure", lambda *_: None)
    fleet.measure(run, "pairs", ["pair_bandwidth", "nccl_pair"], {"gpu-01": NODE}, lambda _: None, 5)
    noted = RunFolder(run.folder.path / "fleet" / "pairs").meta().get("late")
    assert noted == ({"check": "pair_bandwidth", "nodes": ["gpu-01"]} if late else None)
