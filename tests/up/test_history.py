"""Durations are learnt robustly from run folders; damaged and foreign files there are skipped."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from provision.desired.role import all_roles
from provision.runs.store import RunFolder
from provision.up import durations
from provision.up.durations import KEPT, Minutes, learn

KIND = "h100-sxm on debian 13"
FACTS = {"gpu.sku": "h100-sxm", "os.id": "debian", "os.version_id": "13"}
START = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)


def clock(seconds: float) -> str:
    return (
        (START + datetime.timedelta(seconds=seconds))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def event(at: float, node: str, role: str = "", task: str = "Look", kind: str = "ok") -> dict[str, Any]:
    return {"time": clock(at), "node": node, "role": role, "task": task, "kind": kind}


def an_up(
    home: Path,
    events: list[dict[str, Any]],
    *,
    inventory: str = "/srv/fleet.yml",
    nodes: tuple[str, ...] = ("a", "b", "c"),
    status: str = "done",
    installs: tuple[str, ...] = ("nccl",),
    check: bool = False,
    finished: bool = True,
) -> RunFolder:
    folder = RunFolder.create("up", {"check": check}, home)
    folder.note(inventory=inventory)
    for node in nodes:
        folder.append("facts", {"node": node, "when": "before", "facts": FACTS})
        for role in installs:
            folder.append(
                "drifts", {"node": node, "when": "before", "role": role, "fact": "package.x.version"}
            )
        folder.append("outcomes", {"node": node, "status": status})
    for each in events:
        folder.append("events", each)
    if finished:
        folder.finish(0)
    return folder


def simple(home: Path, seconds: float, **options: Any) -> RunFolder:
    """Create a run in which nccl took `seconds` on each of three nodes."""
    events = [event(0, node) for node in "abc"]
    events += [event(seconds / 2, node, "nccl") for node in "abc"] + [
        event(seconds, node, "nccl") for node in "abc"
    ]
    return an_up(home, events, **options)


def test_a_role_lasts_from_the_event_before_it_to_its_last_one(tmp_path: Path) -> None:
    events = [
        event(0, "a"),
        event(1, "b"),
        event(10, "a", "rdma"),
        event(20, "b", "rdma"),
        event(70, "a", "nccl"),
        event(90, "a", "nccl"),
        event(100, "b", "nccl"),
        # a second pass, after observing the nodes; that time belongs to no role
        event(200, "a"),
        event(210, "a", "nccl"),
    ]
    found = durations.derive(an_up(tmp_path, events))
    assert found == {("rdma", KIND, False): 14.5, ("nccl", KIND, True): 85.0}


def test_a_reboot_lasts_from_the_end_of_the_roles_until_everything_has_started(tmp_path: Path) -> None:
    reboot, wait = (
        "Reboot and wait for the node to come back",
        "Wait until everything that starts at boot has started",
    )
    events = [event(0, "a"), event(0, "b"), event(30, "a", "nccl"), event(60, "b", "nccl")]
    events += [event(260, "a", "", reboot, "changed"), event(290, "a", "", wait)]
    events += [event(360, "b", "", reboot, "changed"), event(370, "b", "", wait)]
    assert durations.derive(an_up(tmp_path, events))["reboot", KIND, False] == (230 + 310) / 2


def test_a_reboot_that_waited_for_its_turn_is_timed_from_its_turn(tmp_path: Path) -> None:
    reboot = "Reboot and wait for the node to come back"
    events = [event(0, "a"), event(0, "b"), event(30, "a", "nccl"), event(30, "b", "nccl")]
    events += [event(150, "a", "", reboot, "changed"), event(320, "b", "", reboot, "changed")]
    folder = an_up(tmp_path, events)
    for at, node in ((50, "a"), (200, "b"), (9999, "b")):
        folder.append("reboots", {"time": clock(at), "node": node})
    assert durations.derive(folder)["reboot", KIND, False] == (100 + 120) / 2


def test_only_nodes_that_ended_well_and_runs_that_ended_teach(tmp_path: Path) -> None:
    simple(tmp_path, 100, status="failed")
    simple(tmp_path, 100, check=True)
    simple(tmp_path, 100, finished=False)
    assert learn(runs=tmp_path) == Minutes()
    simple(tmp_path, 120)
    assert learn(runs=tmp_path).role("nccl", KIND, True) == durations.Expected(2.0, 1)


def test_one_slow_node_and_one_slow_run_do_not_count(tmp_path: Path) -> None:
    events = [event(0, node) for node in "abc"]
    events += [event(60, "a", "nccl"), event(60, "b", "nccl"), event(3000, "c", "nccl")]
    an_up(tmp_path, events)
    for seconds in (60, 66, 5000):
        simple(tmp_path, seconds)
    assert learn(runs=tmp_path).role("nccl", KIND, True) == durations.Expected(63 / 60, 4)


def test_installing_and_mending_are_two_things_and_so_are_kinds_of_machines(tmp_path: Path) -> None:
    simple(tmp_path, 120)
    simple(tmp_path, 6, installs=())
    known = learn(runs=tmp_path)
    assert known.role("nccl", KIND, True) == durations.Expected(2.0, 1)
    assert known.role("nccl", KIND, False) == durations.Expected(0.1, 1)
    assert known.role("nccl", "l40s on debian 13", True).runs == 0


def test_the_same_inventorys_runs_count_before_others(tmp_path: Path) -> None:
    simple(tmp_path, 600, inventory="/lab.yml")
    assert learn("/srv/fleet.yml", tmp_path).role("nccl", KIND, True).minutes == 10.0, "better than nothing"
    simple(tmp_path, 60)
    assert learn("/srv/fleet.yml", tmp_path).role("nccl", KIND, True) == durations.Expected(1.0, 1)


def test_estimates_where_nothing_is_known() -> None:
    nothing = Minutes()
    assert nothing.role("nvidia_driver", KIND, True) == durations.Expected(3.0)
    assert nothing.role("nvidia_driver", KIND, False) == durations.Expected(0.2)
    assert nothing.role("a role of tomorrow", KIND, True).minutes > 0
    assert nothing.reboot(KIND) == durations.Expected(5.0)


def test_the_estimate_of_bare_nodes_is_within_a_factor_of_two() -> None:
    """Five bare lab nodes took 616 s in two waves, with the roles that are enabled by default."""
    off = {"monitoring", "receptor", "slurm_health", "node_health", "gpu_metrics", "gpu_settings"}
    off |= {"amd_gpu_settings", "gpudirect_rdma", "package_lock"}
    nodes = {"nvidia": 0.0, "amd": 0.0}
    for name, role in all_roles().items():
        if name not in off:
            for vendor in nodes:
                if role.vendor in (None, vendor):
                    nodes[vendor] += Minutes().role(name, KIND, True).minutes
    measured = 616 / 60
    assert measured / 2 <= 2 * max(nodes.values()) <= measured * 2


def test_only_recent_runs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "RUNS", 2)
    for seconds in (6000, 60, 60):
        simple(tmp_path, seconds)
    assert learn(runs=tmp_path).role("nccl", KIND, True) == durations.Expected(1.0, 2)


def test_what_was_learnt_is_kept_beside_the_events_and_read_instead_of_them(tmp_path: Path) -> None:
    folder = simple(tmp_path, 60)
    first = learn(runs=tmp_path)
    (folder.path / "events.jsonl").unlink()
    assert learn(runs=tmp_path) == first
    kept = json.loads((folder.path / KEPT).read_text())
    (folder.path / KEPT).write_text(json.dumps({**kept, "format": 99}))
    assert learn(runs=tmp_path) == Minutes(), "of another format: derived again"


DAMAGES: dict[str, Any] = {
    "events.jsonl": [
        "", "\0\0\0", "{", "[]\n{}\n", '{"time": 7}\n{"node": []}\n', "not json\nat all\n",
        '{"time": "x"}\n' * 3,
        json.dumps(event(-1e9, "a", "nccl")) + "\n" + json.dumps(event(1e9, "a", "nccl")) + "\n",
    ],
    "facts.jsonl": ["{", '{"node": "a", "when": "before", "facts": 3}\n', "[]\n", "x\ny\n"],
    "outcomes.jsonl": ["", '{"node": {}}\n', "x\ny\n", '{"node": ["a"], "status": "done"}\n'],
    "reboots.jsonl": ["x\ny\n", '{"node": 3, "time": []}\n', "[]\n"],
    "drifts.jsonl": ["x\ny\n", '{"when": "before", "fact": 3, "node": ["a"]}\n'],
    "run.json": ["", "[]", "{}", '{"format": 99}', '{"finished": 1, "arguments": 7}', "\0"],
    KEPT: ["", "[]", '{"format": 1}', '{"format": 1, "durations": [["a"]]}',
           '{"format": 1, "durations": [["nccl", "x", true, "soon"]]}',
           '{"format": 1, "durations": [["a", "b", true, -1]]}',
           '{"format": 1, "durations": [["a", "b", true, NaN]]}', "[" * 100_000],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in DAMAGES.items() for text in texts]
)
def test_a_damaged_run_costs_nothing_but_itself(tmp_path: Path, name: str, text: str) -> None:
    simple(tmp_path, 60)
    damaged = simple(tmp_path, 60)
    (damaged.path / name).write_text(text)
    found = learn(runs=tmp_path).role("nccl", KIND, True)
    assert found.minutes == 1.0
    assert found.runs in (1, 2)


def test_folders_that_are_no_runs_cost_nothing(tmp_path: Path) -> None:
    simple(tmp_path, 60)
    (tmp_path / "29990101T000000.000Z-up").mkdir()
    (tmp_path / "29990102T000000.000Z-up").write_text("a file")
    folder = tmp_path / "29990103T000000.000Z-up"
    folder.mkdir()
    (folder / "run.json").mkdir()
    assert learn(runs=tmp_path).role("nccl", KIND, True) == durations.Expected(1.0, 1)
    assert learn(runs=tmp_path / "nowhere") == Minutes()
