"""Crashing programs of an unprivileged user, named like GPU errors, change no verdict of the node."""

from __future__ import annotations

import base64
import json
import os
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.support.processes import until

ROLES = {
    "gpu-01": ["nvidia_repository", "nvidia_driver", "nvlink", "node_health"],
    "amd-01": ["amd_repository", "amdgpu_driver", "rocm", "node_health"],
}
BREAKS: dict[str, dict[str, Any]] = {
    "gpu-01": {"fault": "gpu_off_bus", "gpu": 3},
    "amd-01": {"fault": "ecc_uncorrectable", "gpu": 3, "count": 2},
}
NAMES = [
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "amdgpu 0000:1b:00.0: amdgpu: GPU reset(2) failed",
    "amdgpu: GPU reset(2) failed",
]
# A program of 124 bytes that writes to address 0.
CODE = b"\x31\xc0\x89\x00"
CRASHES = (
    b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 124, 124, 0x1000)
    + CODE
)
# Runs as `ops`, without sudo. The kernel prints at most ten crashes in 5 s.
CRASH = f"""
import base64, os, subprocess, tempfile, time
assert os.geteuid() != 0
folder = tempfile.mkdtemp()
for name in {NAMES!r}:
    for before in ("", "a\\n", "a\\n[    1.000000] ", "a\\r[    1.000000] "):
        path = os.path.join(folder, before + name)
        with open(path, "wb") as file:
            file.write(base64.b64decode({base64.b64encode(CRASHES)!r}))
        os.chmod(path, 0o755)
        assert subprocess.run([path]).returncode == -11
        time.sleep(0.7)
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("amd-01", "mi300x"))
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("forged", nodes, inventory) as running:
        for name, roles in ROLES.items():
            operator = Operator(inventory, tmp_path_factory.mktemp(name))
            more = {"gpuprov_roles": roles, "node_health_enabled": True}
            done = operator.call("up", "--yes", "-l", name, timeout=1200, **more)
            assert done.returncode == ExitCode.OK, said(done)
        yield running


def messages() -> dict[int, str]:
    """Return messages of the host's kernel by number, since the nodes' programs run on it.
    Old ones get overwritten, so their count proves nothing."""
    found: dict[int, str] = {}
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(handle, 16384).decode()
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # overwritten during the read
            head, _, text = record.partition(";")
            found[int(head.split(",")[1])] = text.partition("\n")[0]
    finally:
        os.close(handle)


def health(node: LabNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.as_root("cat /run/gpuprov/health.json").stdout)
    return found


def of_the_log(findings: list[dict[str, Any]]) -> list[str]:
    kinds = ("xid", "sxid", "aer", "amdgpu")
    return [
        f"{one['device']}: {one['message']}"
        for one in findings
        if one["metric"].partition(".")[0] in kinds and one["verdict"] != "pass"
    ]


@pytest.mark.parametrize("name", ["gpu-01", "amd-01"])
def test_a_user_forges_nothing_and_a_real_error_is_found(lab: Lab, operator: Operator, name: str) -> None:
    node = lab.node(name)
    node.as_root("systemctl stop gpuprov-node-health.timer; systemctl start gpuprov-node-health.service")
    verdict, started = health(node)["verdict"], health(node)["started"]
    before = max(messages(), default=-1)
    node.run("python3 -", said=CRASH)
    crashes = [text for number, text in messages().items() if number > before and "segfault at" in text]
    assert len(crashes) >= 4 * len(NAMES)
    # Simulated GPUs have a separate kernel log with the driver's simulated lines.
    up = "$(( $(date +%s) - $(cut -d. -f1 /var/lib/silicon/boot_time) ))"
    relay = f'while IFS= read -r line; do printf "[%12.6f] %s\\n" {up} "$line"; done >> /var/lib/silicon/kmsg'
    node.as_root(relay, said="\n".join(crashes) + "\n")
    assert "segfault at" in node.as_root("dmesg").stdout
    time.sleep(5)
    assert health(node)["started"] == started, "the watcher started no run"
    node.as_root("systemctl start gpuprov-node-health.service")
    assert health(node)["started"] != started
    assert (health(node)["verdict"], of_the_log(health(node)["findings"])) == (verdict, [])
    done = operator.call("validate", "-l", name, "--json", "--checks", "gpu_inventory")
    (checked,) = json.loads(done.stdout)["nodes"]
    findings = [finding for check in checked["checks"] for finding in check["findings"]]
    assert of_the_log(findings) == []
    assert any("no GPU error in the kernel log" in finding["message"] for finding in findings)

    node.fault(**BREAKS[name])
    until(lambda: of_the_log(health(node)["findings"]) != [], 30)
    assert health(node)["verdict"] == "fail"
