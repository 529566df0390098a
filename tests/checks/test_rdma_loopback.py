"""Tests of rdma_loopback: slow cards by name, missing or unmeasurable GPUDirect, and harmless cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding, Verdict
from provision.checks.network import rdma_loopback
from provision.checks.thresholds import for_sku
from provision.errors import ParseError
from tests.support.checks import flagged, make_node, sample

GPUS = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
CARDS = {f"mlx5_{at}": f"0000:{bus}:00.0" for at, bus in enumerate(("18", "40", "4f", "5e"))}


def port(device: str, state: str = "ACTIVE", rate: float = 400) -> dict[str, Any]:
    layer = "InfiniBand"
    return {"device": device, "port": "1", "state": state, "rate": rate, "link_layer": layer, "netdev": None}


def with_ports(*ports: dict[str, Any]) -> CheckNode:
    facts = {
        "rdma.ports": list(ports),
        "firmware.rdma": [{"device": name, "address": address} for name, address in CARDS.items()],
        "module.nvidia_peermem.loaded": False,
    }
    return replace(make_node(4, gpuprov_pci_addresses=list(GPUS)), facts=facts)


NODE = with_ports(*map(port, CARDS))


def measured(node: CheckNode = NODE, /, **other: str) -> dict[str, Output]:
    """Return the outputs of a healthy node; `mlx5_2_host="slow"` uses that sample for one card."""

    outputs = {}
    for command in rdma_loopback.commands(node, {}):
        name = other.get(command.name.replace(".", "_"), "gpu" if command.name.endswith("gpu") else "healthy")
        rc, stdout, stderr = 0, "", ""
        if name.endswith(".stderr"):
            rc, stderr = 1, sample(f"rdma_loopback/{name}.txt")
        else:
            stdout = sample(f"rdma_loopback/{name}.txt").replace("mlx5_0", command.name.partition(".")[0])
        outputs[command.name] = Output(
            command.name, command.argv, rc, stdout, stderr, 1.0, beside=command.beside
        )
    return outputs


def judge(node: CheckNode, outputs: Mapping[str, Output]) -> list[Finding]:
    return rdma_loopback.judge(node, rdma_loopback.parse(node, outputs), for_sku(node.sku))


def replaced(name: str, change: Callable[[str], str]) -> dict[str, Output]:
    """Return the outputs of a healthy node with one text changed."""
    outputs = measured()
    text = change(outputs[name].stdout)
    assert text != outputs[name].stdout
    return {**outputs, name: replace(outputs[name], stdout=text)}


def test_each_card_writes_to_itself_with_a_server_of_its_own() -> None:
    commands = {command.name: command for command in rdma_loopback.commands(NODE, {})}
    assert len(commands) == 16
    ports = [command.port for command in commands.values() if command.beside]
    assert len(set(ports)) == len(ports) == 8
    for name, command in commands.items():
        if command.beside:
            client = commands[command.beside]
            assert client.argv == (*command.argv, "localhost"), "both sides must be given the same options"
            assert command.argv[command.argv.index("-p") + 1] == str(command.port)
        else:
            assert f"{name}.server" in commands
    host = commands["mlx5_2.host"].argv
    assert host[host.index("-d") + 1] == "mlx5_2"
    assert host[host.index("-q") + 1] == "4"
    assert "--report_gbits" in host
    assert "--use_cuda" not in host


def test_the_gpu_below_the_cards_switch_is_used() -> None:
    commands = {command.name: command.argv for command in rdma_loopback.commands(NODE, {})}
    gpus = {
        name: argv[argv.index("--use_cuda") + 1] for name, argv in commands.items() if name.endswith(".gpu")
    }
    assert gpus == {"mlx5_0.gpu": "0", "mlx5_1.gpu": "1", "mlx5_2.gpu": "2", "mlx5_3.gpu": "3"}


@pytest.mark.parametrize("peermem", [True, False])
def test_gpu_memory_is_reached_by_whichever_way_there_is(peermem: bool) -> None:
    node = replace(NODE, facts={**NODE.facts, "module.nvidia_peermem.loaded": peermem})
    argv = {command.name: command.argv for command in rdma_loopback.commands(node, {})}["mlx5_0.gpu"]
    assert ("--use_cuda_dmabuf" in argv) is not peermem


NO_CUDA = {f"{name}_gpu": "no-cuda.stderr" for name in CARDS}
NO_GPUDIRECT = {f"{name}_gpu": "no-gpudirect.stderr" for name in CARDS}
RESEAT = "reseat or check cable"


@pytest.mark.parametrize(
    ("other", "expected", "passed", "said"),
    [
        ({}, [], ["host_share", "gpu_share"], ""),
        (
            {"mlx5_2_host": "slow", "mlx5_2_gpu": "slow"},
            [("fail", "mlx5_2", "host_share", RESEAT)], ["gpu_share"], "241.07 of 400 Gb/s",
        ),
        (
            {"mlx5_1_gpu": "slow"},
            [("fail", "mlx5_1", "gpu_share", "investigate")], ["host_share"], "host memory is reached",
        ),
        # GPUDirect that fails everywhere is a matter of modules; a tool without CUDA proves nothing about it.
        (NO_GPUDIRECT, [("fail", "node", "gpu", "fix configuration")], ["host_share"], ""),
        (NO_CUDA, [("skip", "node", "gpu", "none")], ["host_share"], ""),
        (
            {"mlx5_1_host": "not-connected.stderr"},
            [("error", "mlx5_1", "", "investigate")], ["host_share", "gpu_share"], "",
        ),
        # All cards share one program: its message for one card must not hide the result of another card.
        (
            {"mlx5_0_gpu": "no-cuda.stderr", "mlx5_1_gpu": "slow"},
            [("error", "mlx5_0", "", "run again"), ("fail", "mlx5_1", "gpu_share", "investigate")],
            ["host_share"], "",
        ),
    ],
    ids=["healthy", "slow card", "slow way", "no GPUDirect", "no CUDA", "failed", "a contradiction"],
)  # fmt: skip
def test_what_is_slow_or_unknown_is_named_once(
    other: dict[str, str], expected: list[tuple[str, ...]], passed: list[str], said: str
) -> None:
    findings = judge(NODE, measured(**other))
    assert flagged(findings) == expected
    assert [f.metric for f in findings if f.verdict is Verdict.PASS] == passed
    assert said in " ".join(f.message for f in findings)


def test_without_a_limit_its_peers_name_the_slow_card() -> None:
    outputs = measured(mlx5_3_host="slightly-slow")
    findings = rdma_loopback.judge(NODE, rdma_loopback.parse(NODE, outputs), {})
    assert ("warn", "mlx5_3", "host_share", RESEAT) in flagged(findings)
    assert not [f for f in findings if f.verdict is Verdict.PASS], "no limit known is never a pass"


def test_a_slower_link_is_judged_by_its_own_rate() -> None:
    """A 200 Gb/s storage card next to 400 Gb/s cards is not slow."""
    node = with_ports(*(port(name, rate=200 if name == "mlx5_3" else 400) for name in CARDS))
    outputs = measured(node)
    for name in ("mlx5_3.host", "mlx5_3.gpu"):
        outputs[name] = replace(outputs[name], stdout=outputs[name].stdout.replace("39", "19"))
    assert flagged(judge(node, outputs)) == []


def test_a_port_that_is_down_is_not_this_checks_matter() -> None:
    node = with_ports(*(port(name, "DOWN" if name == "mlx5_2" else "ACTIVE") for name in CARDS))
    assert not [c for c in rdma_loopback.commands(node, {}) if c.name.startswith("mlx5_2")]
    assert flagged(judge(node, measured(node))) == [("skip", "mlx5_2", "rate", "none")]


def test_a_node_without_rdma_is_skipped_with_the_reason() -> None:
    node = with_ports()
    assert rdma_loopback.commands(node, {}) == []
    (finding,) = judge(node, {})
    assert (finding.verdict, finding.message) == (Verdict.SKIP, "no RDMA device in this node")


def test_ports_that_could_not_be_read_are_no_skip() -> None:
    node = replace(NODE, facts={}, problems={"rdma": "rdma: no answer within 8 s"})
    assert rdma_loopback.commands(node, {}) == []
    with pytest.raises(ParseError, match="no answer within 8 s"):
        rdma_loopback.parse(node, {})


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        # A healthy card may not fill its link with one queue pair, so such a run proves nothing.
        ("mlx5_0.host", lambda text: text.replace("qps   : 4", "qps   : 1"), "with 1 queue pairs"),
        ("mlx5_1.host", lambda text: text.replace("mlx5_1", "mlx5_0"), "measured mlx5_0"),
        ("mlx5_0.host", lambda text: re.sub(r"(\d)\.(\d)", r"\1,\2", text), "row not understood"),
    ],
)
def test_what_was_not_asked_for_or_is_not_understood_is_refused(
    name: str, change: Callable[[str], str], said: str
) -> None:
    with pytest.raises(ParseError, match=said):
        rdma_loopback.parse(NODE, replaced(name, change))


@pytest.mark.parametrize(
    ("sku", "architecture", "lanes", "reached"),
    [("l40s", "ada", None, "199.80"), ("l40s", "ada", 8, "98.80"), ("h100-sxm", "hopper", 8, "197.70")],
)
def test_a_gpus_slot_may_be_slower_than_the_port(
    sku: str, architecture: str, lanes: int | None, reached: str
) -> None:
    """An L40S in PCIe 4.0, or a slot with fewer lanes, limits a 400 Gb/s port; no part is slow."""
    gpu = {**NODE.gpuprov_node["gpu"], "sku": sku, "architecture": architecture}
    variables = {**NODE.variables, **({"gpuprov_pcie_width": lanes} if lanes else {})}
    node = replace(NODE, gpuprov_node={"gpu": gpu}, variables=variables)
    outputs = measured(node)
    for name in CARDS:
        slower = outputs[f"{name}.gpu"].stdout.replace("391.86", reached)
        outputs[f"{name}.gpu"] = replace(outputs[f"{name}.gpu"], stdout=slower)
    assert flagged(judge(node, outputs)) == []


@pytest.mark.parametrize("rate", ["400", None, 0, -400, float("nan"), 2**64, True, [400]])
def test_a_port_that_is_up_has_a_rate(rate: Any) -> None:
    node = with_ports(*(port(name, rate=rate if name == "mlx5_1" else 400) for name in CARDS))
    assert rdma_loopback.commands(node, {}) == []
    with pytest.raises(ParseError, match=r"rdma\.ports"):
        rdma_loopback.parse(node, {})


def test_a_run_whose_output_is_missing_is_an_error() -> None:
    outputs = measured()
    del outputs["mlx5_3.gpu"]
    with pytest.raises(ParseError, match=r"the output of mlx5_3\.gpu is missing"):
        rdma_loopback.parse(NODE, outputs)
