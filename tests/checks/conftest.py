"""Nodes and outputs for the tests of checks, and the samples of what tools print."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.judge import Finding
from provision.checks.registry import CHECKS
from provision.checks.thresholds import for_sku
from provision.desired.skus import all_skus

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def sample() -> Callable[[str], str]:
    """The text of tests/fixtures/<name>, carriage returns and all."""

    def read(name: str) -> str:
        return (FIXTURES / name).read_bytes().decode()

    return read


@pytest.fixture
def make_node() -> Callable[..., CheckNode]:
    def node(
        count: int = 8,
        sku: str | None = "h100-sxm",
        fabric: str = "nvswitch",
        arch: str = "hopper",
        **variables: Any,
    ) -> CheckNode:
        names = list(all_skus()[sku].product_names) if sku else []
        gpu = {"count": count, "sku": sku, "fabric": fabric, "architecture": arch, "product_names": names}
        return CheckNode("gpu-01", {"gpu": gpu}, variables)

    return node


@pytest.fixture
def make_output() -> Callable[..., Output]:
    def output(
        name: str, stdout: str = "", *, argv: tuple[str, ...] = (), rc: int | None = 0, **more: Any
    ) -> Output:
        return Output(
            name, argv or (name,), rc, stdout, more.pop("stderr", ""), more.pop("seconds", 1.0), **more
        )

    return output


@pytest.fixture
def judged(make_node: Callable[..., CheckNode]) -> Callable[..., list[Finding]]:
    """Parse and judge under the shipped thresholds of the node's SKU."""

    def run(check: str, *outputs: Output, node: CheckNode | None = None, **limits: Any) -> list[Finding]:
        node = node or make_node()
        found = CHECKS[check].parse(node, {output.name: output for output in outputs})
        return CHECKS[check].judge(node, found, {**for_sku(node.sku), **limits})

    return run


@pytest.fixture
def captures() -> Path:
    """The folder of real captures; the test is skipped, with this reason, where there is none."""
    folder = os.environ.get("GPUPROV_CAPTURES")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "GPUPROV_CAPTURES names no folder of real captures: parsers were tried on our own samples only"
        )
    return Path(folder)
