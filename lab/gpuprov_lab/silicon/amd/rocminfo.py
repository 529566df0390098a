"""rocminfo: the agents that programs can compute with, CPUs first.

Forms: rocminfo 5.2 of Debian, and its output on an MI250X in ROCm/rocm_smi_lib issue 165.
"""

import sys

from amd import readings


def rocminfo(node, arguments: list) -> int:
    del arguments
    if not node.loaded("amdgpu"):
        print("ROCk module is NOT loaded, possibly no GPU devices", file=sys.stderr)
        return 1
    if not readings.answering(node):
        print("ROCk module is loaded\nUnable to open /dev/kfd read-write: No such file or directory")
        return 255
    version = node.folder / "sys_module/amdgpu/version"
    known = f" version {version.read_text().strip()}" if version.exists() else ""
    print(f"ROCk module{known} is loaded")
    print("=====================\nHSA System Attributes\n=====================")
    print("Runtime Version:         1.1\nSystem Timestamp Freq.:  1000.000000MHz\n")
    print("==========\nHSA Agents\n==========")
    number = 0
    for socket in sorted({gpu["numa"] for gpu in node.gpus}):
        number += 1
        _agent(number, f"AMD EPYC 9654 96-Core Processor {socket}", "CPU-XX", "AMD EPYC 9654", "CPU", 96)
    for gpu in readings.answering(node):
        number += 1
        unique = readings.identity(node, gpu)["unique_id"]
        _agent(number, node.sku["gfx"], f"GPU-{unique}", node.sku["name"], "GPU", node.sku["units"])
        print(f"  BDFID:                   {int(gpu['bus'], 16) << 8}")
    print("*** Done ***")
    return 0


def _agent(number: int, name: str, uuid: str, market: str, kind: str, units: int) -> None:
    print(f"*******\nAgent {number}\n*******")
    print(f"  Name:                    {name}")
    print(f"  Uuid:                    {uuid}")
    print(f"  Marketing Name:          {market}")
    print("  Vendor Name:             " + ("AMD" if kind == "GPU" else "CPU"))
    print(f"  Device Type:             {kind}")
    print(f"  Compute Unit:            {units}")
