"""The executor of `up`, with Ansible and observation scripted: shards, boots, files written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provision import paths, yamlfile
from provision.desired import resolve
from provision.desired.expectations import Expectation
from provision.desired.role import all_roles
from provision.drift import assess
from provision.drift.assess import Assessment
from provision.drift.drifts import Drift
from provision.fleet import Fleet, Node
from provision.remote.ansible import handover, runner
from provision.remote.ansible.runner import Outcome
from provision.remote.reach import partitions
from provision.remote.reach.observe import Observation
from provision.runs.store import RunFolder
from provision.up import executor as up_executor
from provision.up import hooks
from provision.up.executor import AnsibleExecutor, Journal
from provision.up.options import UpOptions
from provision.up.plan import NodePlan, Plan
from tests.support.up import SECRET


@dataclass
class Ansible:
    """Ansible that records the playbook, hosts and other arguments of each run. Every run succeeds."""

    runs: list[tuple[str, Mapping[str, Any], dict[str, Any]]] = field(default_factory=list)
    on_play: Callable[[], object] = lambda: None

    def play(self, playbook: Path, hosts: Mapping[str, Any], **options: Any) -> dict[str, Outcome]:
        self.on_play()
        self.runs.append((playbook.name, hosts, options))
        return {name: Outcome(name, "ok", 1) for name in hosts}


@pytest.fixture
def ansible(monkeypatch: pytest.MonkeyPatch) -> Ansible:
    made = Ansible()
    monkeypatch.setattr(runner, "run_playbook", made.play)
    return made


def executor_of(
    tmp_path: Path,
    count: int,
    boots: Mapping[str, str] | None = None,
    rebooted: Callable[[Sequence[str]], None] = lambda _nodes: None,
    **options: Any,
) -> AnsibleExecutor:
    names = [f"gpu-{number:04d}" for number in range(count)]
    fleet = Fleet(tmp_path / "fleet.yml", {name: Node(name, (), {}) for name in names}, {})
    declared: dict[str, dict[str, Any]] = {name: {} for name in names}
    seen = {name: Observation(name, {"boot.id": boot}) for name, boot in (boots or {}).items()}
    views = resolve.views_of(fleet, declared)
    known = Assessment(fleet, {}, declared, views, frozenset(), seen, {name: {} for name in names})
    plan = Plan({name: NodePlan(name, ("nccl",), (), False, 1.0) for name in names}, (), {})
    folder = RunFolder.create("up", {}, tmp_path)
    none = hooks.Runner({}, "run-1", fleet.source, lambda *_: None, lambda _: None)
    return AnsibleExecutor(
        UpOptions(**options),
        known,
        plan,
        Journal(folder, (SECRET,)),
        none,
        health=lambda _nodes: {},
        rebooted=rebooted,
        on_event=lambda _event: None,
    )


def test_more_nodes_than_one_ansible_should_have_are_done_in_shards(
    tmp_path: Path, ansible: Ansible, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(partitions.VARIABLE, "1")
    executor = executor_of(tmp_path, 1201, forks=100)
    outcomes = executor.apply(dict.fromkeys(executor.plan.nodes, ("nccl",)))
    assert len(outcomes) == 1201
    assert [len(hosts) for _, hosts, _ in ansible.runs] == [401, 401, 399]
    assert max(len(hosts) for _, hosts, _ in ansible.runs) <= up_executor.SHARD
    assert [round(given["timeout"] / 60) for _, _, given in ansible.runs] == [5 * 64, 5 * 64, 4 * 64]
    assert {variables["gpuprov_run"] for variables in ansible.runs[0][1].values()} == {"run-1"}


def test_several_ansibles_at_once_share_the_nodes_and_the_forks(
    tmp_path: Path, ansible: Ansible, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(3)
    ansible.on_play = lambda: together.wait(timeout=30)
    monkeypatch.setenv(partitions.VARIABLE, "3")
    executor = executor_of(tmp_path, 1800, forks=60)
    assert len(executor.apply(dict.fromkeys(executor.plan.nodes, ("nccl",)))) == 1800
    assert [(len(hosts), given["forks"]) for _, hosts, given in ansible.runs] == [(300, 20)] * 6


def test_ansible_hears_only_of_roles_that_a_node_needs(tmp_path: Path, ansible: Ansible) -> None:
    executor_of(tmp_path, 2).apply({"gpu-0000": ("nccl",), "gpu-0001": ("rdma", "nccl")})
    ((_, hosts, given),) = ansible.runs
    assert set(given["tags"]) == {"nccl", "rdma"}
    roles = {name: variables["gpuprov_roles"] for name, variables in hosts.items()}
    assert roles == {"gpu-0000": ["nccl"], "gpu-0001": ["rdma", "nccl"]}


def drift(step: str, *, role: str = "nccl", unknown: bool = False) -> Drift:
    expectation = Expectation(role, f"file.{step}", "equals", True, "", step=step)
    return Drift("gpu-0000", expectation, None, unknown)


@pytest.mark.parametrize(
    ("drifts", "options", "tags"),
    [
        ([drift("install"), drift("configure")], {}, {"nccl_install", "nccl_configure"}),
        ([drift("configure"), drift("", role="rdma")], {}, {"nccl_configure"}),
        ([drift("configure"), drift("")], {}, {"nccl"}),
        ([drift("configure", unknown=True)], {}, {"nccl"}),
        ([drift("configure")], {"full": True}, {"nccl"}),
        ([drift("configure")], {"check_mode": True}, {"nccl"}),
        ([], {}, {"nccl"}),
    ],
    ids=["steps", "of the role alone", "one without", "one not read", "full", "check mode", "no reason"],
)
def test_only_the_steps_run_that_can_make_what_differs_as_declared(
    tmp_path: Path, ansible: Ansible, drifts: list[Drift], options: dict[str, Any], tags: set[str]
) -> None:
    executor = executor_of(tmp_path, 1, **options)
    executor.plan = Plan({"gpu-0000": NodePlan("gpu-0000", ("nccl",), tuple(drifts), False, 1.0)}, (), {})
    for expected in (tags, {"nccl"}):  # the second time the whole role runs, since its steps left drift
        executor.apply({"gpu-0000": ("nccl",)})
        assert set(ansible.runs[-1][2]["tags"]) == expected


@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        ({}, True),
        ({"nvidia_driver_source": "repository", "nccl_environment": {"NCCL_DEBUG": "WARN"}}, True),
        ({"nvidia_driver_source": "cuda"}, False),
        ({"nvidia_driver_hold": "{{ held }}"}, False),
        ({"rdma_expected_ports": [{"device": "mlx5_0", "port": "1"}]}, True),
        ({"rdma_expected_ports": [{"device": "mlx5_0", "port": "one"}]}, False),
        ({"rdma_expected_ports": [{"device": "mlx5_0", "rate": "{{ rate }}"}]}, False),
    ],
    ids=["nothing", "right", "wrong", "a template", "digits as text", "wrong inside", "a template inside"],
)
def test_ansible_compares_only_variables_that_are_not_known_to_be_right(
    tmp_path: Path, ansible: Ansible, value: dict[str, Any], left_out: bool
) -> None:
    executor = executor_of(tmp_path, 2)
    executor.known = replace(executor.known, declared={"gpu-0000": {}, "gpu-0001": value})
    executor.apply(dict.fromkeys(executor.plan.nodes, ("nccl",)))
    assert (handover.ARGUMENT_SPECS in ansible.runs[-1][2]["skip_tags"]) is left_out


@pytest.mark.parametrize(("step", "left_out"), [("install", False), ("configure", True), ("", False)])
def test_the_package_manager_is_readied_where_a_step_may_install(
    tmp_path: Path, ansible: Ansible, step: str, left_out: bool
) -> None:
    executor = executor_of(tmp_path, 1)
    executor.plan = Plan({"gpu-0000": NodePlan("gpu-0000", ("nccl",), (drift(step),), False, 1.0)}, (), {})
    executor.apply({"gpu-0000": ("nccl",)})
    assert ("packages" in ansible.runs[-1][2]["skip_tags"]) is left_out


def test_every_role_of_the_playbook_has_its_name_as_tag_and_asks_for_it() -> None:
    (play,) = yamlfile.load(paths.PLAYBOOKS / "up.yml")
    for entry in play["roles"]:
        assert entry["tags"] == entry["role"]
        role, vendor = entry["role"], all_roles()[entry["role"]].vendor
        asked = f"gpuprov_roles is undefined or '{role}' in gpuprov_roles"
        if vendor is not None:
            first = f"gpuprov_roles is undefined and up_{vendor} | bool"
            asked = f"({first}) or '{role}' in gpuprov_roles | default([])"
        assert entry["when"] == asked
    tasks = {task["name"]: task["tags"] for task in play["pre_tasks"]}
    assert tasks.pop("Pin locked packages before any role chooses a version") == "package_lock"
    assert list(tasks.values()) == [["always", "packages"]] * 4


def looking(ids: Mapping[str, Sequence[str]]) -> Callable[..., Assessment]:
    """Return an observer that finds the next boot id in each node's list."""
    left = {node: list(found) for node, found in ids.items()}

    def look(known: Assessment, chosen: Sequence[str], **_: Any) -> Assessment:
        seen = {node: Observation(node, {"boot.id": left[node].pop(0)}) for node in chosen}
        return replace(known, observations=seen, drifts={node: [] for node in chosen})

    return look


def test_every_boot_is_written_down_the_ones_we_made_and_the_others(
    tmp_path: Path, ansible: Ansible, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assess, "look", looking({"gpu-0000": ["a2", "a3"], "gpu-0001": ["b1", "b1"]}))
    again: list[Sequence[str]] = []
    executor = executor_of(tmp_path, 2, {"gpu-0000": "a1", "gpu-0001": "b1"}, again.append)
    found = executor.look(["gpu-0000", "gpu-0001"])
    assert (found["gpu-0000"].booted, found["gpu-0001"].booted) == (True, False)  # an unrequested reboot
    assert set(executor.reboot(["gpu-0000"])) == {"gpu-0000"}
    executor.look(["gpu-0000", "gpu-0001"])
    assert again == [["gpu-0000"]]
    assert [playbook for playbook, _, _ in ansible.runs] == ["reboot.yml"]
    folder = executor.journal.folder
    boots = [(record["node"], record["before"], record["after"]) for record in folder.read("boots")]
    assert boots == [("gpu-0000", "a1", "a2"), ("gpu-0000", "a2", "a3")]
    assert [(record["node"], record["boot"]) for record in folder.read("reboots")] == [("gpu-0000", "a2")]


def lost_while_rebooting(
    monkeypatch: pytest.MonkeyPatch, executor: AnsibleExecutor, boots: Mapping[str, Sequence[str]]
) -> tuple[list[tuple[str, ...]], list[str], list[float]]:
    """Lose the worker of these nodes in the middle of the first reboot.yml. `boots`: node → the boot id that
    each observation finds, "" if the node does not answer; the last one repeats. Return the nodes of each
    playbook, the messages, and the pauses in seconds."""
    played: list[tuple[str, ...]] = []
    said: list[str] = []
    waited: list[float] = []

    def play(playbook: Path, hosts: Mapping[str, Any], **_options: Any) -> dict[str, Outcome]:
        assert playbook.name == "reboot.yml"
        played.append(tuple(hosts))
        gone = {name: Outcome(name, "unreachable", message="worker a: x", lost=True) for name in hosts}
        return gone if len(played) == 1 else {name: Outcome(name, "ok", 1) for name in hosts}

    left = {node: list(each) for node, each in boots.items()}

    def look(known: Assessment, chosen: Sequence[str], **_options: Any) -> Assessment:
        seen = {}
        for node in chosen:
            boot = left[node].pop(0) if len(left[node]) > 1 else left[node][0]
            seen[node] = Observation(
                node, {"boot.id": boot} if boot else {}, error=None if boot else "no", unreachable=not boot
            )
        return replace(known, observations=seen, drifts={node: [] for node in chosen})

    monkeypatch.setattr(runner, "run_playbook", play)
    monkeypatch.setattr(assess, "look", look)
    executor.say = said.append
    executor.pause = waited.append
    executor.clock = lambda: sum(waited)
    return played, said, waited


def test_nodes_whose_worker_is_lost_while_they_reboot_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: list[Sequence[str]] = []
    executor = executor_of(tmp_path, 2, {"gpu-0000": "a1", "gpu-0001": "b1"}, again.append)
    slow = ["b1", *[""] * 30, "b2"]  # it still answers once before it goes down, and is away for five minutes
    looks = {"gpu-0000": ["", "a2"], "gpu-0001": slow}
    played, said, waited = lost_while_rebooting(monkeypatch, executor, looks)
    outcomes = executor.reboot(["gpu-0000", "gpu-0001"])
    assert {node: one.status for node, one in outcomes.items()} == {"gpu-0000": "ok", "gpu-0001": "ok"}
    assert played == [("gpu-0000", "gpu-0001")]
    assert said == ["gpu-[0000-0001]: the worker was lost while they rebooted; waiting up to 30 min for them"]
    assert 300 < sum(waited) < 400
    assert again == [["gpu-0000", "gpu-0001"]]  # the locks are taken again after the reboot


def test_a_node_that_did_not_reboot_before_its_worker_was_lost_is_rebooted_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_of(tmp_path, 2, {"gpu-0000": "a1", "gpu-0001": "b1"})
    looks = {"gpu-0000": ["a2"], "gpu-0001": ["b1"]}
    played, _, waited = lost_while_rebooting(monkeypatch, executor, looks)
    outcomes = executor.reboot(["gpu-0000", "gpu-0001"])
    assert {one.status for one in outcomes.values()} == {"ok"}
    assert played == [("gpu-0000", "gpu-0001"), ("gpu-0001",)]
    assert sum(waited) >= 60  # the node might still have been about to go down


def test_a_node_that_does_not_come_back_after_its_worker_was_lost_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = executor_of(tmp_path, 1, {"gpu-0000": "a1"})
    executor.known.declared["gpu-0000"]["gpuprov_reboot_timeout"] = 600  # type: ignore[index]
    played, said, waited = lost_while_rebooting(monkeypatch, executor, {"gpu-0000": [""]})
    (outcome,) = executor.reboot(["gpu-0000"]).values()
    assert (outcome.status, outcome.message) == (
        "unreachable",
        "it did not come back within 10 min: worker a: x",
    )
    assert len(played) == 1
    assert "waiting up to 10 min" in said[0]
    assert sum(waited) == pytest.approx(600, abs=15)


def test_what_a_hook_printed_is_kept_in_a_file_without_secrets(tmp_path: Path) -> None:
    executor = executor_of(tmp_path, 1)
    executor.journal.called(hooks.Called("drain", ("../gpu",), "", 0, 1.0, f"token {SECRET}\n"))
    (record,) = executor.journal.folder.read("hooks")
    kept = executor.journal.folder.path / record["output"]
    assert kept.parent == executor.journal.folder.path / "hooks"
    assert kept.read_text() == "token ********\n"
