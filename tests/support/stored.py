"""Output and facts of a node with eight H100, for tests of stored runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision import report
from provision.checks import check
from provision.checks.check import Output
from provision.checks.judging.node_facts import NodeFacts
from provision.runs import store
from provision.runs.store import RunFolder
from provision.validate import campaign

FIXTURE = Path(__file__).parent.parent / "fixtures" / "p2p_bandwidth" / "healthy.json"
GPU = {
    "count": 8,
    "sku": "h100-sxm",
    "fabric": "nvswitch",
    "architecture": "hopper",
    "pci_ids": ["10de:2330"],
}


def measured(runs: Path, printed: Mapping[str, str], *, written: bool = True) -> RunFolder:
    """Store a run in which nvbandwidth printed these texts (node → text), with a report if `written`."""
    folder = RunFolder.create("validate", {}, runs=runs)
    folder.note(inventory="inventory.yml", asked=["p2p_bandwidth"])
    for node, text in printed.items():
        folder.append("facts", asdict(NodeFacts(node, {}, {"gpu": GPU}, {})))
        output = Output("nvbandwidth", ("nvbandwidth",), 0, text, "", 9.0)
        store.keep_raw(folder, check.Raw(node, "p2p_bandwidth", (output,), 9.0))
    if written:
        report.write_all(campaign.rejudge(folder), folder.path, ["json"])
    return folder


def limits(path: Path, value: float) -> str:
    """Write a file of thresholds with this limit for copies from the host."""
    row = {"limit": value, "unit": "GB/s", "direction": "at_least"}
    row |= {"kind": "measured", "source": "our own fleet"}
    path.write_text(json.dumps({"sku": "h100-sxm", "thresholds": {"p2p_bandwidth.h2d": row}}))
    return str(path)


def slower(text: str, share: float) -> str:
    """Return the document with every bandwidth of host copies scaled by `share`."""
    document = json.loads(text[text.index("{") :])
    for case in document["nvbandwidth"]["testcases"]:
        if case["name"].startswith("host_to_device"):
            for row in case["bandwidth_matrix"]:
                row[:] = [f"{float(value) * share:.2f}" for value in row]
    return json.dumps(document)


FACTS: dict[str, Any] = {
    **{"os.id": "debian", "os.version_id": "13", "kernel.release": "6.12.107+deb13-amd64"},
    **{"driver.loaded_version": "580.126.09", "driver.userspace_version": "580.126.09"},
    **{"driver.flavour": "open", "firmware.gpu_vbios": ["96.00.89.00.01"] * 8},
    **{"firmware.bios_version": "2.1", "firmware.system": "Supermicro X"},
    "gpu.pci": [{"subsystem_id": "10de:16c1"}] * 8,
    "firmware.rdma": [{"device": f"mlx5_{i}", "board_id": "MT_838", "firmware": "28.43"} for i in range(8)],
}
