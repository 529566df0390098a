"""`gpuprov up` through its command line, with a fleet that answers from a script instead of a network."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuprov
from provision import cli, paths
from provision.api import health_gate
from provision.desired import inventory
from provision.desired.compatibility import Refusal
from provision.desired.expectations import roles_in_order
from provision.errors import ExitCode, GpuprovError
from provision.remote.ansible.events import Outcome
from provision.runs.store import RunFolder, latest
from provision.up.options import UpOptions
from provision.up.result import Status
from provision.up.run import UpRun
from tests.support.commands import ran
from tests.support.up import DEBIAN, NODES, SECRET, World, drift


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    made = World(tmp_path / "fleet.yml", capsys)
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made.stand_in(monkeypatch)
    return made


def newest() -> RunFolder:
    return latest("up")


def ends() -> dict[str, str]:
    return {record["node"]: record["status"] for record in newest().read("outcomes")}


def test_a_converged_fleet_is_looked_at_once_and_no_playbook_runs(world: World) -> None:
    assert world.up() == ExitCode.OK
    assert world.played == []
    assert world.observed == ["gpu-01", "gpu-02", "gpu-03"]
    out = world.out
    assert "3 nodes already as declared" in out
    assert "next: gpuprov validate" in out
    assert not (newest().path / "events.jsonl").exists()
    assert newest().meta()["exit_code"] == 0


def test_only_nodes_that_differ_are_changed_with_only_the_roles_they_need(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")], "gpu-03": [drift("gpu-03", "rdma"), drift("gpu-03")]}
    assert world.up() == ExitCode.OK
    ((playbook, hosts, check_mode),) = world.played
    assert (playbook, check_mode) == ("up.yml", False)
    assert {name: variables["gpuprov_roles"] for name, variables in hosts.items()} == {
        "gpu-01": ["nccl"],
        "gpu-03": [role for role in roles_in_order() if role in ("nccl", "rdma")],
    }
    assert hosts["gpu-01"]["gpuprov_node"] == DEBIAN
    assert hosts["gpu-01"]["gpuprov_run"].startswith(newest().path.name)
    assert ends() == {"gpu-01": "done", "gpu-02": "as declared", "gpu-03": "done"}


def test_the_run_folder_tells_all_and_no_secret(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01", found=f"token={SECRET}")], "gpu-02": [drift("gpu-02")]}
    world.stubborn = {"gpu-01"}
    world.fail("gpu-02", message=f"said {SECRET}")
    assert world.up("--set", "nccl_version='2'") == ExitCode.UNHEALTHY
    run = newest()
    (wave,) = json.loads((run.path / "plan.json").read_text())["waves"]
    assert wave == {"kind": "batch", "nodes": ["gpu-01", "gpu-02"], "groups": []}
    assert [record["when"] for record in run.read("facts")] == ["before"] * 3 + ["look 1"]
    assert {record["node"] for record in run.read("drifts")} == {"gpu-01", "gpu-02"}
    assert {(record["node"], record["kind"]) for record in run.read("events")} == {
        ("gpu-01", "changed"),
        ("gpu-02", "changed"),
    }
    meta = run.meta()
    assert meta["exit_code"] == 3
    assert meta["counts"] == {"failed": 1, "not as declared": 1, "as declared": 1}
    assert meta["arguments"]["set"] == {"nccl_version": "2"}
    assert SECRET not in world.out
    for path in run.path.rglob("*"):
        assert not path.is_file() or SECRET not in path.read_text(), path


@pytest.mark.parametrize("text", ["app_token={secret} tier=a", '{{"app_token": "{secret}", "tier": "a"}}'])
def test_extra_vars_go_to_the_roles_and_a_secret_among_them_nowhere_else(world: World, text: str) -> None:
    secret = "s3cret;$(id)"
    world.lack("gpu-01")
    world.more = {"msg": f"said {secret}", "diff": f"+token {secret}\n"}
    quoted = f"'{secret}'" if text.startswith("app") else secret
    assert world.up("-D", "-e", text.format(secret=quoted), "--set", "tier=b") == ExitCode.OK
    ((_, hosts, _),) = world.played
    assert (hosts["gpu-01"]["app_token"], hosts["gpu-01"]["tier"]) == (secret, "b")
    assert newest().meta()["arguments"]["set"] == {"app_token": "********", "tier": "b"}
    assert secret not in world.out + world.err
    for path in newest().path.rglob("*"):
        assert not path.is_file() or secret not in path.read_text(), path


def test_what_remains_is_said_with_fact_expected_found_and_the_next_command(world: World) -> None:
    world.lack("gpu-01", "gpu-02")
    world.stubborn = {"gpu-01", "gpu-02"}
    assert world.up() == ExitCode.UNHEALTHY
    out = world.out
    assert "NOT AS DECLARED: gpu-[01-02]" in out
    assert "package.nccl.version: expected 2.0, found 1.0 (because)" in out
    assert f"gpuprov up --resume {newest().path}" in out
    assert f"run:  {newest().path}" in out


def test_causes_come_worst_first_and_equal_ones_together(world: World) -> None:
    world.lack("gpu-01", "gpu-03")
    message = "E: Version '2' for 'libnccl2' was not found"
    world.fail("gpu-01", "gpu-03", message=message)
    world.errors = {"gpu-02": ("no route to host", True)}
    assert world.up() == ExitCode.UNHEALTHY
    out = world.out
    assert out.index("FAILED: gpu-[01,03] · nccl · Install") < out.index("UNREACHABLE: gpu-02")
    assert out.count(message) == 1


def test_a_silent_node_alone_makes_it_incomplete(world: World) -> None:
    world.errors = {"gpu-02": ("no route to host", True)}
    world.lack("gpu-01")
    assert world.up() == ExitCode.INCOMPLETE
    assert ends() == {"gpu-01": "done", "gpu-02": "unreachable", "gpu-03": "as declared"}
    assert "no route to host" in world.out
    assert "gpu-02" not in world.played[0][1]


def test_sudo_refused_on_one_node_does_not_stop_the_others(world: World) -> None:
    world.errors = {"gpu-02": ("sudo wants a password: set ansible_become_password", False)}
    world.lack("gpu-01")
    assert world.up() == ExitCode.INCOMPLETE
    assert ends()["gpu-02"] == "unreadable"
    assert ends()["gpu-01"] == "done"


def test_a_refused_node_is_named_with_the_rule_and_never_touched(world: World) -> None:
    world.refused = {
        "gpu-02": Refusal("rule", "gpu-02: 580 does not know this GPU", "take 595", "release notes")
    }
    world.lack("gpu-01")
    assert world.up() == ExitCode.UNHEALTHY
    assert set(world.played[0][1]) == {"gpu-01"}
    out = world.out
    assert "REFUSED: gpu-02" in out
    assert "580 does not know this GPU" in out
    assert "take 595" in out


def test_a_reboot_happens_inside_the_wave_unless_forbidden(world: World) -> None:
    waiting = drift("gpu-01", "nvidia_driver", reboot=True)
    world.missing = {"gpu-01": [waiting]}
    assert world.up("--no-reboot") == ExitCode.UNHEALTHY
    assert [name for name, _, _ in world.played] == ["up.yml"]
    assert "REBOOT NEEDED: gpu-01" in world.out
    assert world.up() == ExitCode.OK
    assert [name for name, _, _ in world.played[1:]] == ["up.yml", "reboot.yml"]


def test_nodes_are_unlocked_when_their_wave_has_ended(world: World) -> None:
    world.missing = {name: [drift(name)] for name in NODES}
    held: list[set[str]] = []
    world.on_play = lambda: held.append(set(world.locks.holders))
    assert world.up("--wave-size", "1", "--no-canary") == ExitCode.OK
    released = [node for operation, node in world.locks.asked if operation == "release"]
    assert released == list(NODES)
    assert held == [set(NODES), set(NODES[1:]), set(NODES[2:])]


def test_waves_stop_after_a_failure_and_resume_goes_on(world: World) -> None:
    world.lack(*NODES)
    world.fail("gpu-02")
    assert world.up("--wave-size", "1") == ExitCode.UNHEALTHY
    assert ends() == {"gpu-01": "done", "gpu-02": "failed", "gpu-03": "not attempted"}
    assert "NOT ATTEMPTED: gpu-03" in world.out

    world.failing = {}
    world.played.clear()
    assert world.resume() == ExitCode.OK
    assert [list(hosts) for _, hosts, _ in world.played] == [["gpu-02"], ["gpu-03"]]  # again one by one
    assert ends() == {"gpu-01": "as declared", "gpu-02": "done", "gpu-03": "done"}


def test_a_resumed_full_run_spares_nodes_that_are_done_and_still_hold(world: World) -> None:
    world.fail("gpu-03")
    assert world.up("--full") == ExitCode.UNHEALTHY
    assert set(world.played[0][1]) == set(NODES)
    world.failing, world.missing = {}, {"gpu-01": [drift("gpu-01")]}
    world.played.clear()
    assert world.up("--resume", str(newest().path)) == ExitCode.OK
    assert set(world.played[0][1]) == {"gpu-01", "gpu-03"}  # gpu-01 was done, and has drifted since


def test_a_resumed_full_run_applies_no_role_twice_that_came_to_its_end(world: World) -> None:
    """A node's last role may have been cut short, so it runs again, as does a role that has drifted."""
    world.fail("gpu-02", "gpu-03")
    assert (
        world.up("--full", "--set", "gpuprov_roles=[nvidia_repository, nvidia_driver, nccl]") != ExitCode.OK
    )
    world.failing, world.missing = {}, {"gpu-03": [drift("gpu-03", "nvidia_repository")]}
    world.played.clear()
    assert world.resume() == ExitCode.OK
    again = {node: had["gpuprov_roles"] for _, hosts, _ in world.played for node, had in hosts.items()}
    assert again == {"gpu-02": ["nccl"], "gpu-03": ["nvidia_repository", "nccl"]}
    assert ends() == {"gpu-01": "as declared", "gpu-02": "done", "gpu-03": "done"}


def test_resume_wants_a_secret_again_and_refuses_other_runs(world: World) -> None:
    assert world.up("--set", f"site_token={SECRET}") == ExitCode.OK
    assert world.up("--resume") == ExitCode.USAGE
    assert "site_token" in world.err
    assert world.up("--resume", "--set", "site_token=again") == ExitCode.OK
    RunFolder.create("validate", {})
    assert world.up(f"--resume={latest('validate').path.name}") == ExitCode.USAGE
    assert world.up("--resume=nonsense") == ExitCode.ERROR


def test_an_interrupt_leaves_a_readable_folder_and_says_how_to_go_on(world: World) -> None:
    world.lack("gpu-01", "gpu-02")

    def interrupt() -> None:
        if len(world.played) == 2:
            raise KeyboardInterrupt

    world.on_play = interrupt
    assert world.up("--wave-size", "1") == ExitCode.INTERRUPTED
    run = newest()
    assert run.meta()["exit_code"] == 130
    assert run.meta()["interrupted"] is True
    assert ends() == {"gpu-01": "done", "gpu-02": "interrupted", "gpu-03": "as declared"}
    assert f"next: gpuprov up --resume {run.path}" in world.out


def test_check_says_what_would_change_and_changes_nothing(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01", reboot=True)]}
    assert world.up("--check") == ExitCode.OK
    assert [(name, check) for name, _, check in world.played] == [("up.yml", True)]
    assert world.observed == list(NODES)  # observed once: nothing changed, so nothing is verified
    out = world.out
    assert "would change: nccl · Install: gpu-01" in out
    assert "next: gpuprov up" in out


@pytest.mark.parametrize("words", [("--diff",), ("--check", "--diff")])
def test_diff_shows_what_was_changed_once_for_all_nodes_alike(world: World, words: tuple[str, ...]) -> None:
    world.lack("gpu-01", "gpu-02")
    world.more = {"diff": f"--- before: /etc/x\n-a\n+b {SECRET}\n\x1b[2J"}
    assert world.up(*words) == ExitCode.OK
    assert world.asked["diff"] is True
    out = world.out
    assert out.count("nccl · Install: gpu-[01-02]\n--- before: /etc/x\n-a\n+b ********\n") == 1
    assert SECRET not in out
    assert "\x1b" not in out
    assert [record["diff"].count("+b ********") for record in newest().read("events")] == [1, 1]


def test_diffs_are_in_the_json_document(world: World) -> None:
    world.lack("gpu-01")
    world.more = {"diff": f"-a\n+{SECRET}\n"}
    world.up("--diff", "--json")
    shown = {"role": "nccl", "task": "Install", "nodes": ["gpu-01"], "diff": "-a\n+********\n"}
    assert json.loads(world.out)["diffs"] == [shown]


@pytest.mark.parametrize("asked", [True, False])
def test_an_accelerator_is_for_the_roles_and_not_for_the_reboot(
    world: World, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setattr("provision.remote.ansible.accelerator.check", lambda _asked: None)
    if asked:
        world.declare(gpuprov_accelerator="mitogen")
    world.missing = {"gpu-01": [drift("gpu-01", reboot=True)]}
    played: list[object] = []
    world.on_play = lambda: played.append(world.asked["extra_vars"])
    assert world.up() == ExitCode.OK
    assert [name for name, _, _ in world.played][:2] == ["up.yml", "reboot.yml"]
    assert played[:2] == [{"gpuprov_strategy": "mitogen_free"} if asked else {}, None]


def test_an_accelerator_that_is_not_there_is_named_before_any_node_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.remote.ansible.accelerator._PACKAGE", "ansible_mitogen_not_there")
    world.lack("gpu-01")
    assert world.up("-e", "gpuprov_accelerator=mitogen") == ExitCode.ERROR
    assert "mitogen is not installed" in world.err
    assert world.observed == []
    assert world.played == []


def test_verbose_prints_every_result_as_it_comes(world: World) -> None:
    world.lack("gpu-01")
    world.more = {"detail": '{"rc": 0}'}
    assert world.up("-vv") == ExitCode.OK
    assert world.asked["verbosity"] == 2
    assert 'gpu-01 · changed · nccl · Install · {"rc": 0}\n' in world.err


@pytest.mark.parametrize(("check_mode", "kept"), [(False, {}), (True, {("nccl", "Install"): ["gpu-01"]})])
def test_what_tasks_changed_is_kept_only_where_it_is_said(
    world: World, check_mode: bool, kept: object
) -> None:
    world.lack("gpu-01")
    fleet, options = inventory.load(world.inventory), UpOptions(check_mode=check_mode)
    run = UpRun(fleet, {}, options, RunFolder.create("up", {}), health_gate.quick)
    assert run.run().code is ExitCode.OK
    assert run.changes == kept


def test_an_up_that_asks_no_checks_imports_none() -> None:
    program = "import sys, provision.up.run; print([n for n in sys.modules if '.checks' in n])"
    answer = ran([sys.executable, "-c", program], check=True)
    assert answer.stdout.strip() == "[]"


def test_json_is_one_document_on_stdout(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")], "gpu-02": [drift("gpu-02", found=SECRET)]}
    world.stubborn = {"gpu-02"}
    assert world.up("--json") == ExitCode.UNHEALTHY
    document = json.loads(world.out)
    assert document["exit_code"] == 3
    assert document["counts"] == {"not as declared": 1, "done": 1, "as declared": 1}
    assert document["nodes"]["gpu-02"]["drifts"][0]["fact"] == "package.nccl.version"
    assert document["run"] == str(newest().path)
    assert SECRET not in world.out


def test_a_person_at_a_terminal_is_asked_and_may_say_no(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provision.commands import up as command

    world.missing = {"gpu-01": [drift("gpu-01", "nvidia_driver", reboot=True)]}
    answers = iter(["\n", "y\n"])
    monkeypatch.setattr(command, "_at_a_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda: next(answers), raising=False)
    assert world.up() == ExitCode.ERROR
    assert world.played == []
    assert "1 of 3 nodes" in world.err
    inventory = re.escape(str(newest().meta()["inventory"]))
    assert re.search(rf"^{inventory} · stack r580-cuda12.9 · gpu-01$", world.err, re.MULTILINE)
    assert re.search(rf"^change 1 node of {inventory} \(gpu-01\)\? \[y/N\] ", world.err, re.MULTILINE)
    assert world.up() == ExitCode.OK
    assert world.played
    world.lack("gpu-01")
    assert world.up("--yes") == ExitCode.OK


def test_a_named_error_in_the_middle_is_noted_in_the_run(world: World) -> None:
    world.lack("gpu-01")

    def fail() -> None:
        raise GpuprovError("Ansible could not run up.yml", "mend it")

    world.on_play = fail
    assert world.up() == ExitCode.ERROR
    assert newest().meta()["error"] == "Ansible could not run up.yml"
    assert newest().meta()["exit_code"] == 1


def test_a_bug_keeps_its_traceback_in_the_run(world: World) -> None:
    world.lack("gpu-01")

    def fail() -> None:
        raise ZeroDivisionError("oops")

    world.on_play = fail
    assert world.up() == ExitCode.BUG
    (kept,) = newest().path.glob("bug-*.txt")
    assert "ZeroDivisionError" in kept.read_text()
    assert f"a bug in gpuprov: ZeroDivisionError: oops\n  → please report it with {kept}" in world.err


def test_one_node_of_a_kind_goes_first_and_a_resumed_run_needs_no_second_canary(world: World) -> None:
    world.lack(*NODES)
    world.fail("gpu-02")
    assert world.up(canary=True) == ExitCode.UNHEALTHY
    assert [list(hosts) for _, hosts, _ in world.played] == [["gpu-01"], ["gpu-02", "gpu-03"]]
    assert "2 waves, 1 node first as canary" in world.err
    world.missing["gpu-03"] = [drift("gpu-03")]
    world.failing = {}
    world.played.clear()
    assert world.resume() == ExitCode.OK
    assert [list(hosts) for _, hosts, _ in world.played] == [["gpu-02", "gpu-03"]]


def test_a_failed_canary_leaves_the_rest_untouched_and_says_how_to_go_on(world: World) -> None:
    world.lack(*NODES)
    world.fail("gpu-01")
    assert world.up(canary=True) == ExitCode.UNHEALTHY
    assert [list(hosts) for _, hosts, _ in world.played] == [["gpu-01"]]
    out = world.out
    assert "NOT ATTEMPTED: gpu-[02-03]\n  the canary gpu-01 failed: no other wave was started" in out
    assert f"repair the nodes above, then: gpuprov up --resume {newest().path}" in out
    notes = [(record["wave"], record["what"]) for record in newest().read("waves")]
    assert notes == [(1, "begins"), (1, "ends")]


def test_locks_are_taken_of_what_is_changed_and_always_given_back(world: World) -> None:
    world.lack("gpu-01")
    assert world.up() == ExitCode.OK
    assert world.locks.asked == [("take", "gpu-01"), ("release", "gpu-01")]

    def fail() -> None:
        assert set(world.locks.holders) == {"gpu-02"}
        raise ZeroDivisionError

    world.missing, world.on_play = {"gpu-02": [drift("gpu-02")]}, fail
    assert world.up() == ExitCode.BUG
    assert world.locks.holders == {}


def test_a_node_that_was_lost_with_our_lock_is_gone_on_with_by_resume(world: World) -> None:
    """Without --resume, `up` would be refused until the lock expires."""
    world.lack("gpu-01", "gpu-02")
    world.failing = {"gpu-02": Outcome("gpu-02", "unreachable", 0, "nccl", "Install", "no route to host")}
    world.locks.silent = frozenset({"gpu-02"})
    assert world.up() == ExitCode.INCOMPLETE
    assert ends() == {"gpu-01": "done", "gpu-02": "unreachable", "gpu-03": "as declared"}
    assert "gpu-02: the lock could not be released" in world.err
    assert f"next: gpuprov up --resume {newest().path}  (once they answer" in world.out


def test_a_check_locks_nothing_and_calls_no_hook(world: World) -> None:
    world.lack("gpu-01")
    assert world.up("--check") == ExitCode.OK
    assert world.locks.asked == []


OTHERS = {
    "run": "20261121-up@ctl-2",
    "node": "gpu-02",
    "who": "bob@ctl-2 (process 7)",
    "since": "10:00",
    "verb": "up",
}


def test_a_second_up_is_refused_with_holder_and_nodes_before_anything_is_touched(world: World) -> None:
    world.lack(*NODES)
    world.locks.holders = {"gpu-02": OTHERS}
    assert world.up() == ExitCode.ERROR
    assert "gpu-02: gpuprov up by bob@ctl-2 (process 7), since 10:00" in world.err
    assert world.played == []
    assert world.locks.holders == {"gpu-02": OTHERS}
    assert world.up("--nodes", "all", "--break-lock") == ExitCode.OK
    assert world.locks.holders == {}


def test_a_resumed_run_takes_over_what_the_killed_one_had_locked(world: World) -> None:
    world.lack(*NODES)
    world.fail("gpu-01")
    assert world.up() == ExitCode.UNHEALTHY
    world.locks.holders = {"gpu-01": {**OTHERS, "run": newest().id}}
    world.failing = {}
    assert world.resume() == ExitCode.OK
    assert world.locks.holders == {}


def test_a_run_that_is_still_going_on_is_not_resumed(world: World) -> None:
    world.lack("gpu-01")
    codes: list[int] = []
    world.on_play = lambda: codes.append(cli.main(["up", "--resume"]))
    assert world.up() == ExitCode.OK
    assert codes == [ExitCode.ERROR]
    assert "is still going on (process " in world.err


def test_a_clock_that_is_far_off_is_said_and_stands_beside_a_failure(world: World) -> None:
    world.locks.clock = 400 * 86400
    world.lack("gpu-01", "gpu-02")
    world.fail("gpu-01", message="Release file expired")
    assert world.up() == ExitCode.UNHEALTHY
    assert "gpu-02: its clock is 400 days ahead of this controller's" in world.err
    assert "Release file expired (its clock is 400 days ahead of this controller's)" in world.out


HOOK = """#!{python}
import json, os, pathlib, sys
given = json.load(sys.stdin)
words = [os.environ["GPUPROV_HOOK"], *sys.argv[1:], *given["nodes"][0].get("roles", [])]
with open({log!r}, "a") as log:
    print(*words, file=log)
print("secret", {secret!r})
sys.exit(3 if pathlib.Path({log!r} + "." + os.environ["GPUPROV_HOOK"] + "." + sys.argv[1]).exists() else 0)
"""


@pytest.fixture
def hook(world: World, tmp_path: Path) -> Path:
    """Declare one hook for drain and undrain: it logs its calls, and fails if a file requests it."""
    log, program = tmp_path / "log", tmp_path / "hook"
    program.write_text(HOOK.format(python=sys.executable, log=str(log), secret=SECRET))
    program.chmod(0o755)
    world.declare(gpuprov_drain_hook="hook", gpuprov_undrain_hook="./hook")
    return log


def test_hooks_are_called_around_what_is_changed_and_leave_no_secret(world: World, hook: Path) -> None:
    world.lack("gpu-01", "gpu-02")
    world.stubborn = {"gpu-02"}
    assert world.up("--wave", "1", "--max-failures", "1") == ExitCode.UNHEALTHY
    assert hook.read_text().splitlines() == ["drain gpu-01 nccl", "undrain gpu-01 nccl", "drain gpu-02 nccl"]
    kept = list((newest().path / "hooks").iterdir())
    assert len(kept) == 3
    assert all("********" in file.read_text() and SECRET not in file.read_text() for file in kept)


def test_what_failed_stays_drained_is_said_so_and_goes_back_when_it_is_mended(
    world: World, hook: Path
) -> None:
    world.lack("gpu-01")
    world.stubborn = {"gpu-01"}
    assert world.up() == ExitCode.UNHEALTHY
    assert "still drained, out of service until they match their declared state: gpu-01" in world.out
    world.missing, world.stubborn = {}, set()  # repaired by hand
    assert world.resume("--json") == ExitCode.OK
    assert json.loads(world.out)["drained"] == []
    assert hook.read_text().splitlines()[-1] == "undrain gpu-01"
    assert world.resume() == ExitCode.OK
    assert "3 nodes already as declared" in world.out
    assert len(hook.read_text().splitlines()) == 2


def test_a_drain_that_fails_leaves_the_node_untouched(world: World, hook: Path) -> None:
    world.lack("gpu-01", "gpu-02")
    Path(f"{hook}.drain.gpu-01").touch()
    assert world.up() == ExitCode.UNHEALTHY
    assert list(world.played[0][1]) == ["gpu-02"]
    assert ends()["gpu-01"] == "not attempted"
    out = world.out
    assert "NOT ATTEMPTED: gpu-01\n  its drain hook ended with status 3: secret ********" in out


def test_an_undrain_that_fails_is_tried_again_by_the_resumed_run(world: World, hook: Path) -> None:
    world.lack("gpu-01")
    Path(f"{hook}.undrain.gpu-01").touch()
    assert world.up() == ExitCode.UNHEALTHY
    assert ends()["gpu-01"] == "still drained"
    assert world.resume() == ExitCode.UNHEALTHY
    Path(f"{hook}.undrain.gpu-01").unlink()
    assert world.resume() == ExitCode.OK
    assert hook.read_text().splitlines()[1:] == ["undrain gpu-01 nccl", "undrain gpu-01", "undrain gpu-01"]


def test_a_hook_that_is_not_there_is_refused_before_anything_is_looked_at(world: World, hook: Path) -> None:
    (hook.parent / "hook").unlink()
    assert world.up() == ExitCode.ERROR
    assert f"gpuprov_drain_hook (gpu-01): there is no {hook.parent / 'hook'}" in world.err
    assert world.observed == []


def test_one_machine_under_two_names_is_refused_with_both_names_and_places(world: World) -> None:
    world.inventory.write_text("all:\n  hosts:\n    gpu-01:\n    gpu-03: {ansible_host: GPU-01}\n")
    assert world.up() == ExitCode.ERROR
    source = world.inventory
    assert f"gpu-01 ({source}:3) and gpu-03 ({source}:4) are both at gpu-01" in world.err
    assert world.observed == []


def test_the_gate_can_be_the_quick_checks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def quick(_fleet: Any, _overrides: Any, nodes: Any, *_rest: Any) -> dict[str, str]:
        asked.append(tuple(nodes))
        return {node: "gpu3: slow" for node in nodes if node == "gpu-01"}

    monkeypatch.setattr("provision.api.health_gate.quick", quick)
    world.lack(*NODES)
    assert world.up("--gate", "quick", canary=True) == ExitCode.UNHEALTHY
    assert asked == [("gpu-01",)]
    assert ends() == {"gpu-01": "unhealthy", "gpu-02": "not attempted", "gpu-03": "not attempted"}


def test_termination_is_an_interrupt(world: World) -> None:
    world.lack("gpu-01", "gpu-02")
    world.on_play = lambda: signal.raise_signal(signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    assert world.up() == ExitCode.INTERRUPTED
    assert world.locks.holders == {}
    assert signal.getsignal(signal.SIGTERM) == before


def test_nohup_means_what_it_says(world: World) -> None:
    world.lack("gpu-01")
    world.on_play = lambda: signal.raise_signal(signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert world.up() == ExitCode.OK
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_playbooks_up_runs_are_there() -> None:
    assert (paths.PLAYBOOKS / "up.yml").is_file()
    assert (paths.PLAYBOOKS / "reboot.yml").is_file()


@pytest.mark.parametrize(
    "bad", [["--wave-size", "0"], ["--max-failures", "-1"], ["--forks", "many"], ["--wave", "0%"]]
)
def test_bad_numbers_are_a_usage_error(world: World, bad: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        world.up(*bad)
    assert caught.value.code == ExitCode.USAGE


def test_a_role_is_removed_and_nothing_else_is_run(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01", "nccl")], "gpu-02": [drift("gpu-02", "nccl")]}
    assert world.up("--remove", "nccl", "--remove", "nvlink") == ExitCode.OK
    assert "nvlink, nccl" not in world.err
    assert "nccl, nvlink to be removed from 2 of 3 nodes" in world.err
    ((playbook, hosts, _),) = world.played
    assert (playbook, sorted(hosts)) == ("remove.yml", ["gpu-01", "gpu-02"])
    told = hosts["gpu-01"]
    assert told["gpuprov_remove"] == ["nccl"]
    assert told["nccl_enabled"] is True
    assert "libcuda1" in told["gpuprov_keep"]["packages"]
    assert "libnccl2" not in told["gpuprov_keep"]["packages"]
    assert "gpuprov_roles" not in told
    assert ends() == {"gpu-01": "done", "gpu-02": "done", "gpu-03": "as declared"}
    assert "take nccl, nvlink out of gpuprov_roles of gpu-[01-03]" in world.out


def test_what_is_gone_already_is_said_so(world: World) -> None:
    assert world.up("--remove", "nccl", "--set", "gpuprov_roles=[rdma]") == ExitCode.OK
    assert world.played == []
    assert "3 nodes without anything of nccl" in world.out
    assert "next: gpuprov plan" in world.out


def test_a_removal_in_check_mode_changes_nothing_and_names_its_command(world: World) -> None:
    world.lack("gpu-01")
    assert world.up("--remove", "nccl", "--check") == ExitCode.OK
    assert [(playbook, check) for playbook, _, check in world.played] == [("remove.yml", True)]
    assert re.search(r"next: gpuprov up \S+ --remove nccl$", world.out, re.MULTILINE)


def test_a_removal_that_was_cut_off_goes_on_as_one(world: World) -> None:
    world.lack("gpu-01", "gpu-02")
    world.fail("gpu-02")
    assert world.up("--remove", "nccl") == ExitCode.UNHEALTHY
    world.failing = {}
    assert world.resume() == ExitCode.OK
    playbook, hosts, _ = world.played[-1]
    assert (playbook, sorted(hosts)) == ("remove.yml", ["gpu-02"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--remove", "ncll"), "no role called 'ncll'\n  → did you mean nccl?"),
        (("--remove", "nccl", "--full"), "--remove and --full contradict each other"),
    ],
)
def test_a_removal_that_makes_no_sense_is_refused_before_anything_is_asked(
    world: World, words: tuple[str, ...], said: str
) -> None:
    assert world.up(*words) == ExitCode.USAGE
    assert said in world.err
    assert world.observed == []


def test_a_refused_removal_proposes_the_plan_of_that_removal(world: World) -> None:
    world.refused = {
        "gpu-01": Refusal("role-needed", "gpu-01: nvlink builds on nccl", "remove it as well", "")
    }
    assert world.up("--remove", "nccl") == ExitCode.UNHEALTHY
    assert re.search(r"next: follow the advice above, then: gpuprov plan \S+ --remove nccl\n", world.out)


# --- gpuprov.up


def in_python(world: World) -> gpuprov.LoadedFleet:
    return gpuprov.load(gpuprov.Source(inventories=(world.inventory,)))


def test_what_is_planned_is_confirmed_once_and_each_node_ends_with_an_event(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")], "gpu-02": [drift("gpu-02")]}
    world.stubborn = {"gpu-02"}
    events, asked = list[gpuprov.Event](), list[gpuprov.UpPlanned]()

    def confirm(planned: gpuprov.UpPlanned) -> bool:
        assert world.played == []
        asked.append(planned)
        return True

    result = gpuprov.up(in_python(world), on_event=events.append, confirm=confirm)
    assert capsys.readouterr() == ("", "")
    (planned,) = asked
    assert planned in events
    assert (planned.nodes, planned.stacks) == (("gpu-01", "gpu-02"), ("r580-cuda12.9",))
    assert {one.node: one.status for one in result.results} == {
        "gpu-01": Status.DONE,
        "gpu-02": Status.NOT_HELD,
        "gpu-03": Status.AS_DECLARED,
    }
    ended = {one.node: one.status for one in events if isinstance(one, gpuprov.NodeEnded)}
    assert ended == {"gpu-01": "done", "gpu-02": "not as declared"}
    assert (result.code, result.drained) == (ExitCode.UNHEALTHY, ())
    document = json.loads(json.dumps(result.document(), default=str))
    assert (document["exit_code"], document["run"]) == (3, str(result.folder))
    assert f"next: {result.command}" in result.text()
    assert RunFolder.open(result.folder).meta()["exit_code"] == 3


def test_a_no_changes_nothing(world: World) -> None:
    world.lack("gpu-01")
    with pytest.raises(gpuprov.GpuprovError, match="stopped before anything was changed"):
        gpuprov.up(in_python(world), confirm=lambda _planned: False)
    assert world.played == []


def test_it_goes_on_with_a_run_and_refuses_what_is_none(world: World) -> None:
    world.lack("gpu-01", "gpu-02")
    world.stubborn = {"gpu-02"}
    first = gpuprov.up(in_python(world))
    assert first.code is ExitCode.UNHEALTHY
    world.stubborn = set()
    again = gpuprov.up(in_python(world), resume=first.folder)
    assert (again.code, [one.node for one in again.results if one.status is Status.DONE]) == (0, ["gpu-02"])
    runs = len(list(first.folder.parent.iterdir()))
    with pytest.raises(gpuprov.GpuprovError, match="absent"):
        gpuprov.up(in_python(world), resume=first.folder.parent / "absent")
    assert len(list(first.folder.parent.iterdir())) == runs
