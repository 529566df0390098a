"""Impossible combinations are refused, possible ones are not; a refusal says why and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired import compatibility, stack
from provision.fleet import Node


def declared(**variables: Any) -> dict[str, Any]:
    return stack.declared(Node("gpu-01", (), variables), {})


def machine(**gpu: Any) -> dict[str, Any]:
    return {
        "os": {
            "id": "debian",
            "version_id": "13",
            "codename": "trixie",
            "family": "debian",
            "arch": "x86_64",
        },
        "kernel": {"release": "6.12.0"},
        "gpu": {
            "sku": "h100-sxm",
            "count": 8,
            "architecture": "hopper",
            "fabric": "nvswitch",
            "pci_ids": ["10de:2330"],
            **gpu,
        },
    }


@pytest.mark.parametrize("name", stack.available())
def test_every_shipped_stack_is_possible(name: str) -> None:
    assert compatibility.check_declared(declared(gpuprov_stack=name), "gpu-01") == []
    assert compatibility.check_node(declared(gpuprov_stack=name), machine(), "gpu-01") == []


@pytest.mark.parametrize(
    ("variables", "rule", "words"),
    [
        ({"nvidia_driver_version": 580}, "driver-version-format", "580 is not a version"),
        ({"nvidia_driver_version": "580."}, "driver-version-format", "'580.' is not a version"),
        ({"nvidia_driver_version": "585"}, "driver-branch-exists", "no driver branch 585"),
        (
            {"nvidia_driver_version": "570", "gpuprov_stack": "r580-cuda13.0"},
            "cuda-driver-floor",
            "needs driver 580.65.06 or newer, not 570",
        ),
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
        (
            {"nvidia_driver_version": "570.124.06", "gpuprov_stack": "r580-cuda13.0"},
            "cuda-driver-floor",
            "needs driver 580.65.06 or newer",
        ),
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
    variables = declared(nvidia_driver_version=version)
    assert compatibility.check_declared(variables, "gpu-01") == []
    assert [each.rule for each in compatibility.check_node(variables, machine(), "gpu-01")] == [
        "driver-version-format"
    ]


@pytest.mark.parametrize(
    ("variables", "gpu", "rule", "words"),
    [
        ({}, {"count": 0, "sku": None, "architecture": None}, "no-gpu", "no NVIDIA GPU"),
        (
            {"gpuprov_stack": "r580-cuda13.0"},
            {"sku": None, "architecture": "volta"},
            "toolkit-dropped-architecture",
            "volta",
        ),
        (
            {"nvidia_driver_flavour": "proprietary"},
            {"sku": "b200", "architecture": "blackwell"},
            "driver-flavour",
            "open",
        ),
        (
            {"nvidia_driver_flavour": "open"},
            {"sku": None, "architecture": "volta"},
            "driver-flavour",
            "proprietary",
        ),
        ({"nvidia_driver_flavour": "proprietary"}, {"sku": "gh200"}, "gh200-open-module", "open"),
        (
            {
                "cuda_toolkit_version": "12.6",
                "nvidia_driver_version": "560.35.05",
                "nccl_version": "2.29.7-1+cuda12.6",
            },
            {"sku": "b200", "architecture": "blackwell"},
            "toolkit-for-architecture",
            "b200 needs CUDA toolkit 12.8",
        ),
        (
            {"gpuprov_stack": "r595-cuda13.2"},
            {"sku": None, "architecture": "volta"},
            "driver-dropped-architecture",
            "590",
        ),
        (
            {"nvidia_driver_version": "595", "gpuprov_roles": ["nvidia_driver"]},
            {"sku": None, "architecture": "volta"},
            "driver-dropped-architecture",
            "590",
        ),
        (
            {"nvidia_driver_version": "550", "gpuprov_roles": ["nvidia_driver"]},
            {"sku": "b200", "architecture": "blackwell"},
            "driver-for-architecture",
            "b200 needs driver 570.26 or newer",
        ),
        ({"nvidia_driver_modules": "prebuilt"}, {}, "driver-prebuilt-modules", "built and signed on debian"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(
    variables: dict[str, Any], gpu: dict[str, Any], rule: str, words: str
) -> None:
    refusals = compatibility.check_node(declared(**variables), machine(**gpu), "gpu-07")
    refusal = next(each for each in refusals if each.rule == rule)
    assert words in refusal.what
    assert refusal.what.startswith("gpu-07: ")


def test_a_release_no_role_knows_is_refused() -> None:
    node = machine()
    node["os"] = {**node["os"], "id": "ubuntu", "version_id": "20.04"}
    (refusal,) = compatibility.check_node(declared(), node, "gpu-01")
    assert refusal.rule == "supported-release"
    assert "ubuntu 20.04" in refusal.what
    assert "debian 13" in refusal.fix


def on(os_id: str, family: str, version: str) -> dict[str, Any]:
    node = machine()
    node["os"] = {**node["os"], "id": os_id, "family": family, "version_id": version}
    return node


def test_a_branch_is_as_new_as_its_newest_release() -> None:
    variables = declared(nvidia_driver_version="570", gpuprov_roles=["nvidia_driver"])
    assert compatibility.check_node(variables, machine(sku="b200", architecture="blackwell"), "gpu-01") == []


def test_the_distributions_driver_is_for_distributions_that_have_one() -> None:
    variables = declared(nvidia_driver_source="distribution", gpuprov_roles=["nvidia_driver"])
    refusals = compatibility.check_node(variables, on("rocky", "redhat", "9.4"), "gpu-01")
    refusal = next(each for each in refusals if each.rule == "driver-source")
    assert "own archive on rocky" in refusal.what
    assert "nvidia_driver_source: repository" in refusal.fix
    for os_id in ("debian", "ubuntu"):
        refusals = compatibility.check_node(variables, on(os_id, "debian", "13"), "gpu-01")
        assert "driver-source" not in {each.rule for each in refusals}


def test_prebuilt_modules_are_ubuntus_and_come_from_its_archive() -> None:
    variables = {"nvidia_driver_modules": "prebuilt", "gpuprov_roles": ["nvidia_driver"]}
    ubuntu = on("ubuntu", "debian", "24.04")
    refusals = compatibility.check_node(declared(**variables), ubuntu, "gpu-01")
    refusal = next(each for each in refusals if each.rule == "driver-prebuilt-modules")
    assert "nvidia_driver_source: distribution" in refusal.fix
    variables["nvidia_driver_source"] = "distribution"
    refusals = compatibility.check_node(declared(**variables), ubuntu, "gpu-01")
    assert "driver-prebuilt-modules" not in {each.rule for each in refusals}


def test_a_machine_without_gpus_on_purpose_is_let_be() -> None:
    without = machine(count=0, sku=None, architecture=None, pci_ids=[])
    assert compatibility.check_node(declared(nvidia_driver_require_gpu=False), without, "gpu-01") == []
