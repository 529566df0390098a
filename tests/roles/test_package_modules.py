"""Our modules that ask the package manager and hold packages, against stand-ins for apt and dpkg on PATH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import Host

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


class Node(Host):
    def offered(self, check: bool = False, **more: Any) -> dict[str, Any]:
        return self.module("gpuprov_offered", check, **more)

    def hold(self, check: bool = False, **more: Any) -> dict[str, Any]:
        return self.module("gpuprov_hold", check, **more)


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
    answer = node.offered(packages=wanted)
    assert answer["satisfied"] is True
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert not [line for line in node.ran() if line.startswith("apt")]


@pytest.mark.parametrize("state", ["half-configured", "unpacked", "config-files"])
def test_a_package_that_is_not_whole_does_not_satisfy(node: Node, state: str) -> None:
    node.says("dpkg-query", WHOLE.replace("installed", state, 1))
    answer = node.offered(packages={"nvidia-driver-cuda": "580.126.09"})
    assert answer["satisfied"] is False
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1"}


def test_another_version_is_said_beside_the_one_to_install(node: Node) -> None:
    node.says("dpkg-query", WHOLE)
    answer = node.offered(packages={"nvidia-driver-cuda": "595.71.05", "libnccl2": ""})
    assert answer["satisfied"] is False
    assert answer["installed"]["nvidia-driver-cuda"] == "580.126.09-1"
    assert answer["versions"] == {"nvidia-driver-cuda": "595.71.05-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert answer["missing"] == []


def test_a_version_is_found_with_or_without_its_revision(node: Node) -> None:
    answer = node.offered(packages={"nvidia-driver-cuda": "580.126.09", "libnccl2": "2.29.7-1+cuda12.9"})
    assert answer["versions"] == {"nvidia-driver-cuda": "580.126.09-1", "libnccl2": "2.29.7-1+cuda12.9"}
    assert answer["missing"] == []
    assert answer["changed"] is False
    assert node.ran("apt-get") == [], "no refresh without need"


@pytest.mark.parametrize(
    ("packages", "origin", "versions"),
    [
        ({"libnccl2": ""}, "", {"libnccl2": "2.29.7-1+cuda13.2"}),
        ({"libnccl2": ""}, r" \S+/non-free ", {"libnccl2": "2.18.5-1-2"}),
        ({"nvidia-driver-cuda": "580.126.0"}, "", {}),
        ({"nvidia-driver-cuda": "580.*"}, "", {"nvidia-driver-cuda": "580.126.09-1"}),
    ],
    ids=["the first", "the first of the repositories asked for", "one that only starts alike", "a branch"],
)
def test_the_version_that_is_chosen(
    node: Node, packages: dict[str, str], origin: str, versions: dict[str, str]
) -> None:
    node.says("dpkg-query", "")
    assert node.offered(packages=packages, origin=origin)["versions"] == versions


def test_what_is_missing_is_said_with_what_is_there_after_one_refresh(node: Node) -> None:
    answer = node.offered(packages={"nvidia-driver-cuda": "999.1", "no-such-package": ""})
    assert sorted(answer["missing"]) == [
        "No repository offers the package no-such-package.",
        "nvidia-driver-cuda 999.1 is not offered; offered are: 595.71.05-1, 580.126.09-1.",
    ]
    assert answer["known"] is True
    assert node.ran("apt-get") == ["apt-get -q update"]


def test_a_refresh_that_brings_the_version_is_enough(node: Node) -> None:
    node.says("apt-cache", "")
    node.program("apt-get", f"echo '{MADISON}' > {node.folder}/apt-cache.txt")
    answer = node.offered(packages={"nvidia-driver-cuda": "595.71.05"})
    assert answer["missing"] == []


def test_check_mode_does_not_refresh(node: Node) -> None:
    node.says("apt-cache", "")
    answer = node.offered(check=True, packages={"nvidia-driver-cuda": "595.71.05"})
    assert answer["known"] is False
    assert answer["missing"] == ["No repository offers the package nvidia-driver-cuda."]
    assert node.ran("apt-get") == []


@pytest.mark.parametrize(
    ("program", "module", "wanted", "said"),
    [
        ("apt-get", "gpuprov_offered", {"absent": "1"}, "Release file is expired"),
        ("apt-mark", "gpuprov_hold", ["libcuda1"], "No such package"),
    ],
)
def test_what_apt_refuses_is_named(node: Node, program: str, module: str, wanted: Any, said: str) -> None:
    node.says(program, f"E: {said}\n", status=100, stream=2)
    answer = node.module(module, packages=wanted)
    assert answer["failed"] is True
    assert said in answer["msg"]


def test_holding_marks_what_is_not_held_in_one_call(node: Node) -> None:
    answer = node.hold(packages=["libcuda1", "nvidia-driver-cuda", "libnvidia-ml1"])
    assert answer["marked"] == ["libcuda1", "libnvidia-ml1"], "held for one of two architectures is not held"
    assert node.ran()[-1] == "apt-mark hold libcuda1 libnvidia-ml1"


def test_patterns_take_only_packages_of_the_version(node: Node) -> None:
    answer = node.hold(patterns=["*nvidia*"], version="580.126.09")
    held = ["libnvidia-ml1", "nvidia-kernel-open-dkms"]
    assert answer["marked"] == held, "the container toolkit is not the driver"


def test_what_is_held_already_is_no_change(node: Node) -> None:
    assert node.hold(packages=["nvidia-driver-cuda"])["changed"] is False
    assert node.ran("apt-mark") == []


def test_letting_go_is_the_reverse(node: Node) -> None:
    answer = node.hold(packages=["libcuda1", "nvidia-driver-cuda", "absent"], held=False)
    assert answer["marked"] == ["nvidia-driver-cuda"]
    assert node.ran()[-1] == "apt-mark unhold nvidia-driver-cuda"


def test_what_is_not_installed_cannot_be_held(node: Node) -> None:
    answer = node.hold(packages=["absent", "nvidia-settings"])
    assert answer["failed"] is True
    assert "absent, nvidia-settings" in answer["msg"]


def test_check_mode_expects_what_an_earlier_task_would_install(node: Node) -> None:
    answer = node.hold(check=True, packages=["absent", "libcuda1"])
    assert answer["marked"] == ["absent", "libcuda1"]
    assert node.ran("apt-mark") == []


def test_an_installed_version_of_the_branch_satisfies(node: Node) -> None:
    node.says("dpkg-query", "nvidia-driver-cuda installed 580.95.05-1\n")
    assert node.offered(packages={"nvidia-driver-cuda": "580.*"})["satisfied"]
    assert not node.offered(packages={"nvidia-driver-cuda": "58.*"})["satisfied"]


def test_versions_count_only_from_the_repositories_asked_for(node: Node) -> None:
    node.says("dpkg-query", "")
    from_vendor = node.offered(packages={"libnccl2": "2.18.5-1"}, origin=r"^(?!.* \S+/non-free )")
    assert from_vendor["missing"] == [
        "libnccl2 2.18.5-1 is not offered; offered are: 2.29.7-1+cuda13.2, 2.29.7-1+cuda12.9."
    ]
