"""Facts about fabric manager and IMEX, under all names that their packages have had."""

from __future__ import annotations

import time
from typing import Any

import pytest

from provision.node.observe import fabric
from provision.node.observe.files import ReadError
from tests.node.machine import Tree

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
        # A transitional package next to its successor, and two that differ.
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


# --- logs

HEAD = "[ERROR] [tid 841] "
SWITCH = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"


def stamp(ago: float) -> str:
    return time.strftime("[%b %d %Y %H:%M:%S] ", time.localtime(time.time() - ago))


def manager_log(tree: Tree, text: str, uptime: float = 3600) -> list[dict[str, Any]]:
    tree.file("/proc/uptime", f"{uptime} 1.0\n")
    tree.file("/var/log/fabricmanager.log", text)
    rows: list[dict[str, Any]] = tree.value("fabric.manager_log")
    return rows


def test_no_log_is_null_and_an_empty_one_is_empty(tree: Tree) -> None:
    assert tree.values("fabric.manager_log", "fabric.imex_log") == {
        "fabric.manager_log": None,
        "fabric.imex_log": None,
    }
    assert manager_log(tree, "") == []


def test_the_lines_of_this_boot_that_are_no_information_and_those_that_end_a_fault(tree: Tree) -> None:
    ready = "Successfully configured all the available NVSwitches to route GPU NVLink traffic."
    lines = [
        stamp(7200) + HEAD + "of the boot before",
        stamp(50) + HEAD + SWITCH,
        stamp(40) + f"[INFO] [tid 1] {ready}",
        stamp(40) + "[INFO] [tid 1] multicast group 0 is allocated.",
        "Message payload details:Team release request: Team Handle:99c9f23d49236386 Flags:0",
        "",
        stamp(30) + "[ERROR] [tid 9] " + SWITCH,
        "[Foo 99 2026 99:99:99] [ERROR] [tid 9] no time",
        stamp(20) + HEAD + "failed to find the GPU handle 10187860174420860981 in the multicast team",
        stamp(10) + HEAD + "failed to find the GPU handle 5410063385821516767 in the multicast team",
        stamp(5)[:9],  # an incomplete line
    ]
    first, second, third = manager_log(tree, "\n".join(lines))
    assert (first["line"], first["count"]) == (ready, 1)
    assert (second["line"], second["count"], second["last"] - second["first"]) == (SWITCH, 2, 20)
    assert (third["line"].split()[6], third["count"]) == ("5410063385821516767", 2)


def test_of_a_large_log_the_end_is_read(tree: Tree) -> None:
    noise = stamp(60) + "[INFO] [tid 1803] Received an inband message: " + "x" * 200 + "\n"
    text = stamp(70) + HEAD + "long ago\n" + noise * (fabric.LOG_TAIL // len(noise) + 1)
    (row,) = manager_log(tree, text + stamp(1) + HEAD + SWITCH + "\n")
    assert row["line"] == SWITCH


def test_the_latest_kinds_of_lines_are_kept(tree: Tree) -> None:
    lines = [stamp(30) + HEAD + f"trouble of port {number}" for number in range(fabric.LOG_ROWS + 50)]
    rows = manager_log(tree, "\n".join(lines))
    assert [rows[0]["line"], rows[-1]["line"], len(rows)] == [
        "trouble of port 50",
        "trouble of port 149",
        100,
    ]


def test_a_log_that_is_no_file_is_a_problem(tree: Tree) -> None:
    tree.file("/var/log/fabricmanager.log/inside", "")
    _, problems = tree.ask("fabric.manager_log")
    assert problems == {"fabric.manager_log": "not a regular file"}
