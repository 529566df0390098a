"""`gpuprov up` through its command line, with a fleet that answers from a script instead of a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provision import assess, cli, paths, runner
from provision.assess import Assessment
from provision.compatibility import Refusal
from provision.drift import Drift
from provision.errors import ExitCode, GpuprovError
from provision.expectations import Expectation
from provision.inventory import Fleet, Node
from provision.observe import Observation
from provision.runner import Event, Outcome
from provision.store import RunFolder, latest

SECRET = "corr3ct-h0rse"


def drift(node: str, role: str = "nccl", *, reboot: bool = False, found: str = "1.0") -> Drift:
    expectation = Expectation(role, f"package.{role}.version", "equals", "2.0", "because", reboot)
    return Drift(node, expectation, found)


@dataclass
class World:
    """Nodes with roles that are still missing; running a role, or a reboot, makes its promise true."""

    fleet: Fleet
    missing: dict[str, list[Drift]] = field(default_factory=dict)
    errors: dict[str, tuple[str, bool]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    failing: dict[str, Outcome] = field(default_factory=dict)
    stubborn: set[str] = field(default_factory=set)
    played: list[tuple[str, dict[str, Any], bool]] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    on_play: Callable[[], None] = lambda: None

    def assess(self, fleet: Fleet, overrides: Mapping[str, Any], **_options: Any) -> Assessment:
        declared = {name: {**node.variables, **overrides} for name, node in fleet.nodes.items()}
        start = Assessment(fleet, overrides, declared, {}, frozenset({SECRET}), {})
        return self.look(start, list(fleet.nodes))

    def look(self, known: Assessment, chosen: Collection[str], **_options: Any) -> Assessment:
        self.observed += chosen
        answers = {}
        for name in chosen:
            error, unreachable = self.errors.get(name, (None, False))
            answers[name] = Observation(name, {"os.id": "debian"}, {}, error, unreachable)
        alive = [name for name in chosen if name not in self.errors and name not in self.refused]
        return replace(
            known,
            observations=answers,
            described={name: {"os": {"id": "debian"}} for name in alive},
            drifts={name: list(self.missing.get(name, ())) for name in alive},
            refused={name: [self.refused[name]] for name in chosen if name in self.refused},
        )

    def play(
        self,
        playbook: Path,
        hosts: Mapping[str, Mapping[str, Any]],
        *,
        on_event: Callable[[Event], None],
        check_mode: bool,
        **_options: Any,
    ) -> dict[str, Outcome]:
        self.played.append((playbook.name, dict(hosts), check_mode))
        self.on_play()
        outcomes = {}
        for name, variables in hosts.items():
            for role in variables.get("gpuprov_roles", ["reboot"]):
                on_event(Event("started", name, role, "Install"))
                on_event(Event("changed", name, role, "Install", {"msg": f"password {SECRET}"}))
            outcomes[name] = self.failing.get(name, Outcome(name, "ok", 1))
            if outcomes[name].status == "ok" and name not in self.stubborn and not check_mode:
                reboots = playbook.name == "reboot.yml"
                done = set(variables.get("gpuprov_roles", ()))
                self.missing[name] = [
                    each
                    for each in self.missing.get(name, ())
                    if (each.expectation.reboot and not reboots)
                    or (not each.expectation.reboot and each.expectation.role not in done)
                ]
        return outcomes


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    inventory = tmp_path / "fleet.yml"
    inventory.write_text("all: {}\n")
    nodes = {
        f"gpu-0{number}": Node(f"gpu-0{number}", (), {"ansible_become_password": SECRET})
        for number in (1, 2, 3)
    }
    made = World(Fleet(inventory, nodes, {"all": tuple(nodes)}))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(assess, "assess", made.assess)
    monkeypatch.setattr(assess, "look", made.look)
    monkeypatch.setattr(runner, "run_playbook", made.play)

    def load(options: Any) -> tuple[Fleet, dict[str, Any]]:
        from provision.commands import fleet_options

        assert options.inventory in (str(inventory), None)
        return made.fleet, fleet_options.overrides(options)

    monkeypatch.setattr("provision.commands.fleet_options.load", load)
    return made


def up(world: World, *arguments: str) -> int:
    return cli.main(["up", str(world.fleet.source), *arguments])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def newest() -> RunFolder:
    return latest("up")


def ends() -> dict[str, str]:
    return {record["node"]: record["status"] for record in newest().read("outcomes")}


def test_a_converged_fleet_is_looked_at_once_and_no_playbook_runs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(world) == ExitCode.OK
    assert world.played == []
    assert world.observed == ["gpu-01", "gpu-02", "gpu-03"]
    out = said(capsys)
    assert "3 nodes already as declared" in out
    assert "next: gpuprov validate" in out
    assert not (newest().path / "events.jsonl").exists()
    assert newest().meta()["exit_code"] == 0


def test_only_nodes_that_differ_are_changed_with_only_the_roles_they_need(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")], "gpu-03": [drift("gpu-03", "rdma"), drift("gpu-03")]}
    assert up(world) == ExitCode.OK
    ((playbook, hosts, check_mode),) = world.played
    assert (playbook, check_mode) == ("up.yml", False)
    assert {name: variables["gpuprov_roles"] for name, variables in hosts.items()} == {
        "gpu-01": ["nccl"],
        "gpu-03": ["nccl", "rdma"],
    }
    assert hosts["gpu-01"]["gpuprov_node"] == {"os": {"id": "debian"}}
    assert ends() == {"gpu-01": "done", "gpu-02": "as declared", "gpu-03": "done"}


def test_the_run_folder_tells_all_and_no_secret(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.missing = {"gpu-01": [drift("gpu-01", found=f"token={SECRET}")], "gpu-02": [drift("gpu-02")]}
    world.stubborn = {"gpu-01"}
    world.failing = {"gpu-02": Outcome("gpu-02", "failed", 0, "nccl", "Install", f"said {SECRET}")}
    assert up(world, "--set", "nccl_version='2'") == ExitCode.UNHEALTHY
    run = newest()
    assert json.loads((run.path / "plan.json").read_text())["waves"] == [["gpu-01", "gpu-02"]]
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
    captured = capsys.readouterr()
    assert SECRET not in captured.out
    for path in run.path.rglob("*"):
        assert not path.is_file() or SECRET not in path.read_text(), path


def test_what_remains_is_said_with_fact_expected_found_and_the_next_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing = {name: [drift(name)] for name in ("gpu-01", "gpu-02")}
    world.stubborn = {"gpu-01", "gpu-02"}
    assert up(world) == ExitCode.UNHEALTHY
    out = said(capsys)
    assert "NOT AS DECLARED: gpu-[01-02]" in out
    assert "package.nccl.version: expected 2.0, found 1.0 (because)" in out
    assert f"gpuprov up --resume {newest().path}" in out
    assert f"run:  {newest().path}" in out


def test_causes_come_worst_first_and_equal_ones_together(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing = {name: [drift(name)] for name in ("gpu-01", "gpu-03")}
    message = "E: Version '2' for 'libnccl2' was not found"
    world.failing = {
        name: Outcome(name, "failed", 0, "nccl", "Install", message) for name in ("gpu-01", "gpu-03")
    }
    world.errors = {"gpu-02": ("no route to host", True)}
    assert up(world) == ExitCode.UNHEALTHY
    out = said(capsys)
    assert out.index("FAILED: gpu-[01,03] · nccl · Install") < out.index("UNREACHABLE: gpu-02")
    assert out.count(message) == 1


def test_a_silent_node_alone_makes_it_incomplete(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.errors = {"gpu-02": ("no route to host", True)}
    world.missing = {"gpu-01": [drift("gpu-01")]}
    assert up(world) == ExitCode.INCOMPLETE
    assert ends() == {"gpu-01": "done", "gpu-02": "unreachable", "gpu-03": "as declared"}
    assert "no route to host" in said(capsys)
    assert "gpu-02" not in world.played[0][1]


def test_sudo_refused_on_one_node_does_not_stop_the_others(world: World) -> None:
    world.errors = {"gpu-02": ("sudo wants a password: set ansible_become_password", False)}
    world.missing = {"gpu-01": [drift("gpu-01")]}
    assert up(world) == ExitCode.INCOMPLETE
    assert ends()["gpu-02"] == "unreadable"
    assert ends()["gpu-01"] == "done"


def test_a_refused_node_is_named_with_the_rule_and_never_touched(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.refused = {
        "gpu-02": Refusal("rule", "gpu-02: 580 does not know this GPU", "take 595", "release notes")
    }
    world.missing = {"gpu-01": [drift("gpu-01")]}
    assert up(world) == ExitCode.UNHEALTHY
    assert set(world.played[0][1]) == {"gpu-01"}
    out = said(capsys)
    assert "REFUSED: gpu-02" in out
    assert "580 does not know this GPU" in out
    assert "take 595" in out


def test_a_reboot_happens_inside_the_wave_unless_forbidden(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = drift("gpu-01", "nvidia_driver", reboot=True)
    world.missing = {"gpu-01": [waiting]}
    assert up(world, "--no-reboot") == ExitCode.UNHEALTHY
    assert [name for name, _, _ in world.played] == ["up.yml"]
    assert "REBOOT NEEDED: gpu-01" in said(capsys)
    assert up(world) == ExitCode.OK
    assert [name for name, _, _ in world.played[1:]] == ["up.yml", "reboot.yml"]


def test_waves_stop_after_a_failure_and_resume_goes_on(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing = {name: [drift(name)] for name in world.fleet.nodes}
    world.failing = {"gpu-02": Outcome("gpu-02", "failed", message="broken")}
    assert up(world, "--wave-size", "1") == ExitCode.UNHEALTHY
    assert ends() == {"gpu-01": "done", "gpu-02": "failed", "gpu-03": "not attempted"}
    assert "NOT ATTEMPTED: gpu-03" in said(capsys)

    world.failing = {}
    world.played.clear()
    assert cli.main(["up", "--resume"]) == ExitCode.OK
    assert [list(hosts) for _, hosts, _ in world.played] == [["gpu-02"], ["gpu-03"]]  # one by one, as before
    assert ends() == {"gpu-01": "as declared", "gpu-02": "done", "gpu-03": "done"}


def test_a_resumed_full_run_spares_nodes_that_are_done_and_still_hold(world: World) -> None:
    world.failing = {"gpu-03": Outcome("gpu-03", "failed", message="broken")}
    assert up(world, "--full") == ExitCode.UNHEALTHY
    assert set(world.played[0][1]) == set(world.fleet.nodes)
    world.failing, world.missing = {}, {"gpu-01": [drift("gpu-01")]}
    world.played.clear()
    assert up(world, "--resume", str(newest().path)) == ExitCode.OK
    assert set(world.played[0][1]) == {"gpu-01", "gpu-03"}  # gpu-01 was done, and has drifted since


def test_resume_wants_a_secret_again_and_refuses_other_runs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(world, "--set", f"site_token={SECRET}") == ExitCode.OK
    assert up(world, "--resume") == ExitCode.USAGE
    assert "site_token" in capsys.readouterr().err
    assert up(world, "--resume", "--set", "site_token=again") == ExitCode.OK
    RunFolder.create("validate", {})
    assert up(world, f"--resume={latest('validate').path.name}") == ExitCode.USAGE
    assert up(world, "--resume=nonsense") == ExitCode.ERROR


def test_an_interrupt_leaves_a_readable_folder_and_says_how_to_go_on(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing = {name: [drift(name)] for name in ("gpu-01", "gpu-02")}

    def interrupt() -> None:
        if len(world.played) == 2:
            raise KeyboardInterrupt

    world.on_play = interrupt
    assert up(world, "--wave-size", "1") == ExitCode.INTERRUPTED
    run = newest()
    assert run.meta()["exit_code"] == 130
    assert run.meta()["interrupted"] is True
    assert ends() == {"gpu-01": "done", "gpu-02": "interrupted", "gpu-03": "as declared"}
    assert f"next: gpuprov up --resume {run.path}" in said(capsys)


def test_check_says_what_would_change_and_changes_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.missing = {"gpu-01": [drift("gpu-01", reboot=True)]}
    assert up(world, "--check") == ExitCode.OK
    assert [(name, check) for name, _, check in world.played] == [("up.yml", True)]
    assert world.observed == list(world.fleet.nodes)  # nothing to verify
    out = said(capsys)
    assert "would change: nccl · Install: gpu-01" in out
    assert "next: gpuprov up" in out


def test_json_is_one_document_on_stdout(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")], "gpu-02": [drift("gpu-02", found=SECRET)]}
    world.stubborn = {"gpu-02"}
    assert up(world, "--json") == ExitCode.UNHEALTHY
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["exit_code"] == 3
    assert document["counts"] == {"not as declared": 1, "done": 1, "as declared": 1}
    assert document["nodes"]["gpu-02"]["drifts"][0]["fact"] == "package.nccl.version"
    assert document["run"] == str(newest().path)
    assert SECRET not in captured.out


def test_a_person_at_a_terminal_is_asked_and_may_say_no(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from provision.commands import up as command

    world.missing = {"gpu-01": [drift("gpu-01", "nvidia_driver", reboot=True)]}
    answers = iter(["\n", "y\n"])
    monkeypatch.setattr(command, "_at_a_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda: next(answers), raising=False)
    assert up(world) == ExitCode.ERROR
    assert world.played == []
    assert "1 of 3 nodes" in capsys.readouterr().err
    assert up(world) == ExitCode.OK
    assert world.played
    world.missing = {"gpu-01": [drift("gpu-01")]}
    assert up(world, "--yes") == ExitCode.OK


def test_a_named_error_in_the_middle_is_noted_in_the_run(world: World) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")]}

    def fail() -> None:
        raise GpuprovError("Ansible could not run up.yml", "mend it")

    world.on_play = fail
    assert up(world) == ExitCode.ERROR
    assert newest().meta()["error"] == "Ansible could not run up.yml"
    assert newest().meta()["exit_code"] == 1


def test_a_bug_keeps_its_traceback_in_the_run(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.missing = {"gpu-01": [drift("gpu-01")]}

    def fail() -> None:
        raise ZeroDivisionError("oops")

    world.on_play = fail
    assert up(world) == ExitCode.BUG
    assert "ZeroDivisionError" in (newest().path / "traceback.txt").read_text()
    assert str(newest().path) in capsys.readouterr().err


def test_the_playbooks_up_runs_are_there() -> None:
    assert (paths.PLAYBOOKS / "up.yml").is_file()
    assert (paths.PLAYBOOKS / "reboot.yml").is_file()


@pytest.mark.parametrize("bad", [["--wave-size", "0"], ["--max-failures", "-1"], ["--forks", "many"]])
def test_bad_numbers_are_a_usage_error(world: World, bad: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        up(world, *bad)
    assert caught.value.code == ExitCode.USAGE
