"""Debian's own rocm-smi, amd-smi and rocminfo, as AMD wrote them, on nodes with simulated GPUs.

Their messages without a driver are recognised, and rocm-smi reads the same from the kernel's files as
gpuprov. So an independent reader verifies the files of the simulated driver. amd-smi and rocminfo query the
devices themselves, which are missing, so their refusals are real, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.checks.check import Output
from provision.checks.vendors.amd import smi
from provision.desired import inventory
from provision.errors import ExitCode, ParseError
from provision.remote.reach.observe import observe
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
NODES = (NodeSpec("amd-01", "mi300x"), NodeSpec("amd-02", "mi250x"))
ROLES = ["amd_repository", "amdgpu_driver"]
INSTALL = (
    "apt-get -qq -o Acquire::Retries=3 update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "
    "--no-install-recommends amd-smi rocm-smi rocminfo"
)
LINK = 50_000  # MB/s: rocm-smi's value for each link
STATIC = ("amd-smi", "static", "--asic", "--bus", "--limit", "--vram", "--ras", "--json")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("amdreal", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        for node in running.nodes:
            node.as_root(INSTALL)
        yield running


def facts(lab: Lab) -> dict[str, list[Mapping[str, Any]]]:
    """Return gpuprov's observation of each node's GPUs."""
    nodes = inventory.load(lab.inventory).nodes
    seen = observe(nodes.values(), dict.fromkeys(nodes, frozenset({"amdgpu.devices"})))
    return {name: seen[name].facts["amdgpu.devices"] for name in nodes}


def rocm_smi(node: LabNode, *words: str) -> dict[str, Any]:
    return dict(json.loads(node.as_root(f"rocm-smi {' '.join(words)} --json").stdout))


def judged(operator: Operator) -> dict[str, dict[str, list[str]]]:
    """Return node → check → messages of what could not be measured."""
    done = operator.call("validate", "--stage", "quick", "--json")
    assert done.returncode == ExitCode.INCOMPLETE, said(done)
    return {
        node["node"]: {
            check["check"]: [one["message"] for one in check["findings"] if one["verdict"] == "error"]
            for check in node["checks"]
        }
        for node in json.loads(done.stdout)["nodes"]
    }


def understood(node: LabNode) -> ParseError:
    """Return the parser's error for amd-smi's refusal."""
    done = node.run(f"sudo {' '.join(STATIC)}", check=False)
    output = Output("amd_smi_static", STATIC, done.returncode, done.stdout, done.stderr, seconds=0.1)
    with pytest.raises(ParseError) as caught:
        smi.entries(output)
    return caught.value


def test_without_the_driver_their_words_are_understood_and_nothing_is_called_healthy(
    operator: Operator, lab: Lab
) -> None:
    for node in lab.nodes:
        assert "amdgpu not found in modules" in understood(node).what
        assert "Driver not initialized" in node.run("rocm-smi 2>&1", check=False).stdout
        assert "ROCk module is NOT loaded" in node.run("rocminfo 2>&1", check=False).stdout
    done = operator.call("validate", "--stage", "quick", "--json")
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    for node in json.loads(done.stdout)["nodes"]:
        found = {check["check"]: check["verdict"] for check in node["checks"]}
        assert (found["gpu_inventory"], found["versions"], found["host_health"]) == ("error", "error", "fail")


def test_nor_with_the_driver_where_amd_smi_cannot_ask_the_devices(operator: Operator) -> None:
    done = operator.call("up", "--yes", timeout=900, gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    for name, checks in judged(operator).items():
        assert len(checks["gpu_inventory"]) == 1, (name, checks)
        assert "amd-smi" in checks["gpu_inventory"][0]


def test_who_a_gpu_is_reads_alike(lab: Lab) -> None:
    seen = facts(lab)
    for node in lab.nodes:
        words = ("--showbus", "--showuniqueid", "--showserial", "--showvbios", "--showmeminfo vram")
        cards = rocm_smi(node, *words)
        theirs = {
            card["PCI Bus"].lower(): (
                int(card["Unique ID"], 16), card["Serial Number"], card["VBIOS version"],
                int(card["VRAM Total Memory (B)"]),
            )
            for card in cards.values()
        }  # fmt: skip
        ours = {
            one["address"]: (int(one["unique_id"], 16), one["serial"], one["vbios"], one["memory_bytes"])
            for one in seen[node.name]
        }
        assert len(ours) == 8
        assert theirs == ours


def test_errors_of_a_block_read_alike(lab: Lab) -> None:
    lab.node("amd-01").fault("ecc_uncorrectable", gpu=3, count=2)
    lab.node("amd-02").fault("ras_errors", gpu=5, block="gfx", kind="ue", count=7)
    try:
        seen = facts(lab)
        for node, gpu, block in ((lab.node("amd-01"), 3, "UMC"), (lab.node("amd-02"), 5, "GFX")):
            printed = node.as_root("rocm-smi --showrasinfo all").stdout
            theirs = {}
            for number, text in re.findall(
                r"GPU\[(\d)\]\s*: *\tRAS INFO(.*?)(?=GPU\[|====)", printed, re.DOTALL
            ):
                counts = re.findall(r"^\s*(\w+)\s+ENABLED\s+(\d+)\s+(\d+)\s*$", text, re.MULTILINE)
                assert len(counts) == 7, text
                theirs[int(number)] = (
                    sum(int(ce) for _, ce, _ in counts), sum(int(ue) for _, _, ue in counts),
                    [name for name, _, ue in counts if int(ue)],
                )  # fmt: skip
            ours = [(one["corrected"], one["uncorrected"]) for one in seen[node.name]]
            assert [counted[:2] for _, counted in sorted(theirs.items())] == ours
            assert theirs[gpu][2] == [block]
            assert sum(uncorrected for _, uncorrected in ours) in (2, 7)
    finally:
        for node in lab.nodes:
            node.heal()


def test_links_between_gpus_read_alike(lab: Lab) -> None:
    """Compare the wiring and the number of links; on the MI300X, one did not come up at boot."""
    lab.node("amd-01").fault("xgmi_down", a=1, b=2, since="boot")
    try:
        seen = facts(lab)
        for node in lab.nodes:
            printed = node.as_root("rocm-smi --shownodesbw").stdout
            rows = re.findall(r"^GPU\d((?:\s+(?:N/A|\d+-\d+)){8})\s*$", printed, re.MULTILINE)
            widths = [[int(most) for _, most in re.findall(r"(\d+)-(\d+)", row)] for row in rows]
            theirs = [(sum(row) // LINK, sum(map(bool, row))) for row in widths]
            assert [(one["xgmi_links"], one["xgmi_peers"]) for one in seen[node.name]] == theirs
        assert [one["xgmi_peers"] for one in seen["amd-01"]] == [7, 6, 6, 7, 7, 7, 7, 7]
    finally:
        lab.node("amd-01").heal()
