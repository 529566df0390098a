"""Segments between nodes: measured when all wait, an error when nobody attended."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision import pair_campaign
from provision.burnin import fleet
from provision.burnin.campaign import Campaign
from provision.burnin.status import Status
from provision.health import NodeHealth
from provision.judge import Verdict
from provision.store import RunFolder
from tests.burnin.conftest import NODE

WANTED = {"pairs": ["pair_bandwidth"]}


def waits(node: str, holding: str = "pairs", **more: bool) -> Status:
    return Status(node, "", alive=True, holding=holding, **more)


@pytest.mark.parametrize(
    ("found", "ready"),
    [
        ([waits("a"), waits("b")], {"pairs": ["a", "b"]}),
        ([waits("a"), waits("b", "")], {}),  # b still burns
        ([waits("a"), waits("b", "", over=True)], {"pairs": ["a"]}),  # b ended early
        ([waits("a"), waits("b"), waits("c", "")], {"pairs": ["a", "b"]}),  # c is of the next turn
        ([waits("a", "other"), waits("b", "other")], {}),  # no segment of ours
        ([], {}),
    ],
)
def test_pairs_are_measured_once_all_of_a_turn_wait(found: list[Status], ready: dict[str, list[str]]) -> None:
    assert fleet.ready(found, {"a": 1, "b": 1, "c": 2}, WANTED) == ready


def test_the_segments_of_a_profile_from_a_node_are_not_trusted() -> None:
    assert fleet.segments(
        {"segments": [{"name": "x", "kind": "fleet", "checks": ["pair_bandwidth"]}, 3]}
    ) == {"x": ["pair_bandwidth"]}
    assert fleet.segments({"segments": "x"}) == fleet.segments(None) == {}


@pytest.fixture
def run(tmp_path: Path) -> Campaign:
    folder = RunFolder.create("burnin", {}, tmp_path)
    folder.note(nodes=["gpu-01"])
    return Campaign(folder, {"gpu-01": {}})


def test_a_segment_nobody_attended_is_an_error_of_the_nodes_that_waited(run: Campaign) -> None:
    nodes = [NodeHealth("gpu-01", Verdict.PASS, ()), NodeHealth("gpu-02", Verdict.PASS, ())]
    judged, _, _ = fleet.judge(run, nodes, {}, WANTED, {"gpu-01": ["pairs"], "gpu-02": []})
    assert [node.verdict for node in judged] == [Verdict.ERROR, Verdict.PASS]
    (finding,) = judged[0].checks[0].findings
    assert finding.message.startswith("pairs: nobody attended")


def test_nodes_are_let_go_on_whatever_came_of_the_measuring(
    run: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, object]] = []
    monkeypatch.setattr(
        Campaign, "ask", lambda _self, state, _nodes, **more: asked.append((state, more["shared"])) or {}
    )

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pair_campaign, "measure", fails)
    with pytest.raises(KeyboardInterrupt):
        fleet.measure(run, "pairs", ["pair_bandwidth"], {"gpu-01": NODE}, print, 5)
    assert asked == [("release", {"segment": "pairs"})]
    assert RunFolder(run.folder.path / "fleet" / "pairs").meta()["asked"] == ["pair_bandwidth"]
