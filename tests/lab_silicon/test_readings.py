"""gpu_inventory's reading of simulated nodes: healthy ones of each generation, and lost GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provision.checks.check import Output
from provision.checks.gpu import gpu_inventory
from provision.checks.judge import Finding, Verdict
from provision.checks.thresholds import for_sku
from tests.lab_silicon.silicon import Silicon
from tests.support.scenarios import machine

Make = Callable[..., Silicon]


# SKU, driver, (GPUs, fabric, architecture)
MACHINES = [
    ("a100-sxm-80", "515.105.01", (8, "nvswitch", "ampere")),
    ("h100-sxm", "530.30.02", (8, "nvswitch", "hopper")),
    ("a100-sxm-80", "535.54.03", (8, "nvswitch", "ampere")),
    ("h100-sxm", "550.163.01", (8, "nvswitch", "hopper")),
    ("h200-sxm", "570.148.08", (8, "nvswitch", "hopper")),
    ("a100-sxm-80", "525.147.05", (8, "nvswitch", "ampere")),
    ("l40s", "575.57.08", (8, "none", "ada")),
    ("b200", "580.105.08", (8, "nvlink5", "blackwell")),
    ("gb200", "580.173.02", (4, "imex", "blackwell")),
    ("l40s", "595.91.07", (8, "none", "ada")),
]


def findings(one: Silicon, sku: str, gpus: int, fabric: str, architecture: str) -> list[Finding]:
    """Return the check's findings that did not pass; the kernel log comes from dmesg, as in a container."""
    node = machine(gpus, sku, fabric, architecture)
    outputs = {"journal": Output("journal", ("journalctl",), 0, "-- No entries --\n", "", 0.1)}
    for command in gpu_inventory.commands(node, {})[1:]:
        done = one.run(*command.argv)
        outputs[command.name] = Output(
            command.name, tuple(command.argv), done.returncode, done.stdout, done.stderr, 0.1
        )
    found = gpu_inventory.judge(node, gpu_inventory.parse(node, outputs), for_sku(sku))
    return [finding for finding in found if finding.verdict not in (Verdict.PASS, Verdict.SKIP)]


@pytest.mark.parametrize(("sku", "driver", "made"), MACHINES, ids=lambda one: str(one))
def test_a_healthy_node_of_each_generation_passes(
    sku: str, driver: str, made: tuple[int, str, str], node: Make
) -> None:
    one = node(sku, driver=driver)
    one.run("nvidia-smi", "-pm", "1")
    assert findings(one, sku, *made) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (("xid", "gpu=3", "code=95", "instance=GPU-I:05"), "MIG instance GPU-I:05"),
        (("xid", "gpu=3", "code=95", "instance=GPU-I:01 GPU-CI:02"), "MIG instance GPU-I:01 GPU-CI:02"),
        (("gpu_off_bus", "gpu=3"), "fallen off the bus"),
        (("gpu_off_bus_at_boot", "gpu=3"), "fallen off the bus"),
    ],
)
def test_the_gpu_of_a_kernel_line_is_named(fault: tuple[str, ...], said: str, node: Make) -> None:
    one = node()
    one.fault("set", *fault)
    found = [one for one in findings(one, "h100-sxm", 8, "nvswitch", "hopper") if one.metric[:3] == "xid"]
    assert [finding.verdict for finding in found] == [Verdict.FAIL]
    assert found[0].device in ("gpu3", "gpu@0000:61:00")
    assert said in found[0].message
