"""The quick checks of `validate` as the gate of `up`, with the real validate; only node answers are replaced.

Also runs that ended between a node's change and its gate: `--resume` runs the gate before the node returns.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.api import health_gate
from provision.errors import ExitCode
from provision.events import Event, RunBegan
from provision.fleet import Fleet, Node
from provision.remote.reach import fleet_lock
from provision.runs.store import RunFolder, latest
from provision.up.options import UpOptions
from tests.support.machines import HEALTHY, Machines
from tests.support.machines import machines as machines
from tests.support.up import NODES, World

SEVEN = {**HEALTHY, "nvidia_smi": "gpu_inventory/h100-seven-v13.xml"}


def passed(nodes: str) -> tuple[dict[str, str], RunFolder]:
    fleet = Fleet(Path("fleet.yml"), {name: Node(name, (), {}) for name in "abcd"}, {})
    told: list[Event] = []
    found = health_gate.quick(fleet, {}, list(nodes), UpOptions(), told.append)
    (opened,) = [event.folder for event in told if isinstance(event, RunBegan)]
    return found, RunFolder.open(opened)


def test_only_what_passed_goes_on(machines: Machines) -> None:
    machines.add("a")
    machines.add("b", SEVEN)
    machines.errors["c"] = "no route to host"
    found, folder = passed("abc")
    assert set(found) == {"b", "c"}
    assert found["b"].startswith("the quick checks found: ")
    assert "7" in found["b"]
    assert "no route to host" in found["c"]
    assert folder.meta()["verb"] == "validate"
    assert folder.meta()["exit_code"] == ExitCode.UNHEALTHY
    assert list(folder.meta()["asked"])
    assert "gpu_burn" not in folder.meta()["asked"]
    assert (folder.path / "report.json").exists()


def test_an_interrupted_gate_is_an_interrupt(machines: Machines) -> None:
    machines.add("a")
    machines.interrupt_at = "journal"
    with pytest.raises(KeyboardInterrupt):
        passed("a")


HOOK = """#!{python}
import pathlib, sys
with open({log!r}, "a") as log:
    print(pathlib.Path(sys.argv[0]).name, *sys.argv[1:], file=log)
"""


class Site:
    """A fleet that `up` changes, drained by hooks, with scripted answers of its nodes.
    The rest of `up` and `validate` is real."""

    def __init__(self, world: World, machines: Machines, log: Path) -> None:
        self.world = world
        self.machines = machines
        self.log = log

    def play(self, playbook: Path, *arguments: Any, **more: Any) -> Any:
        played = self.machines.run_playbook if playbook.name == "checks.yml" else self.world.play
        return played(playbook, *arguments, **more)

    def up(self, *words: str) -> int:
        return self.world.up("--gate", "quick", *words)

    def lack(self, *nodes: str) -> None:
        self.world.lack(*nodes)
        for node in NODES:
            self.machines.add(node)

    @property
    def hooks(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def ends(self) -> dict[str, str]:
        return {record["node"]: record["status"] for record in latest("up").read("outcomes")}


@pytest.fixture
def site(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Site:
    made = Site(World(tmp_path / "fleet.yml", capsys), machines, tmp_path / "log")
    made.world.stand_in(monkeypatch, made.play)
    for name in ("drain", "undrain"):
        (tmp_path / name).write_text(HOOK.format(python=sys.executable, log=str(made.log)))
        (tmp_path / name).chmod(0o755)
    made.world.declare(gpuprov_drain_hook="drain", gpuprov_undrain_hook="undrain")
    return made


def test_the_gate_runs_and_a_node_that_fails_it_stays_drained_through_resume(site: Site) -> None:
    site.lack("gpu-01", "gpu-02")
    site.machines.add("gpu-02", SEVEN)
    assert site.up() == ExitCode.UNHEALTHY
    assert site.ends["gpu-02"] == "unhealthy"
    assert sorted(site.hooks) == ["drain gpu-01", "drain gpu-02", "undrain gpu-01"]
    assert site.world.resume() == ExitCode.UNHEALTHY
    assert site.ends["gpu-02"] == "unhealthy"
    assert "UNHEALTHY: gpu-02" in site.world.out
    assert "undrain gpu-02" not in site.hooks
    site.machines.add("gpu-02")
    assert site.world.resume() == ExitCode.OK
    assert site.ends["gpu-02"] == "done"
    assert site.hooks[-1] == "undrain gpu-02"


class Killed(BaseException):
    """A kill of the run, after which nothing more is written."""


@pytest.mark.parametrize("how", ["interrupt", "bug", "named error", "kill"])
def test_whatever_ended_the_run_before_its_gate_resume_runs_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    site.lack("gpu-01")

    def end(*_: object) -> None:
        if how == "interrupt":
            signal.raise_signal(signal.SIGTERM)
        raise {"bug": TypeError("oops"), "named error": fleet_lock.LockedError("no")}.get(how, Killed())

    with monkeypatch.context() as patched:
        patched.setattr("provision.validate.validation.open_folder", end)
        if how == "kill":
            patched.setattr("provision.up.execute.Execution._interrupted", lambda _self: None)
            with pytest.raises(Killed):
                site.up()
        else:
            assert site.up() != ExitCode.OK
            run = latest("up").path
            said = site.world.out + site.world.err
            assert "still drained, out of service" in said
            assert f"gpuprov up --resume {run}" in said
            assert "gpu-01" in said
    site.machines.add("gpu-01", SEVEN)
    assert site.world.resume() == ExitCode.UNHEALTHY
    assert site.hooks == ["drain gpu-01"]
    site.machines.add("gpu-01")
    assert site.world.resume() == ExitCode.OK
    assert site.hooks == ["drain gpu-01", "undrain gpu-01"]


def test_without_a_way_to_drain_the_gate_is_not_skipped_either(site: Site) -> None:
    """No other wave begins until the node that an earlier run changed passes."""
    site.world.variables.clear()
    site.world.declare(site="a")
    site.lack("gpu-01", "gpu-02")
    site.machines.add("gpu-01", SEVEN)
    assert site.up("--wave", "1") == ExitCode.UNHEALTHY
    assert site.ends == {"gpu-01": "unhealthy", "gpu-02": "not attempted", "gpu-03": "as declared"}
    assert site.world.resume() == ExitCode.UNHEALTHY
    assert site.ends == {"gpu-01": "unhealthy", "gpu-02": "not attempted", "gpu-03": "as declared"}
    assert "1 failed the health gate, more than allowed (--max-failures 0)" in site.world.out
    site.machines.add("gpu-01")
    assert site.world.resume() == ExitCode.OK
    assert site.ends == {"gpu-01": "done", "gpu-02": "done", "gpu-03": "as declared"}


def test_a_full_run_changes_and_gates_a_drained_node_before_it_returns(site: Site) -> None:
    site.lack("gpu-01")
    site.machines.add("gpu-01", SEVEN)
    assert site.up("--full", "--nodes", "gpu-01") == ExitCode.UNHEALTHY
    assert site.world.resume() == ExitCode.UNHEALTHY
    assert site.hooks == ["drain gpu-01", "drain gpu-01"]
    site.machines.add("gpu-01")
    assert site.world.resume() == ExitCode.OK
    assert site.hooks[2:] == ["drain gpu-01", "undrain gpu-01"]
