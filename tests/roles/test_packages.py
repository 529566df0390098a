"""The lab's packages cover every shipped stack, and another version to upgrade from or to."""

from __future__ import annotations

import re

import pytest

from gpuprov_lab.packages import read_packages
from gpuprov_lab.places import PACKAGES
from provision import paths
from provision.desired import expectations, stack
from tests.support.described import machine

KERNEL = "6.12.107+deb13-amd64"
STACKS = sorted(file.stem for file in (paths.DATA / "stacks").glob("*.yml"))


@pytest.fixture(scope="module")
def offered() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for debs in read_packages(PACKAGES, KERNEL).values():
        for deb in debs:
            found.setdefault(deb.control["Package"], set()).add(deb.control["Version"])
    return found


# Debian's own packages; cuda-keyring is expected to be absent.
FROM_DEBIAN = {
    *("libibumad3", "infiniband-diags", "rdma-core", "ibverbs-utils", "perftest", "chrony", "cuda-keyring")
}


def upstream(version: str) -> str:
    return version.split(":")[-1].rsplit("-", 1)[0]


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("architecture", ["hopper", "volta"])
def test_every_promised_package_version_is_offered(
    offered: dict[str, set[str]], name: str, architecture: str
) -> None:
    node = machine(architecture=architecture, fabric="nvlink5")
    declared = {**stack.load(name).variables, "nvidia_repository_tools_url": "http://mirror.example/tools"}
    seen = 0
    for each in expectations.of_node(declared, node):
        match = re.fullmatch(r"package\.(.+)\.(version|status)", each.fact)
        if match is None or match[1] in FROM_DEBIAN:
            continue
        seen += 1
        versions = offered[match[1]]
        if match[2] == "version":
            assert each.value in versions | {upstream(version) for version in versions}, each.fact
    assert seen > 20


@pytest.mark.parametrize("name", [name for name in STACKS if name.startswith("amdgpu")])
def test_every_package_promised_for_amds_gpus_is_offered(offered: dict[str, set[str]], name: str) -> None:
    node = machine("ubuntu 24.04", vendor="amd", architecture="cdna3", fabric="none")
    declared = {**stack.load(name).variables, "gpuprov_roles": ["amdgpu_driver", "rocm", "rccl"]}
    seen = 0
    for each in expectations.of_node(declared, node):
        match = re.fullmatch(r"package\.(.+)\.version", each.fact)
        if match is not None:
            seen += 1
            assert any(map(each.holds, offered[match[1]])), each.fact
    assert seen == 7


def test_each_driver_branch_has_its_fabric_manager(offered: dict[str, set[str]]) -> None:
    managers = {
        v for name, found in offered.items() if name.startswith("nvidia-fabricmanager") for v in found
    }
    assert managers == offered["nvidia-driver-cuda"]
    assert len({upstream(version).split(".")[0] for version in managers}) >= 4


def test_dependencies_inside_the_repositories_can_be_met() -> None:
    debs = [deb for found in read_packages(PACKAGES, KERNEL).values() for deb in found]
    names = {deb.control["Package"] for deb in debs}
    exact = {(deb.control["Package"], deb.control["Version"]) for deb in debs}
    for deb in debs:
        for wish in filter(None, (part.strip() for part in deb.control["Depends"].split(","))):
            name, version = re.fullmatch(r"(\S+)(?: \(\S+ (\S+)\))?", wish).groups()  # type: ignore[union-attr]
            if name in FROM_DEBIAN:
                continue
            assert name in names, f"{deb.control['Package']}: {wish}"
            if "(= " in wish:
                assert (name, version) in exact, f"{deb.control['Package']}: {wish}"
