"""Three lab nodes of one kind: a differing VBIOS, a fact without an answer, and an expired pass."""

from __future__ import annotations

import base64
import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.elf import kernel_module
from gpuprov_lab.spec import NodeSpec
from provision.checks.judging import registry
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import Lab, LabNode, running_lab

NAMES = ("odd-01", "odd-02", "odd-03")
ODD = "95.02.10.00.99"
# No role takes part: other tests cover declared state.
NOTHING = ("--set", "gpuprov_roles=[]")
NVIDIA_SMI = '#!/bin/sh\nexec /usr/bin/python3 -I -S /usr/lib/silicon/run.py nvidia-smi "$@"\n'
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    wanted = tuple(NodeSpec(name, "l40s") for name in NAMES)
    with running_lab("odd", wanted, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        for node in running.nodes:
            load_driver(node)
        yield running


def load_driver(node: LabNode) -> None:
    """Load the simulated driver without an installation: a module and a library on disk, then a boot."""
    release = node.run("uname -r").stdout.strip()
    module = base64.b64encode(kernel_module("nvidia", "580.126.09", "open", release, [])).decode()
    folder, library = (
        f"/usr/lib/modules/{release}/updates/dkms",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    )
    node.run(
        f"sudo mkdir -p {folder} && echo {module} | base64 -d | sudo tee {folder}/nvidia.ko > /dev/null && "
        f"sudo ln -sfn libnvidia-ml.so.580.126.09 {library} && "
        "echo blacklist nouveau | sudo tee /etc/modprobe.d/blacklist-nouveau.conf && "
        f"printf '%s' {shlex.quote(NVIDIA_SMI)} | sudo tee /usr/bin/nvidia-smi > /dev/null && "
        "sudo chmod 755 /usr/bin/nvidia-smi"
    )
    node.reboot()
    node.run("sudo nvidia-smi -pm 1")
    assert "580.126.09" in node.run("cat /proc/driver/nvidia/version").stdout


def drift(operator: Operator, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Return exit code, text and document of one `drift`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "drift.json"
        done = operator.call("drift", *NOTHING, "--format", f"json={file}", *words)
        assert file.exists(), done.stderr
        return done.returncode, done.stdout, json.loads(file.read_text())


def test_nodes_of_a_kind_are_alike_and_never_validated(operator: Operator) -> None:
    code, text, found = drift(operator)
    assert code == ExitCode.OK, text
    assert found["majority"]["compared"] == 3
    assert "odd-[01-03]  never validated" in text
    assert drift(operator, "--require-validated")[0] == ExitCode.INCOMPLETE


def test_the_odd_vbios_is_named_with_the_majority_and_its_place(lab: Lab, operator: Operator) -> None:
    lab.node("odd-02").fault("vbios", gpu=5, version=ODD)
    try:
        code, text, found = drift(operator)
        assert drift(operator, "--no-majority")[0] == ExitCode.OK
    finally:
        lab.node("odd-02").heal()
    assert code == ExitCode.DRIFT
    (odd,) = found["majority"]["outliers"]
    assert (odd["node"], odd["fact"], odd["agree"], odd["answered"]) == ("odd-02", "firmware.gpu_vbios", 2, 3)
    assert f"odd-02  firmware.gpu_vbios is {ODD} on GPU 5, 2 of 3 (l40s on debian 13) have " in text
    assert drift(operator)[0] == ExitCode.OK


def test_a_node_without_an_answer_is_drift_and_three_values_are_ambiguous(
    lab: Lab, operator: Operator
) -> None:
    card = "/proc/driver/nvidia/gpus/*/information"
    for node, version in zip(lab.nodes, ("01", "02", "03"), strict=True):
        node.run(f"sudo sed -i 's/^Video BIOS: .*/Video BIOS: \\t 95.02.66.00.{version}/' {card}")
    _, text, found = drift(operator)
    (tie,) = found["majority"]["ties"]
    assert tie["fact"] == "firmware.gpu_vbios"
    assert [side["nodes"] for side in tie["sides"]] == [["odd-01"], ["odd-02"], ["odd-03"]]
    assert "firmware.gpu_vbios ambiguous, no value has a majority of l40s on debian 13: 1 have " in text
    lab.node("odd-03").run(f"sudo sed -i 's/^Video BIOS: .*/Video BIOS: \\t ??.??.??.??.??/' {card}")
    code, text, found = drift(operator)
    assert code == ExitCode.DRIFT
    (unknown,) = [each for each in found["majority"]["outliers"] if each["unknown"]]
    assert unknown["node"] == "odd-03"
    assert "odd-03  firmware.gpu_vbios has no value (the driver has not started the GPU at " in text
    for node in lab.nodes:
        node.fault("vbios", gpu=0)  # rewrites the surfaces
        node.heal()
    assert drift(operator)[0] == ExitCode.OK


def test_a_pass_expires_when_what_it_depended_on_changes(lab: Lab, operator: Operator) -> None:
    done = operator.call("validate", "--checks", "gpu_inventory", "--json")
    verdicts = {
        node["node"]: [check["verdict"] for check in node["checks"]]
        for node in json.loads(done.stdout)["nodes"]
    }
    assert verdicts == {name: ["pass"] for name in NAMES}, done.stdout[-2000:]
    _, text, found = drift(operator)
    assert {each["check"] for each in found["validation"]["not_validated"]} == {
        *registry.select("standard")
    } - {"gpu_inventory"}
    assert "expired" not in text

    lab.node("odd-01").fault("gpu_swapped", gpu=3)
    lab.node("odd-02").fault("pcie_width", gpu=6, width=8)
    try:
        _, text, found = drift(operator)
    finally:
        lab.node("odd-01").heal()
        lab.node("odd-02").heal()
    gone = {
        each["node"]: [change["text"].partition(" ")[0] for change in each["changes"]]
        for each in found["validation"]["not_validated"]
        if each["verdict"] == "pass"
    }
    assert gone == {"odd-01": ["gpu.uuid[3]"], "odd-02": ["gpu.link_width[6]"]}
    assert "odd-02  passed gpu_inventory on 20" in text
    assert ", expired: gpu.link_width[6] 16 → 8\n" in text
    assert f"run: gpuprov validate {lab.inventory} --nodes odd-02 --checks gpu_inventory\n" in text
    # The narrow link is also an outlier among its peers; a different GPU of the same kind is not.
    assert [each["node"] for each in found["majority"]["outliers"]] == ["odd-02"]
