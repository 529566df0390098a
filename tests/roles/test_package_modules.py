"""Our modules that ask the package manager and hold packages, against stand-ins for apt and dpkg on PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision import paths

MADISON = """\
nvidia-driver-cuda | 595.71.05-1 | http://10.0.0.1/cuda  Packages
nvidia-driver-cuda | 580.126.09-1 | http://10.0.0.1/cuda  Packages
nvidia-driver-cuda | 580.126.09-1 | http://10.0.0.2/mirror  Packages
  libnccl2 | 2.29.7-1+cuda13.2 | http://10.0.0.1/cuda  Packages
  libnccl2 | 2.29.7-1+cuda12.9 | http://10.0.0.1/cuda  Packages
  libnccl2 | 2.18.5-1-2 | http://deb.example/debian trixie/non-free amd64 Packages
  libnccl2 | 2.18.5-1-2 | http://deb.example/debian trixie/non-free Sources
"""
STATUS = """\
libcuda1 amd64 install installed 580.126.09-1
libnvidia-ml1 amd64 hold installed 580.126.09-1
libnvidia-ml1 i386 install installed 580.126.09-1
nvidia-container-toolkit amd64 install installed 1.19.1-1
nvidia-driver-cuda amd64 hold installed 580.126.09-1
nvidia-kernel-open-dkms amd64 install half-configured 580.126.09-1
nvidia-settings amd64 deinstall config-files 550.163.01-1
unknown amd64 unknown not-installed
"""


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()

    def program(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}')
        file.chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.folder / f"{name}.txt").write_text(text)
        self.program(name, f"cat {self.folder}/{name}.txt\n")

    def ran(self) -> list[str]:
        return self.log.read_text().splitlines()

    def run(self, module: str, check: bool = False, **arguments: Any) -> dict[str, Any]:
        program = (
            "import json, runpy, sys\n"
            "from ansible.module_utils import basic\n"
            "basic._ANSIBLE_ARGS = json.dumps({'ANSIBLE_MODULE_ARGS': json.loads(sys.argv[2])}).encode()\n"
            "basic._ANSIBLE_PROFILE = 'legacy'\n"
            "runpy.run_path(sys.argv[1], run_name='__main__')\n"
        )
        told = json.dumps({**arguments, "_ansible_check_mode": check})
        done = subprocess.run(
            [sys.executable, "-c", program, str(paths.MODULES / f"{module}.py"), told],
            env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.says("apt-cache", MADISON)
    found.says("apt-get", "")
    found.says("dpkg-query", STATUS)
    found.says("apt-mark", "")
    return found


WHOLE = "nvidia-driver-cuda installed 580.126.09-1\nlibnccl2 installed 2.29.7-1+cuda12.9\n"


def test_what_is_installed_as_wanted_is_not_looked_up(node: Node) -> None:
    node.says("dpkg-query", WHOLE)
    wanted = {"nvidia-driver-cuda": "580.126.09", "libnccl2": ""}
    answer = node.run("gpuprov_offered", packages=wanted)
    assert answer["satisfied"] is True
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert not [line for line in node.ran() if line.startswith("apt")]


@pytest.mark.parametrize("state", ["half-configured", "unpacked", "config-files"])
def test_a_package_that_is_not_whole_does_not_satisfy(node: Node, state: str) -> None:
    node.says("dpkg-query", WHOLE.replace("installed", state, 1))
    answer = node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "580.126.09"})
    assert answer["satisfied"] is False
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1"}


def test_another_version_is_said_beside_the_one_to_install(node: Node) -> None:
    node.says("dpkg-query", WHOLE)
    answer = node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "595.71.05", "libnccl2": ""})
    assert answer["satisfied"] is False
    assert answer["installed"]["nvidia-driver-cuda"] == "580.126.09-1"
    assert answer["versions"] == {"nvidia-driver-cuda": "595.71.05-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert answer["missing"] == []


def test_a_version_is_found_with_or_without_its_revision(node: Node) -> None:
    answer = node.run(
        "gpuprov_offered", packages={"nvidia-driver-cuda": "580.126.09", "libnccl2": "2.29.7-1+cuda12.9"}
    )
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert answer["missing"] == []
    assert answer["changed"] is False
    assert not [line for line in node.ran() if line.startswith("apt-get")], "no refresh without need"


def test_any_version_is_the_first_choice(node: Node) -> None:
    assert node.run("gpuprov_offered", packages={"libnccl2": ""})["versions"] == {
        "libnccl2": "2.29.7-1+cuda13.2"
    }


def test_a_version_that_only_starts_alike_is_another(node: Node) -> None:
    answer = node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "580.126.0"})
    assert answer["versions"] == {}


def test_what_is_missing_is_said_with_what_is_there_after_one_refresh(node: Node) -> None:
    answer = node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "999.1", "no-such-package": ""})
    assert (
        answer["missing"]
        == [
            "No repository offers the package no-such-package.",
            "nvidia-driver-cuda 999.1 is not offered; offered are: 595.71.05-1, 580.126.09-1.",
        ]
        or answer["missing"]
        == [
            "No repository offers the package no-such-package.",
            "nvidia-driver-cuda 999.1 is not offered; offered are: 595.71.05-1, 580.126.09-1.",
        ][::-1]
    )
    assert answer["known"] is True
    assert [line for line in node.ran() if line.startswith("apt-get")] == ["apt-get -q update"]


def test_a_refresh_that_brings_the_version_is_enough(node: Node) -> None:
    node.says("apt-cache", "")
    node.program("apt-get", f"echo '{MADISON}' > {node.folder}/apt-cache.txt\n")
    answer = node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "595.71.05"})
    assert answer["missing"] == []


def test_check_mode_does_not_refresh(node: Node) -> None:
    node.says("apt-cache", "")
    answer = node.run("gpuprov_offered", check=True, packages={"nvidia-driver-cuda": "595.71.05"})
    assert answer["known"] is False
    assert answer["missing"] == ["No repository offers the package nvidia-driver-cuda."]
    assert not [line for line in node.ran() if line.startswith("apt-get")]


def test_a_refresh_that_fails_is_named(node: Node) -> None:
    node.program("apt-get", "echo 'E: Release file is expired' >&2; exit 100\n")
    answer = node.run("gpuprov_offered", packages={"absent": "1"})
    assert answer["failed"] is True
    assert "Release file is expired" in answer["msg"]


def test_holding_marks_what_is_not_held_in_one_call(node: Node) -> None:
    answer = node.run("gpuprov_hold", packages=["libcuda1", "nvidia-driver-cuda", "libnvidia-ml1"])
    assert answer["marked"] == ["libcuda1", "libnvidia-ml1"], "held for one of two architectures is not held"
    assert node.ran()[-1] == "apt-mark hold libcuda1 libnvidia-ml1"


def test_patterns_take_only_packages_of_the_version(node: Node) -> None:
    answer = node.run("gpuprov_hold", patterns=["*nvidia*"], version="580.126.09")
    assert answer["marked"] == ["libnvidia-ml1", "nvidia-kernel-open-dkms"], (
        "the container toolkit is not the driver"
    )


def test_what_is_held_already_is_no_change(node: Node) -> None:
    answer = node.run("gpuprov_hold", packages=["nvidia-driver-cuda"])
    assert answer["changed"] is False
    assert not [line for line in node.ran() if line.startswith("apt-mark")]


def test_letting_go_is_the_reverse(node: Node) -> None:
    answer = node.run("gpuprov_hold", packages=["libcuda1", "nvidia-driver-cuda", "absent"], held=False)
    assert answer["marked"] == ["nvidia-driver-cuda"]
    assert node.ran()[-1] == "apt-mark unhold nvidia-driver-cuda"


def test_what_is_not_installed_cannot_be_held(node: Node) -> None:
    answer = node.run("gpuprov_hold", packages=["absent", "nvidia-settings"])
    assert answer["failed"] is True
    assert "absent, nvidia-settings" in answer["msg"]


def test_check_mode_expects_what_an_earlier_task_would_install(node: Node) -> None:
    answer = node.run("gpuprov_hold", check=True, packages=["absent", "libcuda1"])
    assert answer["marked"] == ["absent", "libcuda1"]
    assert not [line for line in node.ran() if line.startswith("apt-mark")]


def test_a_refusal_of_apt_mark_is_named(node: Node) -> None:
    node.program("apt-mark", "echo 'E: No such package' >&2; exit 100\n")
    answer = node.run("gpuprov_hold", packages=["libcuda1"])
    assert answer["failed"] is True
    assert "No such package" in answer["msg"]


def test_a_branch_is_the_newest_of_it_that_is_offered_and_then_what_is_installed(node: Node) -> None:
    node.says("dpkg-query", "")
    node.says("apt-cache", MADISON)
    chosen = node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "580.*"})
    assert chosen["versions"] == {"nvidia-driver-cuda": "580.126.09-1"}
    node.says("dpkg-query", "nvidia-driver-cuda installed 580.95.05-1\n")
    assert node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "580.*"})["satisfied"]
    assert not node.run("gpuprov_offered", packages={"nvidia-driver-cuda": "58.*"})["satisfied"]


def test_versions_count_only_from_the_repositories_asked_for(node: Node) -> None:
    node.says("dpkg-query", "")
    node.says("apt-cache", MADISON)
    node.says("apt-get", "")
    from_debian = node.run("gpuprov_offered", packages={"libnccl2": ""}, origin=r" \S+/non-free ")
    assert from_debian["versions"] == {"libnccl2": "2.18.5-1-2"}
    from_vendor = node.run(
        "gpuprov_offered", packages={"libnccl2": "2.18.5-1"}, origin=r"^(?!.* \S+/non-free )"
    )
    assert from_vendor["missing"] == [
        "libnccl2 2.18.5-1 is not offered; offered are: 2.29.7-1+cuda13.2, 2.29.7-1+cuda12.9."
    ]
