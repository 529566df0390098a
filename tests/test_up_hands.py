"""The real hands of `up`, with Ansible and observation scripted: shards, boots, what is written down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision import assess, hooks, paths, resolve, runner, shards, up_hands, yamlfile
from provision.assess import Assessment
from provision.inventory import Fleet, Node
from provision.observe import Observation
from provision.plan import NodePlan, Plan
from provision.runner import Outcome
from provision.store import RunFolder
from provision.up_hands import AnsibleHands, Journal

SECRET = "corr3ct-h0rse"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...], float]]:
    """(playbook, hosts, minutes) of each run of Ansible; all goes well."""
    runs: list[tuple[str, tuple[str, ...], float]] = []

    def play(playbook: Path, hosts: Mapping[str, Any], *, timeout: float, **_: Any) -> dict[str, Outcome]:
        runs.append((playbook.name, tuple(hosts), timeout / 60))
        return {name: Outcome(name, "ok", 1) for name in hosts}

    monkeypatch.setattr(runner, "run_playbook", play)
    return runs


def hands(tmp_path: Path, count: int, **options: Any) -> AnsibleHands:
    names = [f"gpu-{number:04d}" for number in range(count)]
    fleet = Fleet(tmp_path / "fleet.yml", {name: Node(name, (), {}) for name in names}, {})
    declared: dict[str, dict[str, Any]] = {name: {} for name in names}
    views = resolve.views_of(fleet, declared)
    known = Assessment(fleet, {}, declared, views, frozenset(), {}, {name: {} for name in names})
    plan = Plan({name: NodePlan(name, ("nccl",), (), False, 1.0) for name in names}, (), {})
    folder = RunFolder.create("up", {}, tmp_path)
    none = hooks.Runner({}, "run", fleet.source, lambda *_: None, lambda _: None)
    return AnsibleHands(known, plan, Journal(folder, (SECRET,)), none, "run-1", **options)


def test_more_nodes_than_one_ansible_should_have_are_done_in_shards(
    tmp_path: Path, played: list[tuple[str, tuple[str, ...], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shards.VARIABLE, "1")
    ours = hands(tmp_path, 1201, forks=100)
    outcomes = ours.apply(dict.fromkeys(ours.plan.nodes, ("nccl",)))
    assert len(outcomes) == 1201
    assert [len(names) for _, names, _ in played] == [401, 401, 399]
    assert max(len(names) for _, names, _ in played) <= up_hands.SHARD
    assert [round(minutes) for _, _, minutes in played] == [5 * 64, 5 * 64, 4 * 64]


def test_several_ansibles_at_once_share_the_nodes_and_the_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[int, int]] = []
    together = threading.Barrier(3)

    def play(_: Path, hosts: Mapping[str, Any], *, forks: int, **__: Any) -> dict[str, Outcome]:
        together.wait(timeout=30)
        runs.append((len(hosts), forks))
        return {name: Outcome(name, "ok", 1) for name in hosts}

    monkeypatch.setattr(runner, "run_playbook", play)
    monkeypatch.setenv(shards.VARIABLE, "3")
    ours = hands(tmp_path, 1800, forks=60)
    assert len(ours.apply(dict.fromkeys(ours.plan.nodes, ("nccl",)))) == 1800
    assert runs == [(300, 20)] * 6


def test_ansible_hears_only_of_roles_that_a_node_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[set[str], dict[str, list[str]]]] = []

    def play(_: Path, hosts: Mapping[str, Any], *, tags: Collection[str], **__: Any) -> dict[str, Outcome]:
        asked.append((set(tags), {name: variables["gpuprov_roles"] for name, variables in hosts.items()}))
        return {name: Outcome(name, "ok", 1) for name in hosts}

    monkeypatch.setattr(runner, "run_playbook", play)
    ours = hands(tmp_path, 2)
    ours.apply({"gpu-0000": ("nccl",), "gpu-0001": ("rdma", "nccl")})
    assert asked == [({"nccl", "rdma"}, {"gpu-0000": ["nccl"], "gpu-0001": ["rdma", "nccl"]})]


def test_every_role_of_the_playbook_has_its_name_as_tag_and_asks_for_it() -> None:
    (play,) = yamlfile.load(paths.PLAYBOOKS / "up.yml")
    for entry in play["roles"]:
        assert entry["tags"] == entry["role"]
        assert entry["when"] == f"gpuprov_roles is undefined or '{entry['role']}' in gpuprov_roles"
    tasks = {task["name"]: task["tags"] for task in play["pre_tasks"]}
    assert tasks.pop("Pin locked packages before any role chooses a version") == "package_lock"
    assert set(tasks.values()) == {"always"}


def looking(ids: Mapping[str, Sequence[str]]) -> Callable[..., Assessment]:
    """Each look finds the next boot id of a node's list."""
    left = {node: list(found) for node, found in ids.items()}

    def look(known: Assessment, chosen: Sequence[str], **_: Any) -> Assessment:
        seen = {node: Observation(node, {"boot.id": left[node].pop(0)}) for node in chosen}
        return replace(known, observations=seen, drifts={node: [] for node in chosen})

    return look


def test_every_boot_is_written_down_the_ones_we_made_and_the_others(
    tmp_path: Path, played: list[tuple[str, tuple[str, ...], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assess, "look", looking({"gpu-0000": ["a2", "a3"], "gpu-0001": ["b1", "b1"]}))
    again: list[Sequence[str]] = []
    ours = hands(tmp_path, 2, boots={"gpu-0000": "a1", "gpu-0001": "b1"}, rebooted=again.append)
    assert ours.look(["gpu-0000", "gpu-0001"])["gpu-0000"].boot == "a2"  # it booted by itself
    assert set(ours.reboot(["gpu-0000"])) == {"gpu-0000"}
    ours.look(["gpu-0000", "gpu-0001"])
    assert again == [["gpu-0000"]]
    assert played[0][0] == "reboot.yml"
    folder = ours.journal.folder
    boots = [(record["node"], record["before"], record["after"]) for record in folder.read("boots")]
    assert boots == [("gpu-0000", "a1", "a2"), ("gpu-0000", "a2", "a3")]
    assert [(record["node"], record["boot"]) for record in folder.read("reboots")] == [("gpu-0000", "a2")]


def test_what_a_hook_printed_is_kept_in_a_file_without_secrets(tmp_path: Path) -> None:
    ours = hands(tmp_path, 1)
    ours.journal.called(hooks.Called("drain", ("../gpu",), "", 0, 1.0, f"token {SECRET}\n"))
    (record,) = ours.journal.folder.read("hooks")
    kept = ours.journal.folder.path / record["output"]
    assert kept.parent == ours.journal.folder.path / "hooks"
    assert kept.read_text() == "token ********\n"
