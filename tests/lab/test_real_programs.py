"""Real programs on a node without GPU, driver or RDMA: their messages reach the check that runs them.

docs/detection.md quotes the messages and the findings; this runs the programs of Debian 13 and finds both
again. The bus has simulated GPUs and cards without function.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from tests.lab.gpuprov_up import ROOT, Operator
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
PACKAGES = (
    "nvidia-smi", "gpu-burn", "perftest", "ibverbs-utils", "rdma-core", "openmpi-bin", "fio", "nvme-cli",
    "podman", "docker-cli",
)  # fmt: skip
CHECKS = "gpu_inventory,host_health,network_ports,rdma_loopback,disk_speed,gpu_burn,memory_bandwidth"
IMAGE: dict[str, Any] = {"gpuprov_container_image": "localhost/absent"}


@dataclass(frozen=True)
class Row:
    """A row of the table in docs/detection.md."""

    program: str
    words: str
    check: str
    answer: str


def documented() -> list[Row]:
    text = (ROOT / "docs/detection.md").read_text(encoding="utf-8")
    table = text.split("<!-- real programs: begin -->")[1].split("<!-- real programs: end -->")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(program, words, check, answer) for program, words, check, answer in cells]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm", network="ib"), NodeSpec("gpu-02", "h100-sxm", network="ib"))
    with running_lab("real", nodes, tmp_path_factory.mktemp("real") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def seen(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, list[str]]]:
    """Return all output of the programs, and the message of every finding by check."""
    for node in lab.nodes:
        node.as_root(
            "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq "
            f"--no-install-recommends {' '.join(PACKAGES)}",
            timeout=600,
        )
    node = lab.node("gpu-01")
    node.as_root("mkdir /scratch && mount -t tmpfs -o size=1m none /scratch")
    node.as_root("ln -s /usr/sbin/gpu-burn /usr/bin/gpu_burn")
    # podman's default storage depends on the machine below the node.
    node.as_root("printf '[storage]\\ndriver = \"vfs\"\\n' > /etc/containers/storage.conf")
    node.as_root(
        'printf \'runroot = "/run/pods"\\ngraphroot = "/var/pods"\\n\' >> /etc/containers/storage.conf'
    )
    # Docker counts as installed if its daemon is; this one never runs.
    node.as_root("touch /usr/bin/dockerd")
    # The node's dmesg is the lab's; util-linux has the real one, which may not read the log in a container.
    node.as_root("cd /tmp && apt-get download -qq util-linux && dpkg -x util-linux_*.deb real")
    node.as_root("cp /tmp/real/usr/bin/dmesg /usr/bin/dmesg")
    runs = tmp_path_factory.mktemp("runs")
    operator = Operator(lab.inventory, runs)
    one = ("--nodes", "gpu-01")
    operator.call("validate", *one, "--checks", CHECKS, validation_tools_scratch_dir="/scratch", **IMAGE)
    node.as_root("apt-get install -y -qq --no-install-recommends libcublas12", timeout=600)
    node.as_root("umount /scratch")
    node.as_root("rm /usr/bin/dockerd")
    operator.call("validate", *one, "--checks", "gpu_burn,host_health", **IMAGE)
    operator.call("validate", "--checks", "pair_bandwidth,pair_latency,nccl_group")
    return _raw(runs), _messages(runs)


def _raw(runs: Path) -> str:
    outputs: list[dict[str, Any]] = []
    for file in runs.glob("*/raw/**/*.json"):
        outputs += json.loads(file.read_text(encoding="utf-8")).get("outputs", [])
    return "\n".join(f"{one['stdout']}\n{one['stderr']}" for one in outputs)


def _messages(runs: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("message"), str) and isinstance(value.get("check"), str):
                found.setdefault(value["check"], []).append(value["message"])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for file in runs.glob("*/report.json"):
        walk(json.loads(file.read_text(encoding="utf-8")))
    return found


def test_at_least_twelve_programs_are_documented() -> None:
    assert len({row.program.split()[0] for row in documented()}) >= 12


@pytest.mark.parametrize("row", documented(), ids=lambda row: f"{row.program}-{row.check}")
def test_a_programs_own_words_reach_its_check(row: Row, seen: tuple[str, dict[str, list[str]]]) -> None:
    raw, messages = seen
    said = messages.get(row.check, [])
    assert row.words in raw or any(row.words in one for one in said), said
    assert any(row.answer in one for one in messages[row.check]), messages[row.check]
