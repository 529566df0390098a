"""The driver's packages, pins and variants on each distribution, as the controller renders them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provision.desired.expectations import renderer_for
from provision.desired.role import all_roles
from tests.support import described

KERNEL = "6.8.0-45-generic"


def machine(release: str, **gpu: Any) -> dict[str, Any]:
    kernel = {"release": "6.8.0-31-generic", "boot_release": KERNEL}
    return {**described.machine(release, **{"sku": "h100-sxm", **gpu}), "kernel": kernel}


def own(name: str, node: dict[str, Any], **declared: Any) -> Any:
    renderer = renderer_for(all_roles()["nvidia_driver"], declared, node)
    return renderer.value("{{ __nvidia_driver_" + name + " }}")


def words(name: str, release: str, **declared: Any) -> set[str]:
    return set(own(name, machine(release), **declared))


@pytest.mark.parametrize(
    ("release", "declared", "expected"),
    [
        ("debian 13", {}, {"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libnvidia-ml1"}),
        ("debian 12", {"nvidia_driver_flavour": "proprietary"}, {"nvidia-driver-cuda", "nvidia-kernel-dkms"}),
        (
            "debian 13",
            {"nvidia_driver_source": "distribution", "nvidia_driver_version": "550"},
            {
                "nvidia-open-kernel-dkms",
                "nvidia-open-kernel-support",
                "nvidia-smi",
                "libcuda1",
                "libnvidia-ml1",
            },
        ),
        (
            "debian 13",
            {"nvidia_driver_source": "distribution", "nvidia_driver_flavour": "proprietary"},
            {"nvidia-kernel-dkms", "nvidia-kernel-support", "nvidia-smi"},
        ),
        (
            "ubuntu 22.04",
            {"nvidia_driver_version": "580.126.09"},
            {"libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580", "nvidia-compute-utils-580"},
        ),
        (
            "ubuntu 24.04",
            {"nvidia_driver_version": "590", "nvidia_driver_flavour": "proprietary"},
            {"libnvidia-compute", "nvidia-dkms", "nvidia-utils", "nvidia-compute-utils"},
        ),
        (
            "ubuntu 24.04",
            {"nvidia_driver_source": "distribution", "nvidia_driver_version": "580"},
            {"nvidia-headless-580-server-open", "nvidia-dkms-580-server-open", "nvidia-utils-580-server"},
        ),
        (
            "ubuntu 24.04",
            {
                "nvidia_driver_source": "distribution",
                "nvidia_driver_version": "595",
                "nvidia_driver_modules": "prebuilt",
                "nvidia_driver_flavour": "proprietary",
            },
            {"nvidia-headless-no-dkms-595-server", "nvidia-utils-595-server"},
        ),
        ("rocky 9.4", {}, {"nvidia-driver-cuda", "kmod-nvidia-open-dkms"}),
        (
            "rhel 10",
            {"nvidia_driver_flavour": "proprietary"},
            {"nvidia-driver-cuda", "kmod-nvidia-latest-dkms"},
        ),
    ],
)
def test_packages_have_the_names_of_their_distribution_and_source(
    release: str, declared: dict[str, Any], expected: set[str]
) -> None:
    packages = words("packages", release, **declared)
    assert expected <= packages
    other = words("other_flavour", release, **declared)
    assert not packages & other
    assert not [name for name in packages if "dkms" in name and ("open" in name) == ("open" in min(other))]


def test_modules_that_canonical_signed_follow_the_flavour_of_the_kernel_that_will_boot() -> None:
    prebuilt = {"nvidia_driver_source": "distribution", "nvidia_driver_modules": "prebuilt"}
    companions = words("companions", "ubuntu 24.04", nvidia_driver_version="580", **prebuilt)
    assert companions == {"linux-modules-nvidia-580-server-open-generic"}
    assert not [
        name
        for name in words("packages", "ubuntu 24.04", **prebuilt)
        if "-dkms-" in name and "no-" not in name
    ]


@pytest.mark.parametrize(
    ("release", "declared", "stream"),
    [
        ("rocky 8", {"nvidia_driver_version": "580"}, "580-open"),
        (
            "rhel 9.4",
            {"nvidia_driver_version": "580.126.09", "nvidia_driver_flavour": "proprietary"},
            "580-dkms",
        ),
        ("almalinux 10", {"nvidia_driver_version": "580"}, ""),
    ],
)
def test_rhel_8_and_9_choose_the_branch_by_stream_and_10_has_none(
    release: str, declared: dict[str, Any], stream: str
) -> None:
    assert own("stream", machine(release), **declared) == stream


def test_the_pin_is_of_the_version_and_else_of_the_branch_and_nvidias_alone() -> None:
    pins = own("pinning", machine("debian 13"), nvidia_driver_version="580.95.05")
    assert pins == ["nvidia-driver-pinning-580.95.05", "nvidia-driver-pinning-580"]
    assert own("pinning", machine("ubuntu 24.04"), nvidia_driver_version="595") == [
        "nvidia-driver-pinning-595"
    ]
    assert own("pinning", machine("debian 13"), nvidia_driver_source="distribution") == []


@pytest.mark.parametrize("release", ["debian 13", "ubuntu 24.04", "rocky 9"])
@pytest.mark.parametrize(
    ("gpu", "flavour"),
    [
        ({"architecture": "volta", "sku": None}, "proprietary"),
        ({"architecture": "pascal", "sku": None}, "proprietary"),
        ({"architecture": "blackwell", "sku": "b200"}, "open"),
        ({"architecture": "blackwell-ultra", "sku": "b300"}, "open"),
        ({"architecture": "hopper", "sku": "gh200"}, "open"),
        ({"architecture": None, "sku": None}, "open"),
    ],
)
def test_the_flavour_is_what_the_gpus_can_use_on_every_distribution(
    release: str, gpu: dict[str, Any], flavour: str
) -> None:
    assert own("flavour", machine(release, **gpu)) == flavour


def test_who_can_use_only_one_flavour_is_not_told_to_try_the_other() -> None:
    hopper, blackwell = machine("debian 13"), machine("debian 13", architecture="blackwell", sku="b200")
    assert "nvidia_driver_flavour to proprietary" in own("choice", hopper)
    assert "nvidia_driver_flavour to open" in own("choice", hopper, nvidia_driver_flavour="proprietary")
    assert "nvidia_driver_flavour" not in own("choice", blackwell)


@pytest.mark.parametrize(
    ("release", "source", "package", "foreign"),
    [
        ("debian 13", "repository", "nvidia-open-kernel-dkms", True),
        ("debian 13", "repository", "nvidia-tesla-470-driver", True),
        ("debian 13", "repository", "nvidia-kernel-open-dkms", False),
        ("debian 13", "distribution", "nvidia-driver-cuda", True),
        ("debian 13", "distribution", "nvidia-driver-pinning-580", True),
        ("debian 13", "distribution", "nvidia-container-toolkit", False),
        ("debian 13", "distribution", "nvidia-smi", False),
        ("ubuntu 24.04", "repository", "nvidia-utils-580-server", True),
        ("ubuntu 24.04", "repository", "linux-modules-nvidia-580-server-open-6.8.0-45-generic", True),
        ("ubuntu 24.04", "repository", "nvidia-utils-580", False),
        ("ubuntu 24.04", "distribution", "nvidia-utils-580", True),
        ("ubuntu 24.04", "distribution", "nvidia-utils-580-server", False),
        ("ubuntu 24.04", "distribution", "libnvidia-compute", True),
        ("ubuntu 24.04", "distribution", "libnvidia-container1", False),
        ("rocky 9", "repository", "akmod-nvidia", True),
        ("rocky 9", "repository", "kmod-nvidia-open-dkms", False),
    ],
)
def test_packages_of_the_other_source_are_known_by_name(
    release: str, source: str, package: str, foreign: bool
) -> None:
    renderer = renderer_for(
        all_roles()["nvidia_driver"],
        {
            "nvidia_driver_source": source,
            "__nvidia_driver_before": {
                "programs": {"packages": {"stdout": f"installed {package} 1.2-3\ninstalled dpkg 1.22"}}
            },
        },
        machine(release),
    )
    assert renderer.value("{{ __nvidia_driver_foreign }}") == ([package] if foreign else [])


@pytest.mark.parametrize(
    ("release", "archive"),
    [
        ("debian 13", "http://deb.debian.org/debian trixie/non-free amd64 Packages"),
        ("ubuntu 24.04", "http://archive.ubuntu.com/ubuntu noble-updates/restricted amd64 Packages"),
    ],
)
def test_equal_names_are_told_apart_by_the_repository_they_come_from(release: str, archive: str) -> None:
    vendor = "http://mirror.example/cuda/repos/any/x86_64  Packages"
    mirror = "http://mirror.example/nvidia stable/main amd64 Packages"
    repository = own("origin", machine(release))
    assert re.search(repository, vendor)
    assert re.search(repository, mirror)
    assert not re.search(repository, archive)
    distribution = own("origin", machine(release), nvidia_driver_source="distribution")
    assert re.search(distribution, archive)
    assert not re.search(distribution, vendor)
