"""rdma_loopback: the slow card by its name, GPUDirect absent or only not measurable, and what is no fault."""

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

Sample = Callable[[str], str]
MakeNode = Callable[..., CheckNode]

GPUS = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
CARDS = {
    "mlx5_0": "0000:18:00.0",
    "mlx5_1": "0000:40:00.0",
    "mlx5_2": "0000:4f:00.0",
    "mlx5_3": "0000:5e:00.0",
}


def port(device: str, state: str = "ACTIVE", rate: float = 400) -> dict[str, Any]:
    layer = "InfiniBand"
    return {"device": device, "port": "1", "state": state, "rate": rate, "link_layer": layer, "netdev": None}


@pytest.fixture
def node(make_node: MakeNode) -> CheckNode:
    facts = {
        "rdma.ports": [port(name) for name in CARDS],
        "firmware.rdma": [{"device": name, "address": address} for name, address in CARDS.items()],
        "module.nvidia_peermem.loaded": False,
    }
    return replace(make_node(4, gpuprov_pci_addresses=list(GPUS)), facts=facts)


@pytest.fixture
def measured(sample: Sample) -> Callable[..., dict[str, Output]]:
    """The outputs of a healthy node; `mlx5_2_host="slow"` puts that sample in the place of a healthy one."""

    def outputs(node: CheckNode, **other: str) -> dict[str, Output]:
        found = {}
        for command in rdma_loopback.commands(node, {}):
            name = other.get(
                command.name.replace(".", "_"), "gpu" if command.name.endswith("gpu") else "healthy"
            )
            rc, stdout, stderr = 0, "", ""
            if name.endswith(".stderr"):
                rc, stderr = 1, sample(f"rdma_loopback/{name}.txt")
            else:
                stdout = sample(f"rdma_loopback/{name}.txt").replace("mlx5_0", command.name.partition(".")[0])
            found[command.name] = Output(
                command.name, command.argv, rc, stdout, stderr, 1.0, beside=command.beside
            )
        return found

    return outputs


def judge(node: CheckNode, outputs: Mapping[str, Output]) -> list[Finding]:
    return rdma_loopback.judge(node, rdma_loopback.parse(node, outputs), for_sku(node.sku))


def bad(findings: list[Finding]) -> list[tuple[Verdict, str, str]]:
    return [(f.verdict, f.device, f.metric) for f in findings if f.verdict is not Verdict.PASS]


def test_each_card_writes_to_itself_with_a_server_of_its_own(node: CheckNode) -> None:
    commands = {command.name: command for command in rdma_loopback.commands(node, {})}
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


def test_the_gpu_below_the_cards_switch_is_used(node: CheckNode) -> None:
    commands = {command.name: command.argv for command in rdma_loopback.commands(node, {})}
    gpus = {
        name: argv[argv.index("--use_cuda") + 1] for name, argv in commands.items() if name.endswith(".gpu")
    }
    assert gpus == {"mlx5_0.gpu": "0", "mlx5_1.gpu": "1", "mlx5_2.gpu": "2", "mlx5_3.gpu": "3"}


@pytest.mark.parametrize("peermem", [True, False])
def test_gpu_memory_is_reached_by_whichever_way_there_is(peermem: bool, node: CheckNode) -> None:
    node = replace(node, facts={**node.facts, "module.nvidia_peermem.loaded": peermem})
    argv = {command.name: command.argv for command in rdma_loopback.commands(node, {})}["mlx5_0.gpu"]
    assert ("--use_cuda_dmabuf" in argv) is not peermem


def test_a_healthy_node_passes(node: CheckNode, measured: Any) -> None:
    findings = judge(node, measured(node))
    assert [(f.verdict, f.metric) for f in findings] == [
        (Verdict.PASS, "host_share"),
        (Verdict.PASS, "gpu_share"),
    ]


def test_a_slow_card_is_named_once_for_host_and_gpu(node: CheckNode, measured: Any) -> None:
    findings = judge(node, measured(node, mlx5_2_host="slow", mlx5_2_gpu="slow"))
    assert bad(findings) == [(Verdict.FAIL, "mlx5_2", "host_share")]
    assert "241.07 of 400 Gb/s" in findings[0].message
    assert findings[0].action == "reseat or check cable"


def test_a_slow_way_from_the_gpu_is_told_apart_from_a_slow_card(node: CheckNode, measured: Any) -> None:
    findings = judge(node, measured(node, mlx5_1_gpu="slow"))
    assert bad(findings) == [(Verdict.FAIL, "mlx5_1", "gpu_share")]
    assert "host memory is reached" in next(f.message for f in findings if f.verdict is Verdict.FAIL)


def test_without_a_limit_its_peers_name_the_slow_card(node: CheckNode, measured: Any) -> None:
    node = replace(node, facts={**node.facts, "rdma.ports": [port(name) for name in CARDS]})
    outputs = measured(node, mlx5_3_host="slightly-slow")
    findings = rdma_loopback.judge(node, rdma_loopback.parse(node, outputs), {})
    assert (Verdict.WARN, "mlx5_3", "host_share") in bad(findings)
    assert not [f for f in findings if f.verdict is Verdict.PASS], "no limit known is never a pass"


def test_a_slower_link_is_judged_by_its_own_rate(node: CheckNode, measured: Any) -> None:
    """A 200 Gb/s storage card beside 400 Gb/s cards is no slow card."""
    ports = [port(name, rate=200 if name == "mlx5_3" else 400) for name in CARDS]
    node = replace(node, facts={**node.facts, "rdma.ports": ports})
    outputs = measured(node)
    for name in ("mlx5_3.host", "mlx5_3.gpu"):
        outputs[name] = replace(outputs[name], stdout=outputs[name].stdout.replace("39", "19"))
    assert bad(judge(node, outputs)) == []


def test_gpudirect_that_works_nowhere_is_a_matter_of_modules(node: CheckNode, measured: Any) -> None:
    refused = {f"{name}_gpu": "no-gpudirect.stderr" for name in CARDS}
    findings = judge(node, measured(node, **refused))
    assert bad(findings) == [(Verdict.FAIL, "node", "gpu")]
    assert next(f.action for f in findings if f.verdict is Verdict.FAIL) == "fix configuration"


def test_a_tool_without_cuda_is_said_and_not_passed(node: CheckNode, measured: Any) -> None:
    plain = {f"{name}_gpu": "no-cuda.stderr" for name in CARDS}
    findings = judge(node, measured(node, **plain))
    assert bad(findings) == [(Verdict.SKIP, "node", "gpu")]
    assert [f.metric for f in findings if f.verdict is Verdict.PASS] == ["host_share"]


def test_a_run_that_failed_is_unknown_for_that_card_alone(node: CheckNode, measured: Any) -> None:
    findings = judge(node, measured(node, mlx5_1_host="not-connected.stderr"))
    assert bad(findings) == [(Verdict.ERROR, "mlx5_1", "")]


def test_a_port_that_is_down_is_not_this_checks_matter(node: CheckNode, measured: Any) -> None:
    ports = [port(name, "DOWN" if name == "mlx5_2" else "ACTIVE") for name in CARDS]
    node = replace(node, facts={**node.facts, "rdma.ports": ports})
    assert not [c for c in rdma_loopback.commands(node, {}) if c.name.startswith("mlx5_2")]
    assert bad(judge(node, measured(node))) == [(Verdict.SKIP, "mlx5_2", "rate")]


def test_a_node_without_rdma_is_skipped_with_the_reason(node: CheckNode) -> None:
    node = replace(node, facts={**node.facts, "rdma.ports": []})
    assert rdma_loopback.commands(node, {}) == []
    (finding,) = judge(node, {})
    assert (finding.verdict, finding.message) == (Verdict.SKIP, "no RDMA device in this node")


def test_ports_that_could_not_be_read_are_no_skip(node: CheckNode) -> None:
    node = replace(node, facts={}, problems={"rdma": "rdma: no answer within 8 s"})
    assert rdma_loopback.commands(node, {}) == []
    with pytest.raises(ParseError, match="no answer within 8 s"):
        rdma_loopback.parse(node, {})


def test_one_queue_pair_is_not_what_was_asked_for(node: CheckNode, measured: Any) -> None:
    """A healthy card may not fill its link with one: such a run says nothing."""
    outputs = measured(node)
    one = outputs["mlx5_0.host"].stdout.replace("Number of qps   : 4", "Number of qps   : 1")
    outputs["mlx5_0.host"] = replace(outputs["mlx5_0.host"], stdout=one)
    with pytest.raises(ParseError, match="with 1 queue pairs"):
        rdma_loopback.parse(node, outputs)


def test_another_card_than_asked_for_is_refused(node: CheckNode, measured: Any) -> None:
    outputs = measured(node)
    outputs["mlx5_1.host"] = replace(outputs["mlx5_1.host"], stdout=outputs["mlx5_0.host"].stdout)
    with pytest.raises(ParseError, match="measured mlx5_0"):
        rdma_loopback.parse(node, outputs)


def test_a_gpus_slot_may_be_slower_than_the_port(node: CheckNode, measured: Any) -> None:
    """An L40S in PCIe 4.0 gives a 400 Gb/s port what it can: nothing is slow."""
    ada = {**node.gpuprov_node["gpu"], "sku": "l40s", "architecture": "ada"}
    node = replace(node, gpuprov_node={"gpu": ada})
    outputs = measured(node)
    for name in CARDS:
        slower = outputs[f"{name}.gpu"].stdout.replace("391.86", "199.80")
        outputs[f"{name}.gpu"] = replace(outputs[f"{name}.gpu"], stdout=slower)
    assert bad(judge(node, outputs)) == []


def test_one_card_without_cuda_beside_others_with_it_is_a_contradiction(
    node: CheckNode, measured: Any
) -> None:
    """One program for all: its word of one card must not hide what another card's run has shown."""
    findings = judge(node, measured(node, mlx5_0_gpu="no-cuda.stderr", mlx5_1_gpu="slow"))
    assert bad(findings) == [(Verdict.ERROR, "mlx5_0", ""), (Verdict.FAIL, "mlx5_1", "gpu_share")]


@pytest.mark.parametrize("rate", ["400", None, 0, -400, float("nan"), 2**64, True, [400]])
def test_a_port_that_is_up_has_a_rate(rate: Any, node: CheckNode) -> None:
    ports = [port(name, rate=rate if name == "mlx5_1" else 400) for name in CARDS]
    node = replace(node, facts={**node.facts, "rdma.ports": ports})
    assert rdma_loopback.commands(node, {}) == []
    with pytest.raises(ParseError, match=r"rdma\.ports"):
        rdma_loopback.parse(node, {})


def test_a_run_whose_output_is_missing_is_an_error(node: CheckNode, measured: Any) -> None:
    outputs = measured(node)
    del outputs["mlx5_3.gpu"]
    with pytest.raises(ParseError, match=r"the output of mlx5_3\.gpu is missing"):
        rdma_loopback.parse(node, outputs)


def test_the_decimal_comma_is_refused(node: CheckNode, measured: Any) -> None:
    outputs = measured(node)
    text = outputs["mlx5_0.host"].stdout
    local = re.sub(r"(\d)\.(\d)", r"\1,\2", text)
    assert local != text
    outputs["mlx5_0.host"] = replace(outputs["mlx5_0.host"], stdout=local)
    with pytest.raises(ParseError, match="row not understood"):
        rdma_loopback.parse(node, outputs)
