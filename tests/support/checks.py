"""Nodes, tool outputs and samples for the tests of checks, and helpers that judge them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.registry import CHECKS
from provision.checks.thresholds import for_sku
from tests.support.scenarios import FIXTURES, machine


def sample(name: str) -> str:
    """Return the text of tests/fixtures/<name>, carriage returns included."""
    return (FIXTURES / name).read_bytes().decode()


def make_node(
    count: int = 8,
    sku: str | None = "h100-sxm",
    fabric: str = "nvswitch",
    arch: str = "hopper",
    **variables: Any,
) -> CheckNode:
    return machine(count, sku, fabric, arch, variables)


def make_output(name: str, stdout: str = "", *, argv: tuple[str, ...] = (), **more: Any) -> Output:
    """Return the output of a program, which by default exits with 0 after one second."""
    return Output(name, argv or (name,), stdout=stdout, **{"rc": 0, "stderr": "", "seconds": 1.0, **more})


def judged(check: str, *outputs: Output, node: CheckNode | None = None, **limits: Any) -> list[Finding]:
    """Parse and judge outputs under the shipped thresholds of the node's SKU."""
    node = node or make_node()
    found = CHECKS[check].parse(node, {output.name: output for output in outputs})
    return CHECKS[check].judge(node, found, {**for_sku(node.sku), **limits})


def flagged(
    findings: Iterable[Finding],
    *fields: str,
    quiet: tuple[Verdict, ...] = (Verdict.PASS,),
) -> list[tuple[Any, ...]]:
    """Return these fields of each finding that did not pass; by default, the fields a user needs to act."""
    names = fields or ("verdict", "device", "metric", "action")
    return [tuple(getattr(one, name) for name in names) for one in findings if one.verdict not in quiet]


# Variables that a node must declare for checks that are off by default.
DECLARED: dict[str, dict[str, Any]] = {
    "dcgm_diag": {"validation_tools_dcgm_level": 2},
    "disk_speed": {"validation_tools_scratch_dir": "/scratch"},
}
UNREAD = ("removed", "telemetry", "error_counters")


def node_for(check: str, count: int = 8, sku: str | None = "h100-sxm", **more: Any) -> CheckNode:
    """Return a node on which the check runs."""
    return make_node(count, sku, **{**DECLARED.get(check, {}), **more})


def answered(check: str, node: CheckNode, text: str, **fate: Any) -> dict[str, Output]:
    """Return the outputs of a check's programs on a node; queries for MIG report no partitioned GPU."""
    unpartitioned = "Disabled\n" * node.gpu_count
    return {
        command.name: make_output(command.name, unpartitioned)
        if command.name == "mig"
        else make_output(command.name, text, argv=command.argv, **fate)
        for command in CHECKS[check].commands(node, {})
        if command.name not in UNREAD
    }


def changed(check: str, name: str, *changes: tuple[Any, ...]) -> str:
    """Return a sample, by default of this check, with texts replaced: old, new and optionally the count."""
    text = sample(name if "/" in name else f"{check}/{name}")
    for change in changes:
        assert change[0] in text, f"{name} has no {change[0]!r}"
        text = text.replace(*change)
    return text


def inventory(*more: Output, node: CheckNode | None = None, **other: str | Output) -> list[Finding]:
    """Return gpu_inventory's findings on a healthy node; a sample's name or an Output replaces an answer."""
    said = {
        "journal": "journal-clean.txt",
        "dmesg": "dmesg-clean.txt",
        "nvidia_smi": "h100-v13.xml",
        "nvlink": "nvlink-h100.txt",
        **other,
    }
    outputs = [
        one if isinstance(one, Output) else make_output(name, sample(f"gpu_inventory/{one}"))
        for name, one in said.items()
    ]
    return judged("gpu_inventory", *outputs, *more, node=node)
