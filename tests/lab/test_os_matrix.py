"""Every operating system that the roles support: `up` from bare, `up` again, check mode, drift.

Debian is Debian. Ubuntu and the RHEL family are Debian trees with their identity, the latter with a real dnf,
rpm, module streams and versionlock; lab/README.md states what that proves and what it does not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.releases import RELEASES
from gpuprov_lab.spec import NodeSpec
from provision.desired.role import all_roles
from provision.desired.skus import all_skus
from provision.errors import ExitCode
from tests.lab.lab_nodes import Lab, LabNode, running_lab

ROOT = Path(__file__).resolve().parents[2]
LINES = {
    "apt": {"debian12": "l40s", "debian13": "h100-sxm", "ubuntu2204": "b200", "ubuntu2404": "h100-sxm"},
    "dnf": {"rhel8": "b200", "rhel9": "h100-sxm", "rhel10": "l40s"},
    "apt-amd": {"debian12": "mi250x", "debian13": "mi300x", "ubuntu2204": "mi300x", "ubuntu2404": "mi250x"},
    "dnf-amd": {"rhel8": "mi250x", "rhel9": "mi300x", "rhel10": "mi300x"},
}
DRIVER = "580.126.09"
AMDS_DRIVER = "6.16.13"
DECLARED = ("--set", "gpu_metrics_enabled=true")  # off by default
# AMD offers its container toolkit only for RHEL 9.
NOT_OFFERED = {"dnf-amd": "amd_container_toolkit"}
pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]


class Fleet:
    """The nodes of one package manager, with gpuprov run on all of them."""

    def __init__(self, lab: Lab, folder: Path, line: str) -> None:
        self.lab = lab
        self.runs = folder
        self.vendor = "amd" if line.endswith("-amd") else "nvidia"
        self.without = NOT_OFFERED.get(line, "")
        self.declared = (*DECLARED, *(("--set", f"{self.without}_enabled=false") if self.without else ()))

    def gpuprov(self, verb: str, *options: str) -> tuple[int, str, list[dict[str, Any]]]:
        """Run gpuprov; return exit code, output, and the run's events."""
        before = set(self.runs.glob("*"))
        done = subprocess.run(
            [sys.executable, "-m", "provision.cli", verb, str(self.lab.inventory), *self.declared, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(self.runs)},
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
        files = [run / "events.jsonl" for run in set(self.runs.glob("*")) - before]
        lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
        return done.returncode, done.stdout + done.stderr, [json.loads(line) for line in lines]


def kinds(events: list[dict[str, Any]], kind: str) -> list[str]:
    return [
        f"{event['node']} · {event['role']} · {event['task']}" for event in events if event["kind"] == kind
    ]


def not_run(fleet: Fleet, events: list[dict[str, Any]]) -> list[str]:
    """Return the roles without an event on a node. Without a fabric, nvlink has nothing to observe."""
    ran = {(event["node"], event["role"]) for event in events}
    without = {node.name for node in fleet.lab.nodes if all_skus()[node.sku].fabric == "none"}
    theirs = [
        name
        for name, role in all_roles().items()
        if role.vendor in (None, fleet.vendor) and name != fleet.without
        # Roles that are off by default do nothing.
        if role.defaults[f"{name}_enabled"] is True or name == "gpu_metrics"
    ]
    wanted = {(node.name, role) for node in fleet.lab.nodes for role in theirs}
    return sorted(
        f"{role} on {node}" for node, role in wanted - ran if role != "nvlink" or node not in without
    )


@pytest.fixture(scope="module", params=sorted(LINES))
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    wanted = tuple(NodeSpec(release, sku, release) for release, sku in LINES[request.param].items())
    folder = tmp_path_factory.mktemp(request.param)
    with running_lab(f"os-{request.param}", wanted, folder / "lab.yml") as lab:
        (folder / "runs").mkdir()
        yield Fleet(lab, folder / "runs", request.param)


@pytest.fixture(scope="module")
def looked(fleet: Fleet) -> tuple[int, str, list[dict[str, Any]]]:
    """Run check mode on bare nodes, and assert that it writes nothing."""
    marks = {node.name: node.run("sudo touch /run/before; ls /etc").stdout for node in fleet.lab.nodes}
    answer = fleet.gpuprov("up", "--check")
    for node in fleet.lab.nodes:
        changed = node.run("sudo find /etc /usr /opt -newer /run/before -type f ! -name '*.pyc'").stdout
        assert not changed.strip(), f"check mode wrote on {node.name}: {changed}"
        assert node.run("ls /etc").stdout == marks[node.name]
    return answer


@pytest.fixture(scope="module")
def declared(fleet: Fleet, looked: Any) -> Fleet:
    """Run `gpuprov up` on the nodes."""
    del looked  # requested first: check mode needs bare nodes
    status, output, _ = fleet.gpuprov("up")
    assert status == ExitCode.OK, output
    return fleet


def test_check_mode_of_bare_nodes_fails_nowhere_and_names_changes(fleet: Fleet, looked: Any) -> None:
    _, output, events = looked
    assert kinds(events, "failed") == [], output
    would = Counter(line.partition(" · ")[0] for line in kinds(events, "changed"))
    assert set(would) == {node.name for node in fleet.lab.nodes}, output


def test_the_second_up_finds_nothing_to_do(declared: Fleet) -> None:
    status, output, events = declared.gpuprov("up")
    assert status == ExitCode.OK, output
    assert events == [], output


def test_every_role_again_changes_nothing(declared: Fleet) -> None:
    status, output, events = declared.gpuprov("up", "--full")
    assert status == ExitCode.OK, output
    assert kinds(events, "changed") == []
    assert not_run(declared, events) == []


def test_check_mode_of_nodes_that_match_is_clean(declared: Fleet) -> None:
    _, output, events = declared.gpuprov("up", "--full", "--check")
    assert not_run(declared, events) == [], output
    assert kinds(events, "changed") + kinds(events, "failed") == [], output


def test_nothing_has_drifted(declared: Fleet) -> None:
    status, output, _ = declared.gpuprov("drift")
    assert status == ExitCode.OK, output


def test_the_driver_is_one_and_held(declared: Fleet) -> None:
    for node in declared.lab.nodes:
        if declared.vendor == "amd":
            told = node.run("cat /sys/module/amdgpu/version; sudo /usr/sbin/modinfo -F version amdgpu").stdout
            assert told.split() == [AMDS_DRIVER] * 2, node.name
            assert "GPU: 0" in node.run("sudo /opt/rocm/bin/amd-smi list").stdout, node.name
            assert holds(node), node.name
            continue
        loaded = node.run("cat /proc/driver/nvidia/version").stdout
        assert f" {DRIVER} " in loaded, node.name
        assert node.run("sudo /usr/sbin/modinfo -F version nvidia").stdout.strip() == DRIVER, node.name
        assert f"Driver Version: {DRIVER}" in node.run("nvidia-smi").stdout, node.name
        assert holds(node), node.name


def holds(node: LabNode) -> bool:
    """Whether the package manager itself refuses to move the driver."""
    if not RELEASES[node.release].dnf:
        moved = node.run("sudo apt-get --simulate dist-upgrade").stdout
        return not re.search(r"^(Inst|Remv) \S*(nvidia|nccl|cuda|amdgpu|rocm|rccl)", moved, re.MULTILINE)
    refused = node.run("sudo dnf --assumeno upgrade", check=False)
    return "Nothing to do." in refused.stdout + refused.stderr


def test_the_real_rpm_accepts_what_was_installed(declared: Fleet) -> None:
    """The real rpm reads the lab's packages, and the real dnf its streams."""
    for node in declared.lab.nodes:
        if not RELEASES[node.release].dnf:
            continue
        major = RELEASES[node.release].major
        start, part = f"kmod-nvidia-open-dkms-{DRIVER}-1.el{major}.", "nvidia-driver-cuda"
        if declared.vendor == "amd":
            start, part = f"amdgpu-dkms-{AMDS_DRIVER}.", "amdgpu-dkms-firmware"
        (name,) = (one for one in node.run("rpm -qa").stdout.split() if one.startswith(start))
        assert node.run(f"rpm --verify --nodeps {name}").stdout == "", "every file as packed"
        signed = node.run(f"rpm -q --qf '%{{SIGPGP:pgpsig}}%{{DSAHEADER:pgpsig}}' {part}").stdout
        assert "Key ID" in signed
        if declared.vendor == "amd":
            continue
        streams = node.run("sudo dnf --quiet module list --enabled", check=False).stdout
        assert ("580-open [e]" in streams) is (major in ("8", "9")), streams


def test_every_line_is_one_the_roles_name(fleet: Fleet) -> None:
    for node in fleet.lab.nodes:
        os_release = dict(
            line.split("=", 1) for line in node.run("cat /etc/os-release").stdout.splitlines() if "=" in line
        )
        os_id, version = (os_release[key].strip('"') for key in ("ID", "VERSION_ID"))
        short = version.partition(".")[0] if RELEASES[node.release].dnf else version
        for role in all_roles().values():
            if role.name in NOT_OFFERED.values() and RELEASES[node.release].dnf:
                continue
            if role.name in ("monitoring", "receptor"):  # for hosts of other groups
                continue
            assert (os_id, short) in {(one, number) for one, _family, number in role.releases()}, role.name
