"""Conditions and a setting change of a selftest on simulated machines with AMD GPUs."""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab import replica
from gpuprov_lab.places import SILICON
from provision.checks.vendors.amd import gpu_burn
from provision.validate.selftest import amd, changes, machine, measure, provocations
from provision.validate.selftest.changes import Change
from provision.validate.selftest.measure import Archive, Bench
from provision.validate.selftest.provocations import Condition, provoke
from provision.validate.selftest.result import NOT_POSSIBLE, NOT_PROVEN, PROVEN
from tests.lab_silicon.look import look_of
from tests.lab_silicon.silicon import Silicon

Make = Callable[..., Bench]
OLD, NEW = ("6.12.12", "6.4.1-83"), ("6.16.13", "7.2.3-90")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Simulate a machine with its tools on PATH, ten times as fast, and return the bench of its checks."""

    def machine_of(sku: str = "mi300x", release: tuple[str, str] = NEW) -> Bench:
        monkeypatch.setattr(replica, "_SPEED", "10")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(gpu_burn, "_CONFIG_FILE", str(tmp_path / "burn.conf"))
        variables = replica.make(tmp_path, sku, *release)
        node = Silicon(tmp_path / "state", tmp_path / "root")
        here = node.root / str(tmp_path)[1:]  # a tool finds each file at the path where it was written
        here.parent.mkdir(parents=True)
        here.symlink_to(tmp_path)
        folder = node.root / "opt/rocm/bin"
        folder.mkdir(parents=True)
        said = shlex.join(f"{name}={value}" for name, value in variables.items())
        for name in (*machine._OF_AMD, "dmesg"):
            words = f"{said} {sys.executable} -I -S {SILICON / 'run.py'} {name}"
            (folder / name).write_text(f'#!/bin/sh\nexec env {words} "$@"\n')
            (folder / name).chmod(0o755)
        there = machine.Machine(path=f"{folder}:/usr/bin:/bin", observe=lambda facts: _seen(node, facts))
        module = measure.runner()
        module.PATH = there.path  # type: ignore[attr-defined]
        found = there.facts(("gpu_inventory", "gpu_burn", "memory_bandwidth"), {})
        tools = there.find({}, "amd")
        stated = machine.variables(tools.values(), found.variables, "amd")
        (tmp_path / "out").mkdir()
        archive = Archive(tmp_path / "out")
        options = {"burn_seconds": 20, "timeout": None}
        return Bench(replace(found, variables=stated), tools, archive, options, math.inf, module=module)

    return machine_of


def _seen(node: Silicon, facts: Any) -> tuple[dict[str, Any], dict[str, str]]:
    look = look_of(node, facts)
    return look.facts, look.problems


CONDITIONS = {one.name: one for one in amd.conditions()}


def of(name: str) -> Condition:
    return CONDITIONS[name]


def test_its_gpus_and_tools_are_amds(make: Make) -> None:
    bench = make()
    assert (bench.vendor, bench.node.check_node.gpu_count) == ("amd", 8)
    assert bench.node.gpuprov_node["gpu"]["sku"] == "mi300x"
    assert [tool.path for tool in bench.tools.values() if not tool.path] == []
    assert bench.absent("gpu_burn") == []
    without = replace(bench, tools={**bench.tools, "rvs": machine.Tool("rvs", "", "install it")})
    assert [tool.name for tool in without.absent("gpu_burn")] == ["rvs"]


@pytest.mark.parametrize("name", CONDITIONS)
def test_each_condition_is_named(make: Make, name: str) -> None:
    done = provoke(make(), of(name), 7)
    assert (done.state, done.why) == (PROVEN, ""), done.named


def test_a_program_on_another_gpu_proves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make()
    number = amd._rvs_number(bench.tools["rvs"].path, bench, 6)
    monkeypatch.setattr(amd, "_rvs_number", lambda *_: number)
    monkeypatch.setattr(amd, "_seen", lambda *_: True)
    done = provoke(bench, of("a foreign process on a GPU"), 6)
    assert done.state == PROVEN, done.named
    done = provoke(bench, of("a foreign process on a GPU"), 7)
    assert done.state == NOT_PROVEN, done.named


def test_a_machine_with_one_gpu_has_none_to_hide(make: Make) -> None:
    done = provoke(make(), of("a GPU that programs do not see"), 0)
    assert done.state == NOT_POSSIBLE


# --- the power limit


def planned(smi: amd.Smi, gpu: int) -> Change:
    (one,) = smi.planned(smi.read(gpu))
    assert isinstance(one, Change), one
    return one


@pytest.mark.parametrize("release", [OLD, NEW, ("6.16.13", "7.2.1-43"), ("6.16.13", "7.13.0-1")])
def test_the_limit_of_power_is_lowered_named_and_restored(make: Make, release: tuple[str, str]) -> None:
    bench = make(release=release)
    smi, left = amd.Smi(bench), []  # type: tuple[amd.Smi, list[str]]
    before = smi.read(7)
    assert before["power.limit"] == "750"
    one = planned(smi, 7)
    assert one.value == "600"
    done = changes.change(bench, one, 7, left.append, smi)
    assert (done.state, done.why, left) == (PROVEN, "", []), done.named
    assert "gpu7: " in done.named
    assert smi.read(7) == before
    assert done.done.startswith("amd-smi set -g 7 --power-cap")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_it_is_restored_whatever_happens(make: Make, error: type[BaseException]) -> None:
    class Breaks(Bench):
        def run(self, *_: Any, **__: Any) -> Any:
            during.append(smi.read(7)["power.limit"])
            raise error

    bench = Breaks(**vars(make()))
    smi, left, during = amd.Smi(bench), [], []  # type: tuple[amd.Smi, list[str], list[str]]
    before = smi.read(7)
    with pytest.raises(error):
        changes.change(bench, planned(smi, 7), 7, left.append, smi)
    assert (during, smi.read(7), left) == (["600"], before, [])


def test_what_is_not_restored_is_left_over_with_its_command(make: Make) -> None:
    class Refuses(amd.Smi):
        def call(self, gpu: int, words: Any) -> Any:
            return super().call(gpu, one.there if words == one.back else words)

    bench = make()
    smi, left = Refuses(bench), []  # type: tuple[amd.Smi, list[str]]
    one = planned(smi, 7)
    done = changes.change(bench, one, 7, left.append, smi)
    assert done.state == NOT_PROVEN
    assert left == [f"power limit of gpu7: it is 600, it was 750; run: {smi.line(7, one.back)}"]


def test_of_a_module_of_two_the_first_has_the_limit(make: Make) -> None:
    bench = make("mi250", OLD)
    gpu = amd.last_with_limit(bench)
    assert gpu == bench.node.check_node.gpu_count - 2
    assert isinstance(planned(amd.Smi(bench), gpu), Change)
    (said,) = amd.Smi(bench).planned(amd.Smi(bench).read(gpu + 1))
    assert said == ("power limit", "it is N/A, the highest allowed N/A")


def test_a_gpu_that_is_at_work_is_seen(make: Make) -> None:
    bench = make()
    smi = amd.Smi(bench)
    assert not smi.busy(7)
    with amd._load(bench, 7) as other:
        assert smi.busy(7)
        assert not smi.busy(6)
        assert len(other.pids) >= 1
    assert not smi.busy(7)


def test_the_conditions_are_as_many_as_the_manual_says() -> None:
    assert len(CONDITIONS) == 5
    assert list(CONDITIONS)[-1] == list(provocations.all_of())[-1].name
