"""Tests of rdma_loopback and nccl_network on AMD GPU nodes, with messages from perftest's source.
Files: src/rocm_memory.c, src/perftest_parameters.c and src/perftest_resources.c at 00b55b6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding, Verdict
from provision.checks.network import rdma_loopback as nvidias
from provision.checks.vendors.amd import rccl, rdma_loopback
from tests.checks import amd_node
from tests.checks.amd_node import ADDRESSES
from tests.support.pair_nodes import printed

CARDS = {f"mlx5_{n}": f"0000:{int(at[5:7], 16) + 1:02x}:00.0" for n, at in enumerate(ADDRESSES)}
PEERS = "file./sys/kernel/mm/memory_peers/amdkfd/version.exists"
UNIQUE = [f"DC9128F4A1B2C3D{n}" for n in range(8)]


def node_with(**more: Any) -> CheckNode:
    known = amd_node.facts()
    for one, unique in zip(known["amdgpu.devices"], UNIQUE, strict=True):
        one["unique_id"] = unique.lower()
    known["rdma.ports"] = [
        {
            "device": name,
            "port": "1",
            "state": "ACTIVE",
            "rate": 400,
            "link_layer": "InfiniBand",
            "netdev": None,
        }
        for name in CARDS
    ]
    known["firmware.rdma"] = [
        {"device": name, "address": address, "board_id": "MT_1"} for name, address in CARDS.items()
    ]
    return amd_node.node_of({**known, **more}).check_node


NODE = node_with()


def used(gpu: int) -> str:
    bus = ADDRESSES[gpu].split(":")[1]
    return (
        f"Using ROCm Device with ID: 0, Name: AMD Instinct MI300X, PCI Bus ID: {int(bus, 16):#x}, "
        "GCN Arch: gfx942:sramecc+:xnack-\nallocated 67108864 bytes of GPU buffer at 0x7f2a40000000\n"
    )


def measured(node: CheckNode = NODE, /, **other: Mapping[str, Any]) -> dict[str, Output]:
    """Return the outputs of a healthy node; keywords such as `mlx5_3_gpu` replace fields of one output."""
    outputs = {}
    for command in rdma_loopback.commands(node, {}):
        device = command.name.partition(".")[0]
        text = printed(392.1, device)
        if command.name.endswith(".gpu"):
            text = used(int(device[5:])) + text
        plain = Output(command.name, command.argv, 0, text, "", 1.0, beside=command.beside)
        outputs[command.name] = replace(plain, **other.get(command.name.replace(".", "_"), {}))
    return outputs


def judge(node: CheckNode, outputs: Mapping[str, Output]) -> list[Finding]:
    from provision.checks.thresholds import for_sku

    return rdma_loopback.judge(node, rdma_loopback.parse(node, outputs), for_sku(node.sku))


def said(findings: list[Finding]) -> set[tuple[str, str, str]]:
    return {(f.verdict.value, f.device, f.metric) for f in findings}


def test_the_gpu_beside_the_card_is_shown_alone_to_both_programs() -> None:
    commands = {one.name: one for one in rdma_loopback.commands(NODE, {})}
    for number in range(8):
        for name in (f"mlx5_{number}.gpu", f"mlx5_{number}.gpu.server"):
            argv, env = commands[name].argv, commands[name].env
            assert argv[argv.index("--use_rocm") + 1] == "0"
            assert env["ROCR_VISIBLE_DEVICES"] == f"GPU-{UNIQUE[number]}"
    assert not any("use_cuda" in word for one in commands.values() for word in one.argv)
    assert "ROCR_VISIBLE_DEVICES" not in commands["mlx5_0.host"].env


@pytest.mark.parametrize("strange", [None, "", "123", "GPU-1", 7, "z" * 16])
def test_a_gpu_without_a_unique_number_is_asked_for_by_its_place(strange: Any) -> None:
    node = node_with()
    node.facts["amdgpu.devices"][2]["unique_id"] = strange
    command = {one.name: one for one in rdma_loopback.commands(node, {})}["mlx5_2.gpu"]
    assert command.argv[command.argv.index("--use_rocm") + 1] == "2"
    assert "ROCR_VISIBLE_DEVICES" not in command.env


@pytest.mark.parametrize("peers", [True, False, None])
def test_dma_buf_is_asked_for_where_the_kernel_has_no_peer_memory(peers: bool | None) -> None:
    node = node_with(**{PEERS: peers})
    argv = {one.name: one.argv for one in rdma_loopback.commands(node, {})}["mlx5_0.gpu"]
    assert ("--use_rocm_dmabuf" in argv) is (peers is not True)
    assert PEERS in rdma_loopback.FACTS


def test_a_healthy_node_passes_from_the_memory_of_host_and_gpus() -> None:
    findings = judge(NODE, measured())
    assert said(findings) == {("pass", "node", "host_share"), ("pass", "node", "gpu_share")}
    assert {f.metric: f.value for f in findings} == {"host_share": 98.03, "gpu_share": 98.03}


def test_a_slow_way_to_a_gpu_fails_by_amds_minimum() -> None:
    slow = {"stdout": used(3) + printed(201.3, "mlx5_3")}
    (finding,) = [f for f in judge(NODE, measured(mlx5_3_gpu=slow)) if f.device == "mlx5_3"]
    assert (finding.verdict, finding.metric) == (Verdict.FAIL, "gpu_share")
    assert "201.3 of 400 Gb/s" in finding.message
    assert "390" in finding.source


UNSUPPORTED = {
    "rc": 1,
    "stdout": " Unsupported memory type\n",
    "stderr": " Parser function exited with Error\n",
}
UNKNOWN = {
    **{"rc": 1, "stdout": "Usage:\n"},
    "stderr": "ib_write_bw: unrecognized option '--use_rocm'\n Invalid Command or flag.\n",
}
NO_REGION = {
    **{"rc": 1, "stdout": used(0)},
    "stderr": "Couldn't allocate MR with error=14\nfailed to create mr\nFailed to create MR\n",
}
NO_CONFIG = {"rc": 1, "stdout": used(0), "stderr": "Failed to init memory\n Couldn't create IB resources\n"}


@pytest.mark.parametrize("answer", [UNSUPPORTED, UNKNOWN], ids=["of today", "from before ROCm"])
def test_perftest_without_rocm_is_a_skip_with_the_reason(answer: Mapping[str, Any]) -> None:
    findings = judge(NODE, measured(**{f"{name}_gpu": answer for name in CARDS}))
    (skip,) = [f for f in findings if f.verdict is Verdict.SKIP]
    assert (skip.device, skip.metric) == ("node", "gpu")
    assert skip.message.startswith("ib_write_bw was built without ROCm, or without its DMA-BUF")
    assert ("pass", "node", "host_share") in said(findings)


@pytest.mark.parametrize("answer", [NO_REGION, NO_CONFIG], ids=["no region", "kernel without P2PDMA"])
def test_gpu_memory_that_no_card_reaches_is_a_matter_of_the_kernel(answer: Mapping[str, Any]) -> None:
    findings = judge(NODE, measured(**{f"{name}_gpu": answer for name in CARDS}))
    (fail,) = [f for f in findings if f.verdict is Verdict.FAIL]
    assert (fail.device, fail.metric, fail.action) == ("node", "gpu", "fix configuration")
    assert "CONFIG_PCI_P2PDMA" in fail.message
    assert "nvidia" not in fail.message


@pytest.mark.parametrize(
    "text",
    [
        "Requested ROCm device 0 but found only 0 device(s)\n",
        "could not open kernel conf file /boot/config-6.8.0 error: No such file or directory",
    ],
)
def test_what_perftest_could_not_find_out_is_an_error_of_that_card(text: str) -> None:
    first = "Couldn't initialize ROCm device\n" if "Requested" in text else ""
    answer = {
        "rc": 1,
        "stdout": text,
        "stderr": f"{first}Failed to init memory\n Couldn't create IB resources\n",
    }
    assert ("error", "mlx5_5", "") in {
        (f.verdict.value, f.device, "") for f in judge(NODE, measured(mlx5_5_gpu=answer))
    }


def test_a_rate_of_another_gpu_is_not_taken_for_that_of_the_one_beside_the_card() -> None:
    other = {"stdout": used(6) + printed(392.1, "mlx5_1")}
    (error,) = [f for f in judge(NODE, measured(mlx5_1_gpu=other)) if f.verdict is Verdict.ERROR]
    assert error.device == "mlx5_1"
    assert "took the GPU on PCI bus c6, not gpu1 (0000:26:00.0)" in error.message


def test_partitioned_gpus_are_left_out_and_the_cards_are_measured() -> None:
    node = node_with()
    for one in node.facts["amdgpu.devices"]:
        one["compute_partition"] = "CPX"
    assert not [one for one in rdma_loopback.commands(node, {}) if ".gpu" in one.name]
    findings = judge(node, measured(node))
    assert said(findings) == {("pass", "node", "host_share"), ("skip", "node", "gpu")}


def test_what_the_two_vendors_have_in_common_is_one() -> None:
    assert rdma_loopback.ID == nvidias.ID
    assert type(rdma_loopback.LOOPBACK) is type(nvidias.LOOPBACK)


def test_the_collective_over_the_cards_is_rccls() -> None:
    (command,) = rccl.OVER_CARDS.commands(NODE, {})
    assert command.argv[0] == "/usr/bin/all_reduce_perf"
    assert {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET"} <= command.env.keys()
    named = node_with()
    own = {"amd_validation_tools_all_reduce_perf_path": "/opt/rccl-tests/all_reduce_perf"}
    (command,) = rccl.OVER_CARDS.commands(replace(named, variables={**named.variables, **own}), {})
    assert command.argv[0] == "/opt/rccl-tests/all_reduce_perf"
