"""The path from network cards to GPU memory: the rule, over all machines and declarations."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired import compatibility
from tests.roles.promises import promised
from tests.support.described import machine

FILE = "file./etc/modules-load.d/gpuprov-gpudirect-rdma.conf.content"
MODULE = "module.nvidia_peermem.loaded"
DOCA = {"rdma_source": "doca", "rdma_doca_key_fingerprint": "AB" * 20}


def node(architecture: str = "hopper", kernel: str = "6.12.107+deb13-amd64") -> dict[str, Any]:
    return {**machine(architecture=architecture), "kernel": {"release": "4.18.0", "boot_release": kernel}}


def uses_peermem(gpuprov_node: dict[str, Any], **declared: Any) -> bool:
    facts = promised(gpuprov_node, **declared)
    assert (MODULE in facts) is (facts[FILE].value is not None)
    return MODULE in facts


@pytest.mark.parametrize(
    ("architecture", "kernel", "declared", "peermem"),
    [
        ("hopper", "6.12.107+deb13-amd64", {}, False),
        ("hopper", "6.12.107+deb13-amd64", DOCA, False),
        ("turing", "5.12.0", DOCA, False),
        ("hopper", "5.11.22", DOCA, True),
        ("hopper", "5.4.0-200-generic", DOCA, True),
        ("hopper", "6.8.0", {**DOCA, "nvidia_driver_flavour": "proprietary"}, True),
        ("hopper", "6.8.0", {**DOCA, "nvidia_driver_version": "510.108.03"}, True),
        ("hopper", "6.8.0", {**DOCA, "cuda_toolkit_version": "11.6"}, True),
        ("hopper", "6.8.0", {**DOCA, "cuda_toolkit_version": "11.8"}, False),
        ("volta", "6.8.0", DOCA, True),
        ("volta", "6.8.0", {}, False),
        ("volta", "6.8.0", {**DOCA, "rdma_enabled": False}, False),
        ("hopper", "5.4.0", {**DOCA, "gpudirect_rdma_method": "none"}, False),
        ("hopper", "6.8.0", {**DOCA, "gpudirect_rdma_method": "peermem"}, True),
    ],
)
def test_the_way_follows_from_driver_kernel_cuda_gpu_and_stack(
    architecture: str, kernel: str, declared: dict[str, Any], peermem: bool
) -> None:
    assert uses_peermem(node(architecture, kernel), **declared) is peermem


def refusals(gpuprov_node: dict[str, Any], **declared: Any) -> list[str]:
    found = compatibility.check_node(declared, gpuprov_node, "gpu-01")
    return [f"{each.what} | {each.fix}" for each in found if each.rule == "gpudirect-rdma-method"]


@pytest.mark.parametrize(
    ("gpuprov_node", "declared", "words"),
    [
        (node(), {"nvidia_driver_flavour": "proprietary"}, ["dmabuf cannot work", "open one does"]),
        (node("volta"), {}, ["older than Turing"]),
        (node(kernel="5.4.0"), {}, ["kernel 5.4 is older than 5.12"]),
        (node(), {"gpudirect_rdma_method": "peermem"}, ["peermem cannot work", "rdma_source to doca"]),
    ],
)
def test_a_way_that_is_not_open_is_refused_before_the_node_is_touched(
    gpuprov_node: dict[str, Any], declared: dict[str, Any], words: list[str]
) -> None:
    said = refusals(gpuprov_node, **{"gpudirect_rdma_method": "dmabuf", **declared})
    assert len(said) == 1
    assert said[0].startswith("gpu-01: ")
    for word in [*words, "set gpudirect_rdma_method to auto"]:
        assert word in said[0]


@pytest.mark.parametrize(
    "declared",
    [
        {"gpudirect_rdma_method": "auto"},
        {"gpudirect_rdma_enabled": False},
        {"gpuprov_roles": ["nvidia_driver"]},
    ],
)
def test_nobody_is_refused_who_did_not_ask(declared: dict[str, Any]) -> None:
    assert refusals(node("volta"), **{"gpudirect_rdma_method": "dmabuf", **declared}) == []
