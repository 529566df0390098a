"""Pins of the role package_lock, as parsed by the version-selecting module and by apt."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from provision.desired import expectations, lockfile, stack
from provision.desired.lockfile import Group, Lock
from provision.fleet import Node
from tests.support import modules
from tests.support.commands import ran
from tests.support.described import machine

PACKAGES = {"libnccl2": "2.29.7-1+cuda12.9", "libibverbs1": "1:56.1-1~deb13u1"}


@pytest.fixture(scope="module")
def offered() -> ModuleType:
    return modules.load("gpuprov_packages")


def pins(system: str = "debian 13") -> tuple[str, str]:
    """Return the path and content of the role's pins on such a machine."""
    described: dict[str, Any] = machine(system, sku="h100-sxm")
    group = Group(*lockfile.place_of(described)[:2], ("h100-sxm",), "a", PACKAGES)
    given = {lockfile.VARIABLE: Lock("", {}, (group,)).variable, "gpuprov_roles": [lockfile.ROLE]}
    for each in expectations.of_node(stack.declared(Node("a", (), given), {}), described):
        if each.operator == "template":
            return each.fact.removeprefix("file.").removesuffix(".content"), each.value
    raise AssertionError("the role promises no file")


@pytest.mark.parametrize("system", ["debian 13", "rocky 9.4"], ids=["apt", "dnf"])
def test_every_role_that_asks_for_a_version_gets_the_locked_one_first(
    offered: ModuleType, tmp_path: Path, system: str
) -> None:
    path, text = pins(system)
    file = tmp_path / path.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    locks = offered.pinned(str(tmp_path))
    assert locks == PACKAGES
    there = {"libnccl2": ["2.30-1", "2.29.7-1+cuda13.2", "2.29.7-1+cuda12.9"], "mft": ["4-2", "4-1"]}
    first = offered.pinned_first(there, locks)
    assert first == {"libnccl2": ["2.29.7-1+cuda12.9", "2.30-1", "2.29.7-1+cuda13.2"], "mft": ["4-2", "4-1"]}
    assert offered.choose(first["libnccl2"], "") == "2.29.7-1+cuda12.9"
    assert offered.choose(first["libnccl2"], "2.30") == "2.30-1", "a role's own exact wish stays"


def test_without_a_lock_the_newest_comes_first(offered: ModuleType, tmp_path: Path) -> None:
    assert offered.pinned(str(tmp_path)) == {}
    assert offered.pinned_first({"mft": ["4-2", "4-1"]}, {}) == {"mft": ["4-2", "4-1"]}


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="apt is not installed")
def test_apt_understands_the_pins(tmp_path: Path) -> None:
    """apt-cache policy prints the priority of each version."""
    file = tmp_path / "pins"
    file.write_text(pins()[1])
    (tmp_path / "none").mkdir()
    status = tmp_path / "status"
    form = "Package: {}\nStatus: install ok installed\nArchitecture: all\nMaintainer: x\nVersion: {}\n\n"
    there = {**PACKAGES, "mft": "4-1"}
    status.write_text("".join(form.format(name, version) for name, version in there.items()))
    options = {
        "Dir::Etc::preferences": file,
        "Dir::Etc::preferencesparts": tmp_path / "none",
        "Dir::State::status": status,
        "Dir::Cache": tmp_path,
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    said = ran(["apt-cache", "policy", *words, *there], check=True, env={**os.environ, "LC_ALL": "C"})
    assert said.stderr == ""
    for version in PACKAGES.values():
        assert f"*** {version} 1002\n" in said.stdout, said.stdout
    assert "*** 4-1 100\n" in said.stdout
