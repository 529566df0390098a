"""`gpuprov validate` for each fault of a node: the reported devices, and the spared ones.

The tools on the nodes and the checks share no code and were written from the same documents. Two formats that
no document shows (gpu_burn's warnings beside an error count, and nccl-tests after wrong sums) were adjusted
to agree and await a recording of real hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, flagged
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = pytest.mark.timeout(1800)
NODE = "gpu-01"  # H100 SXM

Validate = Callable[..., tuple[int, set[tuple[str, str, str]]]]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield one node after `gpuprov up`."""
    nodes, inventory = (NodeSpec(NODE, "h100-sxm"),), tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("faults", nodes, inventory, images={NODE: images.h100()}) as running:
        yield running


@pytest.fixture
def validate(operator: Operator) -> Validate:
    """Return a function that runs checks: exit code, and flagged findings."""

    def run(*checks: str, seconds: int = 30) -> tuple[int, set[tuple[str, str, str]]]:
        words = ("--json", "--timeout", str(seconds), "--checks", ",".join(checks))
        done = operator.call("validate", *words, timeout=1500)
        return done.returncode, flagged(done)

    return run


INVENTORY, PAIRS, GROUP, BURN = "gpu_inventory", "p2p_bandwidth", "nccl_all_reduce", "gpu_burn"

FAULTS = [
    ("burn_dies", {"gpu": 2}, [BURN], {(BURN, "gpu2", "error")}),
    ("gpu_slow", {"gpu": 4}, [BURN], {(BURN, "gpu4", "fail")}),
    ("gpu_missing", {"gpu": 6}, [INVENTORY], {(INVENTORY, "node", "fail")}),
    ("memory_small", {"gpu": 1}, [INVENTORY], {(INVENTORY, "gpu1", "fail")}),
    ("pcie_width", {"gpu": 3}, [INVENTORY, PAIRS], {(INVENTORY, "gpu3", "fail"), (PAIRS, "gpu3", "fail")}),
    ("h2d_slow", {"gpu": 7}, [INVENTORY, PAIRS], {(PAIRS, "gpu7", "fail")}),
    (
        "nvlink_down",
        {"gpu": 4, "link": 7},
        [INVENTORY, PAIRS, GROUP],
        {(INVENTORY, "gpu4", "fail"), (GROUP, "node", "warn")},
    ),
    ("pair_disabled", {"a": 1, "b": 3}, [PAIRS], {(PAIRS, "gpu1-gpu3", "fail")}),
    ("collective_slow", {}, [PAIRS, GROUP], {(GROUP, "node", "fail")}),
    ("wrong_result", {}, [GROUP], {(GROUP, "node", "fail")}),
    (
        "fabric_down",
        {},
        [INVENTORY, PAIRS],
        {(INVENTORY, "node", "fail"), (PAIRS, "node", "error")},
    ),
    ("tool_truncated", {"tool": "gpu_burn"}, [BURN], {(BURN, "node", "error")}),
    ("tool_hang", {"tool": "nvidia-smi"}, [INVENTORY], {(INVENTORY, "node", "error")}),
]
# One for each form of a fault: in a table, as a number, without a number. The others are in the long set, and
# tests/benchmarks/test_detection.py tries each class without a node.
ALWAYS = {"nvlink_down", "gpu_slow", "tool_truncated"}


@pytest.mark.parametrize(
    ("fault", "parameters", "checks", "expected"),
    [
        pytest.param(*fault, id=fault[0], marks=() if fault[0] in ALWAYS else pytest.mark.long)
        for fault in FAULTS
    ],
)
def test_a_fault_is_named_and_nothing_else(
    fault: str,
    parameters: dict[str, Any],
    checks: list[str],
    expected: set[tuple[str, str, str]],
    lab: Any,
    validate: Validate,
) -> None:
    node = lab.node(NODE)
    node.fault(fault, **parameters)
    try:
        code, found = validate(*checks, seconds=10 if fault == "tool_hang" else 30)
    finally:
        node.heal()
    assert found == expected
    failed = any(verdict == "fail" for _, _, verdict in expected)
    assert code == (ExitCode.UNHEALTHY if failed else ExitCode.INCOMPLETE)


def test_healthy_look_alikes_are_left_alone(lab: Any, validate: Validate) -> None:
    node = lab.node(NODE)
    node.fault("ecc_aggregate_old", gpu=3)
    node.fault("remapped_clean", gpu=4)
    node.fault("pcie_replays_old", gpu=5)
    try:
        assert validate(INVENTORY) == (ExitCode.OK, set())
    finally:
        node.heal()
