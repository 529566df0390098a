"""Combinations of versions: impossible ones are refused with reason and remedy, possible ones accepted."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired import compatibility, stack
from provision.desired.compatibility import Refusal
from provision.fleet import Node
from tests.support import described

VOLTA = {"sku": None, "architecture": "volta"}
B200 = {"sku": "b200", "architecture": "blackwell"}
CUDA13 = {"gpuprov_stack": "r580-cuda13.0"}
DRIVER_ALONE = {"gpuprov_roles": ["nvidia_driver"]}


def declared(**variables: Any) -> dict[str, Any]:
    return stack.declared(Node("gpu-01", (), variables), {})


def machine(system: str = "debian 13", **gpu: Any) -> dict[str, Any]:
    return described.machine(system, **{"sku": "h100-sxm", "pci_ids": ["10de:2330"], **gpu})


def refused(variables: dict[str, Any], node: dict[str, Any]) -> dict[str, Refusal]:
    """Return the refusals by rule."""
    refusals = compatibility.check_node(declared(**variables), node, "gpu-01")
    assert all(each.what.startswith("gpu-01: ") for each in refusals)
    return {each.rule: each for each in refusals}


@pytest.mark.parametrize("name", stack.available())
def test_every_shipped_stack_is_possible(name: str) -> None:
    assert compatibility.check_declared(declared(gpuprov_stack=name), "gpu-01") == []
    node = amd() if name.startswith("amdgpu") else machine()
    assert compatibility.check_node(declared(gpuprov_stack=name), node, "gpu-01") == []


@pytest.mark.parametrize(
    ("variables", "rule", "words"),
    [
        ({"nvidia_driver_version": 580}, "driver-version-format", "580 is not a version"),
        ({"nvidia_driver_version": "580."}, "driver-version-format", "'580.' is not a version"),
        ({"nvidia_driver_version": "585"}, "driver-branch-exists", "no driver branch 585"),
        ({"nvidia_driver_version": "570", **CUDA13}, "cuda-driver-floor", "580.65.06 or newer, not 570"),
        (
            {"nvidia_driver_version": "620.10.01", "nvidia_driver_flavour": "proprietary"},
            "driver-flavour-of-branch",
            "ended before 620",
        ),
        ({"nvidia_driver_version": 580.126}, "driver-version-format", "580.126"),
        ({"nccl_version": "NCCL-3.7"}, "nccl-version-format", "NCCL-3.7"),
        ({"nccl_version": "2.29.7"}, "nccl-version-format", "2.29.7"),
        ({"cuda_toolkit_version": 12.9}, "cuda-version-format", "12.9"),
        (
            {"nvidia_driver_version": "560.61.02", "cuda_toolkit_version": "12.2"},
            "driver-branch-exists",
            "560.35.05",
        ),
        ({"nvidia_driver_version": "585.10.01"}, "driver-branch-exists", "no driver branch 585"),
        ({"cuda_toolkit_version": "12.7"}, "cuda-release-exists", "no release 12.7"),
        ({"cuda_toolkit_version": "13.0"}, "nccl-cuda-major", "built for CUDA 12.9"),
        ({"nvidia_driver_version": "570.124.06", **CUDA13}, "cuda-driver-floor", "driver 580.65.06 or newer"),
        ({"nvidia_driver_version": "520.61.05"}, "nccl-driver-floor", "525.60.13"),
        ({"nvlink_version": "580.95.05"}, "fabric-manager-version", "must equal nvidia_driver_version"),
    ],
)
def test_what_is_impossible_anywhere_is_refused(variables: dict[str, Any], rule: str, words: str) -> None:
    refusals = compatibility.check_declared(declared(**variables), "gpu-01")
    refusal = next(each for each in refusals if each.rule == rule)
    assert words in refusal.what
    assert refusal.what.startswith("gpu-01: ")
    assert refusal.fix
    assert refusal.source


@pytest.mark.parametrize(
    "variables",
    [
        {"nvidia_driver_version": "{{ my_version }}", "my_version": "580.126.09"},
        {"nvidia_driver_version": "{{ '580.126.09' if gpuprov_node.gpu.count else '1' }}"},
        {"nvidia_driver_version": "700.10.02"},
        {"cuda_toolkit_version": "13.9", "nccl_version": "2.40.1-1+cuda13.9"},
        {"nccl_enabled": False, "nccl_version": "NCCL-3.7"},
        {"gpuprov_roles": ["nvidia_driver"], "nccl_version": "NCCL-3.7", "cuda_toolkit_version": "12.7"},
        {"nvidia_driver_version": "525.60.13"},
        {"nvidia_driver_version": "580", "gpuprov_stack": "r580-cuda13.0"},
        {"nvidia_driver_version": "525"},
        {"nvidia_driver_version": "610.43.02", "nvidia_driver_flavour": "proprietary"},
        {"nvidia_driver_version": "620.10.01", "nvidia_driver_flavour": "auto"},
    ],
    ids=str,
)
def test_what_is_possible_or_not_known_yet_is_not_refused(variables: dict[str, Any]) -> None:
    assert compatibility.check_declared(declared(**variables), "gpu-01") == []


def test_a_version_that_depends_on_the_machine_is_judged_on_the_machine() -> None:
    version = "{{ '580.' if gpuprov_node.gpu.count == 8 else '580.126.09' }}"
    assert compatibility.check_declared(declared(nvidia_driver_version=version), "gpu-01") == []
    assert list(refused({"nvidia_driver_version": version}, machine())) == ["driver-version-format"]


@pytest.mark.parametrize(
    ("variables", "gpu", "rule", "words"),
    [
        ({}, {"count": 0, "sku": None, "architecture": None}, "no-gpu", "no NVIDIA GPU"),
        ({"gpuprov_stack": "r580-cuda13.0"}, VOLTA, "toolkit-dropped-architecture", "volta"),
        ({"nvidia_driver_flavour": "proprietary"}, B200, "driver-flavour", "open"),
        ({"nvidia_driver_flavour": "open"}, VOLTA, "driver-flavour", "proprietary"),
        ({"nvidia_driver_flavour": "proprietary"}, {"sku": "gh200"}, "gh200-open-module", "open"),
        (
            {"nvidia_driver_version": "560.35.05", "nccl_version": "2.29.7-1+cuda12.6"}
            | {"cuda_toolkit_version": "12.6"},
            B200,
            "toolkit-for-architecture",
            "b200 needs CUDA toolkit 12.8",
        ),
        ({"gpuprov_stack": "r595-cuda13.2"}, VOLTA, "driver-dropped-architecture", "590"),
        ({"nvidia_driver_version": "595", **DRIVER_ALONE}, VOLTA, "driver-dropped-architecture", "590"),
        (
            {"nvidia_driver_version": "550", **DRIVER_ALONE},
            B200,
            "driver-for-architecture",
            "b200 needs driver 570.26 or newer",
        ),
        ({"nvidia_driver_modules": "prebuilt"}, {}, "driver-prebuilt-modules", "built and signed on debian"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(
    variables: dict[str, Any], gpu: dict[str, Any], rule: str, words: str
) -> None:
    assert words in refused(variables, machine(**gpu))[rule].what


def test_a_release_no_role_knows_is_refused() -> None:
    ((rule, refusal),) = refused({}, machine("ubuntu 20.04")).items()
    assert rule == "supported-release"
    assert "ubuntu 20.04" in refusal.what
    assert "debian 13" in refusal.fix


def test_a_branch_is_as_new_as_its_newest_release() -> None:
    assert refused({"nvidia_driver_version": "570", **DRIVER_ALONE}, machine(**B200)) == {}


def test_the_distributions_driver_is_for_distributions_that_have_one() -> None:
    variables = {"nvidia_driver_source": "distribution", **DRIVER_ALONE}
    refusal = refused(variables, machine("rocky 9.4"))["driver-source"]
    assert "own archive on rocky" in refusal.what
    assert "nvidia_driver_source: repository" in refusal.fix
    for system in ("debian 13", "ubuntu 13"):
        assert "driver-source" not in refused(variables, machine(system))


def test_prebuilt_modules_are_ubuntus_and_come_from_its_archive() -> None:
    variables = {"nvidia_driver_modules": "prebuilt", **DRIVER_ALONE}
    refusal = refused(variables, machine("ubuntu 24.04"))["driver-prebuilt-modules"]
    assert "nvidia_driver_source: distribution" in refusal.fix
    variables["nvidia_driver_source"] = "distribution"
    assert "driver-prebuilt-modules" not in refused(variables, machine("ubuntu 24.04"))


def test_a_machine_without_gpus_on_purpose_is_let_be() -> None:
    without = machine(count=0, sku=None, architecture=None, pci_ids=[])
    assert refused({"nvidia_driver_require_gpu": False}, without) == {}


ALL_OF_IT = "nvidia_driver, nvlink, gpu_settings, container_toolkit"


@pytest.mark.parametrize(
    ("variables", "twice"),
    [
        ({}, ""),
        ({"gpuprov_gpu_operator": "absent"}, ""),
        ({"gpuprov_gpu_operator": "without_driver"}, ""),
        ({"gpuprov_gpu_operator": "with_driver"}, ALL_OF_IT),
        ({"gpuprov_gpu_operator": "with_driver", "nvlink_enabled": False}, ALL_OF_IT.replace("nvlink, ", "")),
        (
            {"gpuprov_gpu_operator": "with_driver", "gpuprov_roles": ["container_toolkit"]},
            "container_toolkit",
        ),
        ({"gpuprov_gpu_operator": "with_driver", "gpuprov_roles": ["host_settings", "rdma"]}, ""),
    ],
)
def test_driver_and_toolkit_have_one_owner(variables: dict[str, Any], twice: str) -> None:
    """These follow from declared variables alone, before any node is contacted."""
    found = {each.rule: each for each in compatibility.check_declared(declared(**variables), "gpu-01")}
    assert ("gpu-operator-driver" in found) == bool(twice)
    if twice:
        assert found["gpu-operator-driver"].what.endswith(f"and so would {twice}")


def amd(kernel: str = "6.12.107", **gpu: Any) -> dict[str, Any]:
    known = {"vendor": "amd", "sku": "mi300x", "architecture": "cdna3", "fabric": "none"}
    return machine(**{**known, **gpu}) | {"kernel": {"release": kernel, "boot_release": kernel}}


@pytest.mark.parametrize(
    ("variables", "rule", "words"),
    [
        ({"amdgpu_driver_version": "580.126.09"}, "amdgpu-version-format", "'580.126.09' is not a version"),
        ({"rocm_version": "7.2"}, "rocm-version-format", "'7.2' is not a version"),
        ({"rocm_versions": ["7.2.3", "6.5.0"]}, "rocm-release-exists", "no release 6.5.0"),
        ({"rocm_version": "7.13.0"}, "rocm-packaging", "amdrocm-..."),
        ({"rocm_version": "6.2.4"}, "rocm-for-driver", "30.30.3, which runs 6.3, 6.4, 7.0, 7.1, 7.2"),
        ({"rocm_versions": ["7.2.3", "6.1.3"]}, "rocm-for-driver", "ROCm 6.1.3 is not supported"),
        ({"amdgpu_driver_version": "6.3.3"}, "rocm-for-driver", "ROCm 7.2.3 is not supported"),
    ],
)
def test_what_is_impossible_with_amds_versions_is_refused(
    variables: dict[str, Any], rule: str, words: str
) -> None:
    (refusal,) = (
        each for each in compatibility.check_declared(declared(**variables), "x") if each.rule == rule
    )
    assert words in refusal.what


@pytest.mark.parametrize(
    "variables",
    [
        {"rocm_versions": ["6.4.4", "7.2.3"]},
        {"amdgpu_driver_version": "6.4.4", "rocm_version": "7.0.2"},
        {"amdgpu_driver_version": "32.10.1"},  # newer than any known release
        {"rocm_version": "7.3.0"},
        {"amdgpu_driver_source": "inbox", "rocm_version": "6.2.4"},
        {"gpuprov_roles": ["nvidia_driver"], "rocm_version": "7"},
    ],
    ids=str,
)
def test_what_is_possible_with_amds_versions_is_not_refused(variables: dict[str, Any]) -> None:
    assert compatibility.check_declared(declared(**variables), "x") == []


@pytest.mark.parametrize(
    ("variables", "node", "rule"),
    [
        ({"gpuprov_stack": "amdgpu6.4-rocm6.4"}, amd(architecture="cdna4"), "rocm-for-architecture"),
        ({"amdgpu_driver_version": "6.4.4"}, amd(architecture="cdna4"), "amdgpu-for-architecture"),
        ({"amdgpu_driver_version": "6.4.4"}, amd("6.14.0-29-generic"), "amdgpu-for-kernel"),
        ({}, amd("7.0.0-22-generic"), "amdgpu-for-kernel"),
    ],
)
def test_what_amds_gpus_or_the_kernel_forbid(
    variables: dict[str, Any], node: dict[str, Any], rule: str
) -> None:
    assert rule in refused(variables, node)


def test_the_kernels_own_driver_is_not_judged_by_the_kernel() -> None:
    assert refused({"amdgpu_driver_source": "inbox"}, amd("7.0.0-22-generic")) == {}
    assert refused({}, amd("6.17.0-20-generic")) == {}
