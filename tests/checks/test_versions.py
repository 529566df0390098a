"""Tests of versions: components that must match and do not, and harmless differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provision.checks.host import versions
from provision.checks.judge import Finding, Verdict
from tests.support.checks import make_node

DRIVER = "580.126.09"
FACTS: dict[str, Any] = {
    **{"boot.required": False, "kernel.release": "6.12.107+deb13-amd64"},
    **{"driver.loaded_version": DRIVER, "driver.userspace_version": DRIVER},
    **{"driver.flavour": "open", "driver.mismatch": None},
    **{"fabric.manager_version": f"{DRIVER}-1", "fabric.manager_matches_driver": True},
    **{"fabric.imex_version": None, "fabric.imex_matches_driver": False, "service.nvidia-imex.active": None},
    **{"firmware.gpu_vbios": ["96.00.89.00.01"] * 8, "firmware.gpu_gsp": [DRIVER] * 8},
    **{"firmware.bios_version": "2.1", "firmware.system": "Supermicro X", "firmware.rdma": []},
}
IMEX = {"fabric.imex_version": f"{DRIVER}-1", "fabric.imex_matches_driver": True}
ACTIVE = {**IMEX, "service.nvidia-imex.active": "active"}


def judge(
    facts: Mapping[str, Any] | None = None, unread: tuple[str, ...] = (), fabric: str = "nvswitch"
) -> list[Finding]:
    """Judge a healthy node with changed or unread facts."""

    known = {name: value for name, value in {**FACTS, **(facts or {})}.items() if name not in unread}
    node = replace(make_node(fabric=fabric), facts=known, problems=dict.fromkeys(unread, "permission denied"))
    assert not versions.commands(node, {}), "nothing runs for it"
    return versions.judge(node, versions.parse(node, {}), {})


def told(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.verdict.value, f.metric, f.action) for f in findings if f.verdict is not Verdict.PASS]


def test_one_version_everywhere_passes() -> None:
    assert [f.verdict for f in judge()] == [Verdict.PASS]


@pytest.mark.parametrize(
    ("facts", "fabric"),
    [
        ({"fabric.manager_version": None, "fabric.manager_matches_driver": False}, "nvswitch"),
        ({"fabric.manager_version": "570.86.15-1", "fabric.manager_matches_driver": False}, "none"),
        ({"driver.loaded_version": None, "fabric.manager_matches_driver": False}, "nvswitch"),
        (ACTIVE, "imex"),
        ({"fabric.imex_version": "570.86.15-1"}, "nvswitch"),
    ],
    ids=["a guest has none", "no switches", "no driver to differ from", "imex", "imex not needed"],
)
def test_what_only_looks_apart(facts: Mapping[str, Any], fabric: str) -> None:
    assert told(judge(facts, fabric=fabric)) == []


@pytest.mark.parametrize(
    ("facts", "fabric", "expected"),
    [
        (
            {"driver.mismatch": "module 570.124.06, library 580.126.09"},
            "nvswitch",
            ("fail", "driver_mismatch", "reboot"),
        ),
        (  # only the library was upgraded: the next boot loads the old module again
            {"driver.mismatch": "module 570.124.06, library 580.126.09", "boot.required": True}
            | {"driver.userspace_version": "580.126.09", "driver.installed_version": "570.124.06"},
            "nvswitch",
            ("fail", "driver_mismatch", "fix configuration"),
        ),
        (
            {"driver.mismatch": "module 570.124.06, library 580.126.09", "boot.required": True},
            "none",
            ("warn", "driver_mismatch", "reboot"),
        ),
        (
            {"fabric.manager_version": "580.95.05-1", "fabric.manager_matches_driver": False},
            "nvswitch",
            ("fail", "manager_version", "fix configuration"),
        ),
        (
            {
                "fabric.manager_version": "580.126.09-1",
                "fabric.manager_matches_driver": False,
                "boot.required": True,
            },
            "nvlink5",
            ("warn", "manager_version", "reboot"),
        ),
        (
            {**IMEX, "fabric.imex_matches_driver": False},
            "imex",
            ("fail", "imex_version", "fix configuration"),
        ),
        (
            {**IMEX, "service.nvidia-imex.active": "failed"},
            "imex",
            ("fail", "imex_state", "fix configuration"),
        ),
        (IMEX, "imex", ("fail", "imex_state", "fix configuration")),
        ({}, "imex", ("warn", "imex_version", "fix configuration")),
    ],
)
def test_each_difference(facts: Mapping[str, Any], fabric: str, expected: tuple[str, str, str]) -> None:
    assert told(judge(facts, fabric=fabric)) == [expected]


@pytest.mark.parametrize(
    "name", ["driver.mismatch", "fabric.manager_version", "fabric.manager_matches_driver"]
)
def test_what_could_not_be_read_is_an_error(name: str) -> None:
    (finding,) = judge(unread=(name,))
    assert finding.verdict is Verdict.ERROR
    assert "permission denied" in finding.message


def test_firmware_that_could_not_be_read_is_said_and_no_fault() -> None:
    skipped, passed = judge(unread=("firmware.rdma", "firmware.bios_version"))
    assert (skipped.verdict, passed.verdict) == (Verdict.SKIP, Verdict.PASS)
    assert "firmware.rdma" in skipped.message
    assert "firmware.bios_version" in skipped.message
