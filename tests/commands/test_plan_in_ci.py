"""`gpuprov plan` in a pipeline: formats, the exit status for changes, and checks that need no node."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from provision.desired import stack
from provision.errors import ExitCode
from provision.fleet import Node
from provision.remote.reach import observe
from provision.remote.reach.observe import Observation
from provision.remote.schedulers import chosen
from provision.remote.schedulers.slurm import Slurm
from tests.support.observed import Facts, debian, fleet_here, gpuprov, promised, unknown
from tests.support.slurm_cluster import Cluster

BASE = debian("12", "bookworm", "6.1.0")
OFF = {"service.nvidia-persistenced.active": "inactive"}
NAMES = ("gpu-01", "gpu-02", "gpu-03")


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Facts:
    """Set up three nodes as declared, except for the facts put into the returned dict (node → facts)."""
    different: Facts = {}

    def answer(node: Node, asked: Collection[str]) -> Observation:
        mine = dict(different.get(node.name, {}))
        error = mine.pop("error", None)
        facts = {**unknown(asked, "6.1.0"), **promised(stack.declared(node, {}), BASE), **BASE, **mine}
        return Observation(node.name, {} if error else facts, {}, error, bool(error))

    fleet_here(monkeypatch, tmp_path, NAMES, answer)
    return different


@pytest.mark.parametrize(
    ("found", "words", "code"),
    [
        ({}, [], ExitCode.OK),
        ({}, ["--exit-code"], ExitCode.OK),
        ({"gpu-01": OFF}, [], ExitCode.OK),
        ({"gpu-01": OFF}, ["--exit-code"], ExitCode.DRIFT),
        ({"gpu-02": {"error": "no route"}}, ["--exit-code"], ExitCode.INCOMPLETE),
        ({"gpu-01": OFF, "gpu-02": {"error": "no route"}}, ["--exit-code"], ExitCode.DRIFT),
    ],
)
def test_changes_have_an_exit_code_for_who_asks(
    trouble: Facts, capsys: pytest.CaptureFixture[str], found: Facts, words: list[str], code: ExitCode
) -> None:
    trouble.update(found)
    assert gpuprov(capsys, "plan", *words)[0] == code


def test_github_gets_one_annotation_and_the_summary_the_table(
    trouble: Facts, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    trouble["gpu-01"] = OFF | {"driver.loaded_version": "1\n::error::forged"}
    _, out, _ = gpuprov(capsys, "plan", "--format", "github")
    assert out.startswith("::warning file=inventory.yml,title=gpuprov plan%3A 1 node of 3 would change::")
    assert out.count("\n") == 1, "no text of a node begins a command of its own"
    assert "service nvidia-persistenced is inactive" in out
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("### gpuprov plan: 1 node of 3 would change\n")
    assert gpuprov(capsys, "plan", "--format", "markdown")[1] == summary
    assert gpuprov(capsys, "plan", "--format", f"text,markdown={tmp_path}/plan.md")[1].endswith(
        "(estimate)\n"
    )
    assert (tmp_path / "plan.md").read_text() == summary


@pytest.mark.usefixtures("trouble")
def test_offline_reaches_no_node_and_names_what_it_did_not_look_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "observe", lambda *_, **__: pytest.fail("a node was reached"))
    code, out, _ = gpuprov(capsys, "plan", "--offline")
    assert code == ExitCode.OK
    assert "inventory.yml: 3 nodes, no mistake found" in out
    assert "not looked at, since no node was reached: logins, GPUs" in out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "gpuprov_stack=no-such-stack"], "no-such-stack"),
        (["--set", "nvidia_driver_versoin=580"], "nvidia_driver_versoin"),
        (["--set", "gpuprov_drain_hook=no/such/hook"], "no/such/hook"),
        (["--set", "cuda_toolkit_version=12.10"], "12.10"),
        (["--set", "gpuprov_scheduler=hooks"], "gpuprov_drain_hook"),
        (["--set", "ansible_host=10.0.0.1"], "gpu-01"),
        (["--nodes", "no-such-node"], "no-such-node"),
        (["--json"], "leave out --format or --json"),
    ],
)
@pytest.mark.usefixtures("trouble")
def test_offline_refuses_what_is_wrong_on_any_machine(
    capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    code, _, err = gpuprov(capsys, "plan", "--offline", *words)
    assert code in (ExitCode.ERROR, ExitCode.USAGE) or "versoin" in named
    assert named in err


def test_a_node_that_slurm_does_not_know_is_in_the_plan(
    trouble: Facts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster({"gpu-01": ["IDLE", ""]})
    monkeypatch.setitem(chosen.MAKERS, "slurm", lambda fleet, names: Slurm(fleet, names, cluster))
    trouble.update(dict.fromkeys(NAMES, OFF))
    code, out, _ = gpuprov(capsys, "plan", "--set", "gpuprov_scheduler=slurm")
    assert code == ExitCode.INCOMPLETE
    assert (
        "gpu-[02-03]: up would not touch it: its scheduler: Slurm does not know the node: "
        "set gpuprov_scheduler_name to the name that Slurm has for it" in out
    )
