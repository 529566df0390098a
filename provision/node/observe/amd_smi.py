"""GPUs as reported by amd-smi, with one entry each in `amd_smi.gpus`, in the order of amd-smi.

The same GPUs are in amdgpu.devices, read without it; a GPU that amd-smi does not list is on the bus, but no
program can use it. `amd_smi.silent` has those, from `amd-smi list`, which also works in virtual machines, or
from the compute driver's topology if amd-smi is not installed. ROCm 6 prints a list, later releases the
list below `gpu_data`; the power limits moved, too.
"""

import os

from provision.node.observe.amdgpu import MODULE, kfd_properties
from provision.node.observe.files import at
from provision.node.observe.probe import FAMILIES, Probe, answered, whole_family
from provision.node.observe.system import bus_address, gpus_of
from provision.node.observe.vendors import AMD

AMD_SMI = ("/usr/bin/amd-smi", "/opt/rocm/bin/amd-smi", "/opt/rocm/core/bin/amd-smi")
AMD_PATIENCE = 3  # multiple of the usual timeout; no figure has been published for eight GPUs
# Prints all sections available on this machine. A guest of a hypervisor (SR-IOV) has no limits, and with ROCm
# up to 6.3 no RAS; amd-smi rejects a call that names a missing section (amdsmi_parser.py: is_baremetal).
STATIC = ("static", "--json")


def amount(value):
    """Return the integer in {"value": 750, "unit": "W"} or of a bare number; None for `N/A`."""
    number = value.get("value") if isinstance(value, dict) else value
    return int(number) if isinstance(number, (int, float)) and abs(number) < 1e15 else None


def within(entry, *names):
    """Return the value under these keys of nested dictionaries; None if one is missing."""
    for name in names:
        entry = entry.get(name) if isinstance(entry, dict) else None
    return entry


def memory_ecc(blocks):
    """Return ENABLED or DISABLED for the memory block; None if the memory is not the GPU's own.

    For a GPU in the CPU's socket, or one connected to the CPU by xGMI, the driver manages only three blocks
    (amdgpu_ras.c); errors of their memory are counted with the CPU's (edac.controllers).
    """
    states = blocks if isinstance(blocks, dict) else {}
    managed = [name for name in states if states[name] == "ENABLED"]
    if managed and set(managed) <= {"GFX", "SDMA", "MMHUB"}:
        return None
    return states["UMC"] if isinstance(states.get("UMC"), str) else None


def of_amd_smi(entry):
    """Flatten an entry of `amd-smi static`."""
    limit = within(entry, "limit")
    current = within(limit, "ppt0", "socket_power_limit") or within(limit, "socket_power")
    most = within(limit, "ppt0", "max_power_limit") or within(limit, "max_power")
    name = within(entry, "asic", "market_name")
    return {
        "address": str(within(entry, "bus", "bdf")).lower(),
        "name": name if isinstance(name, str) else None,
        "memory_mib": amount(within(entry, "vram", "size")),  # amd-smi prints MB, but means MiB
        "power_limit_w": amount(current),
        "power_limit_max_w": amount(most),
        "memory_ecc": memory_ecc(within(entry, "ras", "ecc_block_state")),
    }


def amd_entries(output, *place):
    """Return the entries of amd-smi's document, each of which has the PCI address under these keys."""
    import json  # loaded only on nodes with such GPUs

    # Warnings may precede the document: WARNING: User is missing the following required groups: render
    starts = [place for place in (output.find("\n" + sign) for sign in "[{") if place >= 0]
    text = "\n" + output if output[:1] in ("[", "{") else output[min(starts) :] if starts else ""
    try:
        document = json.JSONDecoder().raw_decode(text.lstrip())[0]
    except ValueError:
        raise answered("amd-smi", output) from None
    entries = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(entries, list) or not all(isinstance(within(entry, *place), str) for entry in entries):
        raise answered("amd-smi", output)
    return entries


def parse_static(names, output):
    entries = amd_entries(output, "bus", "bdf")
    return {name: [of_amd_smi(entry) for entry in entries] for name in names}


def amd_probe(name, words, parse, without=lambda: None):
    for path in AMD_SMI:
        if os.access(at(path), os.X_OK):
            return Probe([name], None, [path, *words], parse, AMD_PATIENCE)
    return Probe([name], read=lambda: {name: without()})


def left_out(listed, by_whom):
    """Return a line per unlisted GPU on the bus; a lost GPU leaves the list (burnin/amd_gpus.py)."""
    on_bus = [address for address in gpus_of(AMD, "amdgpu") if address not in listed]
    return ["%s: not listed by %s" % (address, by_whom) for address in on_bus]


def parse_list(names, output):
    listed = [bus_address(entry["bdf"]) for entry in amd_entries(output, "bdf")]
    return dict.fromkeys(names, left_out(listed, "amd-smi"))


def amd_silent_probe(name):
    if not os.path.isdir(at(MODULE)):  # without the driver, no GPU counts as silent
        return Probe([name], read=lambda: {name: []})
    return amd_probe(
        name, ("list", "--json"), parse_list, lambda: left_out(kfd_properties(), "the compute driver")
    )


FAMILIES["amd_smi"] = whole_family(
    {}, tools={"gpus": lambda name: amd_probe(name, STATIC, parse_static), "silent": amd_silent_probe}
)
