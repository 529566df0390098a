"""`amd-smi set --power-cap`, the only setting of the simulated GPUs.

Its arguments differ by release: `-o WATTS` until 7.1, `-o ppt0 WATTS` in 7.2 (ROCm/legacy-rocm-build issue
5231, amd/MxGPU-Virtualization issue 26), `-o WATTS [ppt0]` later (amdsmi_parser.py of ROCm/rocm-systems).
"""

import json
import sys

from amd import readings, sysfs

NAMED = (7, 2)  # the release that requires the limit's name
LATER = (7, 13)  # the first known release with the name last and optional


def power_cap(node, gpus: list, words: list, release: tuple) -> int:
    """Run `set -g N -o …` and print the outcome for each GPU; the status is 0 except for a wrong call."""
    if not node.privileged():
        print("PermissionError: Command requires elevation", file=sys.stderr)
        return 1
    watts = _watts(words[1:], release) if words[:1] in (["-o"], ["--power-cap"]) else None
    if watts is None or not gpus:
        print("amd-smi set: error: argument -o/--power-cap: invalid arguments", file=sys.stderr)
        return 2
    name = "PPT0 " if release >= NAMED else ""
    for number, gpu in enumerate(node.gpus):
        if gpu in gpus:
            print(f"GPU: {number}\n    POWERCAP: {_set(node, gpu, watts, name)}\n")
    sysfs.write(node)
    return 0


def _watts(words: list, release: tuple):
    """Return the number if the arguments match this release; else None."""
    if release >= LATER:
        right = len(words) in (1, 2) and words[1:] in ([], ["ppt0"])
        return int(words[0]) if right and words[0].isdigit() else None
    if (words[:1] == ["ppt0"]) != (release >= NAMED) or not words[-1:] or not words[-1].isdigit():
        return None
    return int(words[-1]) if len(words) == (2 if release >= NAMED else 1) else None


def _set(node, gpu, watts: int, name: str) -> str:
    now = readings.power_limit(node, gpu)
    if not now:
        return f"Unable to set {name}power cap to {watts}W, current value is 0W"
    if watts == now:
        return f"{name or 'Power '}{'power ' if name else ''}cap is already set to {watts}W"
    if not 1 <= watts <= node.sku["power"]:
        return f"Power cap must be between 1W and {node.sku['power']}W"
    caps = dict(readings.power_caps(node))
    caps[gpu["slot"]] = watts
    (node.folder / readings.POWER_CAPS).write_text(json.dumps(caps))
    return f"Successfully set {name}power cap to {watts}W"
