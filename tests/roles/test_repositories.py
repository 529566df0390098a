"""Source of NVIDIA's packages for each operating system and architecture, and the trusted key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.roles import promises
from tests.support import described

CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
TOOLKIT = "https://nvidia.github.io/libnvidia-container/stable"
DEBIAN_12, DEBIAN_13, RHEL = (
    "EB693B3035CD5710E231E123A4B469963BF863CC",
    "02182E60104FCDC26EAE1B8597A5D4CB8793F200",
    "610C7B14E068A878070DA4E99CD0A493D42D0685",
)
PLACES = {
    ("debian 12", "x86_64"): (f"{CUDA}/debian12/x86_64", f"{TOOLKIT}/deb/amd64", DEBIAN_12),
    ("debian 13", "aarch64"): (f"{CUDA}/debian13/sbsa", f"{TOOLKIT}/deb/arm64", DEBIAN_13),
    ("ubuntu 22.04", "x86_64"): (f"{CUDA}/ubuntu2204/x86_64", f"{TOOLKIT}/deb/amd64", DEBIAN_12),
    ("ubuntu 24.04", "aarch64"): (f"{CUDA}/ubuntu2404/sbsa", f"{TOOLKIT}/deb/arm64", DEBIAN_12),
    ("rhel 8.10", "x86_64"): (f"{CUDA}/rhel8/x86_64", f"{TOOLKIT}/rpm/x86_64", RHEL),
    ("rhel 9.6", "aarch64"): (f"{CUDA}/rhel9/sbsa", f"{TOOLKIT}/rpm/aarch64", RHEL),
    ("rocky 9", "x86_64"): (f"{CUDA}/rhel9/x86_64", f"{TOOLKIT}/rpm/x86_64", RHEL),
    ("almalinux 9.6", "x86_64"): (f"{CUDA}/rhel9/x86_64", f"{TOOLKIT}/rpm/x86_64", RHEL),
    ("rhel 10.0", "x86_64"): (f"{CUDA}/rhel10/x86_64", f"{TOOLKIT}/rpm/x86_64", ""),
}


def promised(system: str, arch: str = "x86_64", **declared: Any) -> dict[str, Any]:
    node = described.machine(system, arch)
    return promises.values(promises.promised(node, gpuprov_roles=["nvidia_repository"], **declared))


@pytest.mark.parametrize("where", PLACES, ids="-".join)
def test_packages_come_from_nvidias_folder_for_the_system_and_are_checked(where: tuple[str, str]) -> None:
    cuda, toolkit, fingerprint = PLACES[where]
    facts = promised(*where)
    if where[0].startswith(("debian", "ubuntu")):
        for name, url in (("nvidia-cuda", cuda), ("nvidia-container-toolkit", toolkit)):
            content = facts[f"file./etc/apt/sources.list.d/{name}.sources.content"]
            assert f"URIs: {url}/\n" in content
            assert f"Signed-By: /usr/share/keyrings/{name}.gpg" in content
        assert facts["pgp_key./usr/share/keyrings/nvidia-cuda.gpg.fingerprints"] == [fingerprint]
        return
    content = facts["file./etc/yum.repos.d/nvidia-cuda.repo.content"]
    assert f"baseurl={cuda}/\n" in content
    assert "\ngpgcheck=1\n" in content
    assert "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-cuda" in content
    content = facts["file./etc/yum.repos.d/nvidia-container-toolkit.repo.content"]
    assert f"baseurl={toolkit}/\n" in content
    assert "\nrepo_gpgcheck=1\n" in content, "its packages are not signed, its index is"
    assert facts["pgp_key./etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-cuda.fingerprints"] == [fingerprint]


def test_no_file_of_the_other_package_manager_is_promised() -> None:
    assert not [fact for fact in promised("rhel 9.6") if "/etc/apt" in fact]
    assert not [fact for fact in promised("ubuntu 24.04") if "yum" in fact or "rpm-gpg" in fact]


def test_a_mirror_takes_the_place_of_nvidias() -> None:
    facts = promised("rhel 9.6", nvidia_repository_cuda_url="http://mirror.example/cuda9/")
    assert "baseurl=http://mirror.example/cuda9/\n" in facts["file./etc/yum.repos.d/nvidia-cuda.repo.content"]
