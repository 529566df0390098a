"""gpuprov lock on the command line, and how its file binds plan, up and drift."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.desired import lockfile
from provision.desired.expectations import SILENT_GPUS
from provision.errors import ExitCode
from provision.fleet import Node
from provision.remote.reach.observe import Observation
from tests.support import observed
from tests.support.observed import Facts, debian, fleet_here

BASE = debian("13", "trixie", "6.12") | {"kernel.boot_release": "6.12"}
ONLY = ("--set", "gpuprov_roles=[package_lock]")
PIN = "file./etc/apt/preferences.d/gpuprov-lock"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Facts:
    """Node → installed packages; a fleet of three L40S nodes that reports them."""
    installed: Facts = {name: {"libnccl2": "2.29.7-1"} for name in ("gpu-01", "gpu-02", "gpu-03")}

    def answer(node: Node, asked: Collection[str]) -> Observation:
        mine = installed[node.name]
        if "error" in mine:
            return Observation(node.name, error=mine["error"])
        return Observation(node.name, {fact: fact_of(fact, mine) for fact in asked} | BASE)

    fleet_here(monkeypatch, tmp_path, tuple(installed), answer)
    return installed


def fact_of(fact: str, mine: Mapping[str, Any]) -> Any:
    if fact in SILENT_GPUS.values():
        return []
    if fact.startswith("packages."):
        return {name: version for name, version in mine.items() if name != "pins"}
    if fact.startswith("package."):
        name, _, attribute = fact.removeprefix("package.").rpartition(".")
        absent = {"version": None, "status": "absent", "held": False}
        return (
            {"version": mine[name], "status": "installed", "held": False}[attribute]
            if name in mine
            else absent[attribute]
        )
    return mine.get("pins", {}).get(fact)


def gpuprov(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return observed.gpuprov(capsys, *words, *ONLY)


def test_a_fleet_is_locked_and_what_moves_is_named(
    packages: Facts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = gpuprov(capsys, "lock")
    assert code == ExitCode.OK, err
    file = tmp_path / lockfile.NAME
    assert f"debian 13 x86_64, l40s: 1 package, taken from gpu-[01-03]\nwritten to {file}\n" in out
    assert "gpuprov drift reports every node of these kinds, also nodes that have them" in out
    assert lockfile.read(file).origin["nodes"] == "gpu-[01-03]"
    packages["gpu-02"]["libnccl2"] = "2.30-1"
    code, out, _ = gpuprov(capsys, "plan", "--json")
    changed = json.loads(out)["nodes"]["gpu-02"]["packages"]
    assert [(each["name"], each["before"], each["after"], each["roles"]) for each in changed] == [
        ("libnccl2", "2.30-1", "2.29.7-1", ["package_lock"])
    ]
    assert "libnccl2" not in gpuprov(capsys, "plan", "--no-lock")[1]
    code, out, _ = gpuprov(capsys, "drift")
    assert code == ExitCode.DRIFT
    assert "package libnccl2: 2.30-1 is installed, 2.29.7-1 is declared" in out


@pytest.mark.usefixtures("packages")
def test_a_lock_of_some_nodes_says_that_other_kinds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    told = "plan and up refuse nodes of any other operating system, architecture or GPU from now on"
    assert told in gpuprov(capsys, "lock", "--nodes", "gpu-01")[1]
    assert told not in gpuprov(capsys, "lock")[1]


@pytest.mark.usefixtures("packages")
def test_a_lock_that_holds_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """With an inventory's own gpuprov_roles, no role pins packages, so no node is rejected."""
    note = "gpu-01: not held to it, since gpuprov_roles there leaves out package_lock: add it"
    words = ("lock", "--nodes", "gpu-01", "--force")
    code, out, err = observed.gpuprov(capsys, *words, "--set", "gpuprov_roles=[nccl]")
    assert code == ExitCode.OK, err
    assert note in out
    assert "refuse nodes of any other" not in out
    assert "not held to it" not in gpuprov(capsys, *words)[1]


def test_what_a_tried_stack_has_left_is_named(packages: Facts, capsys: pytest.CaptureFixture[str]) -> None:
    for mine in packages.values():
        mine |= {
            "cuda-toolkit-12-9": "12.9.1-1",
            "cuda-toolkit-13-2": "13.2.0-1",
            "libcublas-12-9": "12.9.1-1",
        }
    roles = "gpuprov_roles=[cuda_toolkit,package_lock]"
    code, out, err = observed.gpuprov(capsys, "lock", "--force", "--set", roles)
    assert code == ExitCode.OK, err
    assert "also locked, though another version of it is declared: cuda-toolkit-13-2; if a stack" in out


def test_nodes_that_disagree_need_a_majority(
    packages: Facts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    packages["gpu-02"]["libnccl2"] = "2.30-1"
    code, out, err = gpuprov(capsys, "lock")
    assert code == ExitCode.ERROR
    assert out == ""
    assert "libnccl2 is 2.29.7-1 on gpu-[01,03], 2.30-1 on gpu-02\n  → " in err
    assert not (tmp_path / lockfile.NAME).exists()
    code, out, _ = gpuprov(capsys, "lock", "--majority", "--file", "other.yml")
    assert code == ExitCode.OK
    assert "gpu-02: differ from the majority of their kind, not used" in out
    assert lockfile.read(tmp_path / "other.yml").groups[0].packages == {"libnccl2": "2.29.7-1"}


def test_nodes_that_are_no_good_are_named_unless_forced(
    packages: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    packages["gpu-03"]["error"] = "no route to gpu-03"
    code, _, err = gpuprov(capsys, "lock")
    assert code == ExitCode.ERROR
    assert (
        "these nodes cannot be the source of a lock file:\n  gpu-03: unreadable: no route to the node\n  → "
        in err
    )
    code, out, _ = gpuprov(capsys, "lock", "--force", "--json")
    assert code == ExitCode.OK
    document = json.loads(out)
    assert document["forced"] == {"gpu-03": "unreadable: no route to gpu-03"}
    assert document["groups"][0]["nodes"] == "gpu-[01-02]"


def test_an_old_lock_file_does_not_stop_a_new_one(
    packages: Facts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpuprov(capsys, "lock")
    for node in packages.values():
        node.update(libnccl2="2.30-1", pins={f"{PIN}.content": "the old pins"})
    assert gpuprov(capsys, "lock")[0] == ExitCode.OK
    assert lockfile.read(tmp_path / lockfile.NAME).groups[0].packages == {"libnccl2": "2.30-1"}


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("verb", ["plan", "drift", "up"])
def test_a_bad_lock_file_stops_every_verb_with_its_line(
    verb: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    gpuprov(capsys, "lock")
    file = tmp_path / lockfile.NAME
    file.write_text(file.read_text().replace('"2.29.7-1"', "2.29"))
    code, _, err = gpuprov(capsys, verb)
    assert code == ExitCode.ERROR
    assert f"{file}:16: groups.0.packages.libnccl2: 2.29 is not an exact version; quote it" in err
    assert gpuprov(capsys, verb, "--lock", "none.yml")[0] == ExitCode.ERROR


@pytest.mark.usefixtures("packages")
def test_it_cannot_be_written_where_nothing_can(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = gpuprov(capsys, "lock", "--file", "nowhere/x.yml")
    assert code == ExitCode.USAGE
    assert "cannot be written: No such file" in err
