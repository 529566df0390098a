"""A GPU stops answering on real nodes: every command names it, judges its neighbours, and ends soon.

gpu-01 loses a GPU when idle; gpu-02 during a load, a burn-in and `up`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

ROLES = ["nvidia_repository", "nvidia_driver", "nvlink", "cuda_toolkit", "nccl", "validation_tools"]
SPEED = 50.0
GPU = 3
PROFILE = """\
summary: half a minute, for tools that are simulated
minutes: 30
sample_seconds: 20
space_mib: 64
ramp_steps: 2
ramp_seconds: 2
abort: {gpu_celsius: 120, failed_steps: 50}
segments:
  - {name: look, kind: load, checks: [gpu_inventory], repeat: 1}
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 20, step_minutes: 5}
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Identity:
    """Expected identification of the lost GPU."""

    def __init__(self, lab: Lab, node: str, gpu: int = GPU) -> None:
        fields = "--query-gpu=pci.bus_id,serial --format=csv,noheader"
        line = lab.node(node).run(f"nvidia-smi -i {gpu} {fields}").stdout.strip()
        address, self.serial = [cell.strip() for cell in line.split(",")]
        self.address = address.lower().removeprefix("0000").removesuffix(".0")


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    declared = {node.name: images.h100() for node in nodes}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("lost", nodes, inventory, speed=SPEED, images=declared) as running:
        yield running


@pytest.fixture
def whole(lab: Lab) -> Iterator[None]:
    """Make all GPUs answer again afterwards."""
    yield
    for node in lab.nodes:
        node.heal()


def validated(
    operator: Operator, node: str, *words: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Run `validate`, and return the process and all findings on the node."""
    done = operator.call("validate", "--nodes", node, "--json", *words)
    assert done.stdout.strip(), done.stderr
    (health,) = json.loads(done.stdout)["nodes"]
    return done, [finding for check in health["checks"] for finding in check["findings"]]


def blamed(findings: list[dict[str, Any]]) -> set[str]:
    """Return the devices with a warning or a failure."""
    return {one["device"] for one in findings if one["verdict"] in ("fail", "warn")}


@pytest.mark.usefixtures("whole")
def test_at_rest_every_verb_names_it(lab: Lab, operator: Operator, tmp_path: Path) -> None:
    one = ("--nodes", "gpu-01")
    gpu = Identity(lab, "gpu-01")
    lab.node("gpu-01").fault("gpu_silent", gpu=GPU)

    done, findings = validated(operator, "gpu-01", "--stage", "quick")
    assert done.returncode == ExitCode.UNHEALTHY
    assert blamed(findings) == {f"gpu{GPU}"}
    (lost,) = [finding for finding in findings if finding["verdict"] == "fail"]
    assert lost["action"] == "power-cycle"
    assert gpu.serial in lost["message"]
    assert gpu.address in lost["message"].lower()
    assert any(f["verdict"] == "pass" and "7 GPUs" in f["message"] for f in findings), "the others are judged"

    done = operator.call("drift", *one, gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.DRIFT
    for word in (f"GPU {GPU} ", gpu.serial, "power-cycle the node"):
        assert word in said(done)

    began = time.monotonic()
    done = operator.call("up", *one, "--yes", "--no-canary", gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.UNHEALTHY
    assert time.monotonic() - began < 60, "it waits for nothing"
    for word in ("A GPU does not answer", f"{GPU}, 0000{gpu.address}", gpu.serial, "power-cycle"):
        assert word.lower() in said(done).lower()

    (tmp_path / "profile.yml").write_text(
        PROFILE.replace("minutes: 20, step_minutes: 5", "minutes: 4, step_minutes: 2")
    )
    done = operator.call(
        "burnin", "start", *one, "--profile", str(tmp_path / "profile.yml"), gpuprov_roles=ROLES
    )
    assert done.returncode == ExitCode.UNHEALTHY
    assert f"gpu{GPU}: does not answer" in said(done)
    assert gpu.serial in said(done)
    assert not [other for other in range(8) if other != GPU and f"gpu{other}:" in said(done)]


# A different GPU each, because a GPU that fails in three runs must be replaced.
@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    ("check", "number"), [("memory_bandwidth", 0), ("nccl_all_reduce", 1), ("gpu_burn", 2)]
)
def test_under_load_the_check_names_it(check: str, number: int, lab: Lab, operator: Operator) -> None:
    gpu = Identity(lab, "gpu-02", number)
    lab.node("gpu-02").fault("gpu_silent", gpu=number, onset=1)
    done, findings = validated(operator, "gpu-02", "--checks", check, "--timeout", "60")
    assert done.returncode == ExitCode.UNHEALTHY
    assert blamed(findings) == {f"gpu{number}"}
    (lost,) = [
        finding for finding in findings if finding["verdict"] == "fail" and finding["metric"] == "lost"
    ]
    assert lost["action"] == "power-cycle"
    assert gpu.serial in lost["message"]
    assert gpu.address in lost["message"].lower()
    assert "run again" not in {finding["action"] for finding in findings}


@pytest.mark.usefixtures("whole")
def test_in_a_burn_in_it_is_named_with_its_time(lab: Lab, operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "profile.yml").write_text(PROFILE)
    gpu = Identity(lab, "gpu-02")
    lab.node("gpu-02").fault("gpu_silent", gpu=GPU, onset=100)
    done = operator.call("burnin", "start", "--nodes", "gpu-02", "--profile", str(tmp_path / "profile.yml"))
    text = said(done)
    assert done.returncode == ExitCode.UNHEALTHY, text
    assert f"fail gpu{GPU}: was lost under load" in text
    assert gpu.serial in text
    assert "during heat" in text
    assert not [other for other in range(8) if other != GPU and f"gpu{other}:" in text]


@pytest.mark.usefixtures("whole")
def test_up_does_not_wait_for_a_gpu_lost_meanwhile(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-02")
    gpu = Identity(lab, "gpu-02")
    node.fault("fabric_down")
    began = time.monotonic()
    with operator.began("up", "--nodes", "gpu-02", "--yes", "--no-canary", gpuprov_roles=ROLES) as up:
        time.sleep(12)  # by now it waits for the fabric
        node.fault("gpu_silent", gpu=GPU)
        output, _ = up.communicate(timeout=200)
    assert up.returncode == ExitCode.UNHEALTHY
    assert time.monotonic() - began < 90
    assert "A GPU does not answer" in " ".join(output.split())
    assert gpu.serial in output
