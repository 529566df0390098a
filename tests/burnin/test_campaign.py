"""The controller's side of a burn-in, with nodes that answer like the module or misbehave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.burnin import acceptance, campaign, results
from provision.burnin.campaign import Campaign
from provision.burnin.node_talk import status
from provision.burnin.spool import Spool
from provision.checks.judge import Verdict
from provision.errors import GpuprovError, RunFolderError
from provision.fleet import Fleet, Node
from provision.remote.schedulers import chosen
from provision.remote.schedulers.slurm import Slurm
from tests.support.burnin import order
from tests.support.burnin_nodes import NAME, FakeNode, files
from tests.support.slurm_cluster import Cluster
from tests.support.spools import burned, event, jsonl, raw

Nodes = dict[str, FakeNode]
SILENT = "unreachable: timed out → is it powered on, and are address, port, login and network right?"


def test_everything_comes_in_parts_and_the_record_is_written(
    run: Campaign, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.burnin.node_talk.LIMIT", 700)
    nodes["gpu-01"] = FakeNode("gpu-01", files())
    said: list[str] = []
    run.fetch(["gpu-01", "gpu-02"], said.append)
    assert len(nodes["gpu-01"].asked) > 10
    spool = Spool(run.folder, "gpu-01")
    for name, data in files().items():
        if not name.startswith("raw/"):
            assert (spool.path / name).read_bytes() == data, name
    assert said == [f"gpu-02: {SILENT}"]
    found = results.results(run)
    verdicts = {node.node: node.verdict for node in found.health.nodes}
    assert verdicts == {"gpu-01": Verdict.PASS, "gpu-02": Verdict.ERROR}
    assert not found.over  # gpu-02 may still come back
    written = acceptance.write(run, found)
    assert (run.folder.path / "nodes.pass").read_text() == "gpu-01\n"
    assert (run.folder.path / "nodes.exclude").read_text() == "gpu-02\n"
    assert "1 of 2 nodes accepted" in written["record"].read_text()
    # A second fetch transfers nothing that is already stored.
    nodes["gpu-01"].asked.clear()
    run.fetch(["gpu-01"], said.append)
    assert len(nodes["gpu-01"].asked) == 1


def test_a_node_that_promises_more_for_ever_is_not_waited_for(run: Campaign, nodes: Nodes) -> None:
    nodes["gpu-01"] = FakeNode("gpu-01", {}, more=True)
    run.fetch(["gpu-01"], print)
    assert len(nodes["gpu-01"].asked) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"campaign": "another"}, "it has the burn-in another, not"),
        ({"campaign": ""}, "it has no burn-in, not"),
        ({"now": "noon"}, "it has no time"),
        ({"parts": {}}, "its answer was not understood"),
        ({"parts": [{"file": "../x", "offset": 0, "data": ""}]}, "a file that a burn-in does not write"),
        ({"parts": [{"file": "events.jsonl", "offset": 0, "data": "AAAA"}]}, "its answer was not understood"),
    ],
)
def test_a_strange_answer_is_one_line_and_the_node_no_pass(
    run: Campaign, nodes: Nodes, more: dict[str, Any], said: str
) -> None:
    nodes["gpu-01"] = FakeNode("gpu-01", {}, **more)
    reported: list[str] = []
    run.fetch(["gpu-01"], reported.append)
    assert len(reported) == 1
    assert said in reported[0]
    assert all(node.verdict is Verdict.ERROR for node in results.results(run).health.nodes)


def test_a_node_that_refuses_is_told_with_the_burn_in_it_has(run: Campaign, nodes: Nodes) -> None:
    refuses = {"started": False, "refused": "a burn-in runs", "running": "20260101-burnin"}
    nodes["gpu-01"] = FakeNode("gpu-01", {}, **refuses)
    refused = run.begin({"gpu-01": order(), "gpu-02": order()}, b"program")
    assert refused == {"gpu-01": "a burn-in runs (20260101-burnin)", "gpu-02": SILENT}


def test_orders_that_come_too_late_for_the_limits_stop_all(
    run: Campaign, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes["gpu-01"] = FakeNode("gpu-01", {})
    monkeypatch.setattr(campaign, "MARGIN", -1.0)
    with pytest.raises(GpuprovError, match="the limits allow"):
        run.begin({"gpu-01": order(end_by_s=100.0)}, b"program")
    assert nodes["gpu-01"].asked[-1]["gpuprov_burnin_state"] == "stop"


def test_a_machine_that_never_heard_of_it_asks_the_nodes(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    fleet = Fleet(tmp_path / "i.yml", {n: Node(n, (), {}) for n in ("gpu-01", "gpu-02", "gpu-03")}, {})
    variables: dict[str, dict[str, Any]] = {name: {} for name in fleet.nodes}
    assert campaign.known_here("latest") is None
    nodes["gpu-01"] = FakeNode("gpu-01", files())
    nodes["gpu-03"] = FakeNode("gpu-03", {}, campaign="")
    known, _ = campaign.ask_nodes("latest", variables, fleet, 5)
    assert known.name == NAME
    assert known.folder.meta()["nodes"] == ["gpu-01", "gpu-02"]  # gpu-02 is unreachable and may have it
    known.fetch(known.folder.meta()["nodes"], print)
    health = {node.node: node for node in results.results(known).health.nodes}
    assert health["gpu-01"].verdict is Verdict.PASS
    assert health["gpu-01"].facts["sku"] == "h100-sxm"  # as seen by the controller that started it
    assert health["gpu-02"].verdict is Verdict.ERROR
    nodes["gpu-02"] = FakeNode("gpu-02", {}, campaign="")
    again, _ = campaign.ask_nodes(NAME, variables, fleet, 5)
    assert again.folder.meta()["nodes"] == ["gpu-01"]


@pytest.mark.parametrize("name", ["../../etc", "x", "20261118T120000.000Z-validate", ""])
def test_a_name_that_no_burn_in_has_makes_no_folder(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    nodes["gpu-01"] = FakeNode("gpu-01", {}, campaign=name)
    fleet = Fleet(tmp_path / "i.yml", {"gpu-01": Node("gpu-01", (), {})}, {})
    with pytest.raises(RunFolderError, match="no node has a burn-in"):
        campaign.ask_nodes("latest", {"gpu-01": {}}, fleet, 5)
    assert not (tmp_path / "runs").exists()


def test_where_a_node_is_is_said_in_words(run: Campaign, nodes: Nodes) -> None:
    nodes["gpu-01"] = FakeNode(
        "gpu-01", {}, alive=True, finished=False,
        state={"segment": 1, "begun": True, "doing": {"check": "gpu_burn", "round": 3}},
        order={"segments": ["look", "heat"]}, events=[{"event": "xid"}],
    )  # fmt: skip
    answers = run.ask("status", ["gpu-01", "gpu-02"])
    one, other = (status(answers[name], NAME) for name in ("gpu-01", "gpu-02"))
    assert one.words == "heat (2 of 2), gpu_burn, run 4; xid"
    assert (one.bad, one.over, one.alive) == (True, False, True)
    assert not other.over  # it may still be running
    assert other.words == SILENT


@pytest.mark.parametrize(
    "strange", [{"state": 3}, {"events": "x"}, {"order": {"segments": {}}}, {"state": {"segment": "x"}}]
)
def test_a_status_that_is_none_never_fails(run: Campaign, nodes: Nodes, strange: dict[str, Any]) -> None:
    nodes["gpu-01"] = FakeNode("gpu-01", {}, **{"alive": True, "finished": False, **strange})
    assert status(run.ask("status", ["gpu-01"])["gpu-01"], NAME).words


def test_a_hostile_node_stays_text_in_the_record(run: Campaign, nodes: Nodes) -> None:
    bad = "<script>alert(1)</script>{{ 7 * 7 }}\x1b[2J"
    events = jsonl([event(1, "started"), event(2, "segment", **{"name": bad}), event(3, "error", text=bad)])
    nodes["gpu-01"] = FakeNode("gpu-01", files(**{"events.jsonl": events}))
    run.fetch(["gpu-01"], print)
    page = acceptance.write(run, results.results(run))["record"].read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page


def test_failed_nodes_are_drained_once_with_the_reason(run: Campaign, nodes: Nodes, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text('#!/bin/sh\necho "$1 $GPUPROV_REASON" >> "$(dirname "$0")/told"\n')
    hook.chmod(0o755)
    broken = files(**{"raw/000001-gpu_burn.json.gz": raw(burned("faulty-gpu3"))})
    nodes["gpu-01"] = FakeNode("gpu-01", broken)
    run.fetch(["gpu-01"], print)
    found = {name: Node(name, (), {"gpuprov_drain_hook": str(hook)}) for name in run.variables}
    fleet = Fleet(tmp_path / "i.yml", found, {})
    for _ in range(2):
        assert acceptance.drain(run, results.results(run), fleet, {}) == {}
    (line,) = (tmp_path / "told").read_text().splitlines()
    assert line.startswith("gpu-01 gpu3: computed wrong results")


def test_failed_nodes_are_drained_through_their_scheduler(
    run: Campaign, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster({"gpu-01": ["IDLE", ""]}, denied="Invalid user id")
    monkeypatch.setitem(chosen.MAKERS, "slurm", lambda fleet, names: Slurm(fleet, names, cluster))
    broken = files(**{"raw/000001-gpu_burn.json.gz": raw(burned("faulty-gpu3"))})
    nodes["gpu-01"] = FakeNode("gpu-01", broken)
    run.fetch(["gpu-01"], print)
    found = {name: Node(name, (), {"gpuprov_scheduler": "slurm"}) for name in run.variables}
    fleet = Fleet(tmp_path / "i.yml", found, {})
    assert "Invalid user id" in acceptance.drain(run, results.results(run), fleet, {})["gpu-01"]
    cluster.denied = ""
    for _ in range(2):  # failed nodes are retried, finished ones are not
        assert acceptance.drain(run, results.results(run), fleet, {}) == {}
    state, reason = cluster.nodes["gpu-01"]
    assert state == "IDLE+DRAIN"
    assert reason.startswith(f"gpuprov: burn-in {run.name}: gpu3: computed wrong results")
    assert len(cluster.updates) == 2
