"""Fabric manager and IMEX are found under every name their packages have had."""

from __future__ import annotations

from typing import Any

import pytest

from provision.node.observe import fabric
from provision.node.observe.files import ReadError

ALL = [
    f"fabric.{name}"
    for name in ("manager_package", "manager_version", "manager_held", "manager_matches_driver")
]


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "driver_loaded", lambda _attribute: "580.126.09")
    monkeypatch.setattr(fabric, "dnf_locks", lambda: ["nvidia-fabric-manager-0:580.126.09-1.el9.*"])


@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("nvidia-fabricmanager-580", "manager"),
        ("nvidia-fabricmanager", "manager"),
        ("nvidia-fabric-manager", "manager"),
        ("nvidia-imex-580", "imex"),
        ("nvidia-imex", "imex"),
        ("nvidia-fabricmanager-dev-580", None),
        ("nvidia-fabric-manager-devel", None),
        ("nvidia-driver-cuda", None),
    ],
)
def test_names(package: str, program: str | None) -> None:
    assert fabric.fabric_program(package) == program


@pytest.mark.parametrize(
    ("installed", "version", "held", "matches"),
    [
        ({"nvidia-fabricmanager-580": ("580.126.09-1", True)}, "580.126.09-1", True, True),
        ({"nvidia-fabricmanager-580": ("580.95.05-1", True)}, "580.95.05-1", True, False),
        (
            {"nvidia-fabricmanager-580": ("580.126.09-0ubuntu0.24.04.1", False)},
            "580.126.09-0ubuntu0.24.04.1",
            False,
            True,
        ),
        # A transitional package beside the one it stands for, and two that differ.
        (
            {"nvidia-fabricmanager": ("1-1", True), "nvidia-fabricmanager-590": ("1-1", False)},
            "1-1",
            False,
            False,
        ),
        (
            {"nvidia-fabricmanager": ("2-1", True), "nvidia-fabricmanager-590": ("1-1", True)},
            "1-1, 2-1",
            True,
            False,
        ),
        ({"nvidia-imex": ("580.126.09-1", True)}, None, False, False),
        ({}, None, False, False),
    ],
)
def test_what_is_installed(installed: Any, version: Any, held: bool, matches: bool) -> None:
    facts = fabric.fabric_facts(ALL, installed)
    assert facts["fabric.manager_version"] == version
    assert facts["fabric.manager_held"] is held
    assert facts["fabric.manager_matches_driver"] is matches
    names = ", ".join(sorted(name for name in installed if "imex" not in name))
    assert facts["fabric.manager_package"] == (names or None)


def test_no_driver_matches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "driver_loaded", lambda _attribute: None)
    facts = fabric.fabric_facts(ALL, {"nvidia-fabricmanager": ("580.126.09-1", True)})
    assert facts["fabric.manager_matches_driver"] is False
    assert fabric.fabric_facts(ALL, {})["fabric.manager_matches_driver"] is False


def test_rpm() -> None:
    text = (
        "nvidia-fabric-manager|(none)|580.126.09-1.el9\nnvidia-fabric-manager-devel|(none)|580.126.09-1.el9\n"
    )
    facts = fabric.parse_rpm_fabric(ALL, text)
    assert facts["fabric.manager_version"] == "580.126.09-1.el9"
    assert facts["fabric.manager_matches_driver"] is True
    assert fabric.parse_rpm_fabric(ALL, "")["fabric.manager_version"] is None
    with pytest.raises(ReadError, match="rpm answered"):
        fabric.parse_rpm_fabric(ALL, "error: cannot open Packages database\n")


def test_dpkg(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"status": "installed", "version": "580.126.09-1", "held": True}
    known = {
        "nvidia-fabricmanager-580": whole,
        "nvidia-fabricmanager-570": {**whole, "status": "config-files"},
    }
    monkeypatch.setattr(fabric, "dpkg_database", lambda: dict.fromkeys((*known, "nvidia-utils", "bash")))
    monkeypatch.setattr(fabric, "dpkg_packages", lambda names: {name: known[name] for name in names})
    facts = fabric.dpkg_fabric(ALL)
    assert facts["fabric.manager_package"] == "nvidia-fabricmanager-580"
    assert facts["fabric.manager_held"] is True
