"""Details of a first day with gpuprov: helpful suggestions, accepted names and correct counts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from provision import cli
from provision.desired import inventory, stack
from provision.errors import ExitCode, UsageError
from provision.fleet import Node
from provision.remote.reach.observe import Observation
from provision.remote.ssh import execute
from provision.runs.store import RunFolder
from provision.validate import validation
from tests.support.observed import Facts, debian, fleet_here, gpuprov, promised, unknown

BASE = debian("12", "bookworm", "6.1.0")


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Facts:
    """Set up one node as declared, except for the facts put into the returned dict."""
    different: Facts = {}

    def answer(node: Node, asked: Collection[str]) -> Observation:
        mine = dict(different.get(node.name, {}))
        error = mine.pop("error", None)
        facts = {**unknown(asked, "6.1.0"), **promised(stack.declared(node, {}), BASE), **BASE, **mine}
        return Observation(node.name, {} if error else facts, {}, error, bool(error))

    fleet_here(monkeypatch, tmp_path, ("gpu-01",), answer)
    return different


@pytest.mark.parametrize("verb", ["up", "plan", "validate", "drift"])
def test_a_missing_inventory_is_no_reason_to_propose_another_verb(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([verb, "foo.yml"]) == ExitCode.ERROR
    err = capsys.readouterr().err
    assert "foo.yml: no such inventory" in err
    assert "correct the path" in err
    assert "gpuprov plan" not in err


def test_init_takes_names_as_gpuprov_prints_them() -> None:
    hosts = yaml.safe_load(inventory.starter(["gpu-[01-16]", "a[1:3]b"]))["all"]["hosts"]
    assert list(hosts) == ["gpu-[01:16]", "a[1:3]b"]
    with pytest.raises(UsageError):
        inventory.starter(["gpu-[01-]"])


def test_the_starter_shows_day_two() -> None:
    text = inventory.starter()
    assert all(word in text for word in ("node_health_enabled", "gpu_metrics_enabled", "gpuprov_scheduler"))
    assert all(f"gpuprov {verb} " in text for verb in ("status", "watch", "lock"))


def test_an_unreachable_node_is_named_once(one_node: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    one_node["gpu-01"] = {"error": "no route to host"}
    for verb in ("plan", "drift"):
        _, out, err = gpuprov(capsys, verb)
        assert (out + err).count("no route to host") == 1, verb


def test_one_node_is_no_nodes(one_node: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_node == {}
    assert "1 of 1 node as declared" in gpuprov(capsys, "drift")[1]


def test_of_the_facts_of_one_thing_the_plan_names_one(
    one_node: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "package.libnccl2"
    one_node["gpu-01"] = {f"{name}.version": None, f"{name}.status": "absent", f"{name}.held": False}
    line = next(each for each in gpuprov(capsys, "plan", "-v")[1].splitlines() if "libnccl2" in each)
    assert line.count(f"{name}.") == 1, line


def test_a_refused_sudo_password_is_typed_again() -> None:
    said = execute.why_no_answer(b"", b"sudo: 1 incorrect password attempt", 1, python="python3", become=True)
    assert "type it again where -K asks for it" in said.fix


def test_the_last_validate_is_resumed_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    RunFolder.create("up", {})
    last = RunFolder.create("validate", {})
    RunFolder.create("drift", {})
    assert validation.to_go_on_with("").path == last.path
    options = cli.parsed(["validate", "--resume"])
    assert options.resume == ""


def test_the_columns_of_docs_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs"]) == ExitCode.OK
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    names = [line[2:].split(" ")[0] for line in lines]
    width = max(map(len, names))
    assert all(line[2 + width] == " " and line[3 + width] != " " for line in lines)
