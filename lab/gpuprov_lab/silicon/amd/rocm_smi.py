"""rocm-smi, AMD's older program, limited to options still in use: identity and memory, as JSON.

Its keys are sentences, after ROCm/legacy-rocm-build issue 4750 (MI300X, ROCm 6.4).
"""

import json
import sys

from amd import readings


def rocm_smi(node, arguments: list) -> int:
    """Run --showproductname, --showbus, --showuniqueid, --showmeminfo vram, --showmaxpower, with --json."""
    if not node.loaded("amdgpu"):
        print("cat: /sys/module/amdgpu/initstate: No such file or directory", file=sys.stderr)
        print("ERROR:root:Driver not initialized (amdgpu not found in modules)", file=sys.stderr)
        return 1
    found = {}
    for number, gpu in enumerate(readings.answering(node)):
        identity = readings.identity(node, gpu)
        card = {}
        if "--showproductname" in arguments:
            card.update({"Card Series": node.sku["product"], "Card Model": "0x" + node.sku["device"],
                         "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
                         "GFX Version": node.sku["gfx"]})  # fmt: skip
        if "--showbus" in arguments:
            card["PCI Bus"] = gpu["address"].upper()
        if "--showuniqueid" in arguments:
            card["Unique ID"] = "0x" + identity["unique_id"]
        if "--showmaxpower" in arguments and readings.power_limit(node, gpu):
            card["Max Graphics Package Power (W)"] = f"{float(readings.power_limit(node, gpu))}"
        if "--showmeminfo" in arguments:
            card["VRAM Total Memory (B)"] = str(readings.vram_bytes(node, gpu))
            card["VRAM Total Used Memory (B)"] = str(283 * 2**20)
        found[f"card{number}"] = card
    if not any(found.values()):
        print("WARNING: No JSON data to report")
        return 0
    if "--json" in arguments:
        print(json.dumps(found))
        return 0
    for name, card in found.items():
        for key, value in card.items():
            print(f"GPU[{name[4:]}]\t\t: {key}: {value}")
    return 0
