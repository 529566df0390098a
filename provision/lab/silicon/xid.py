"""The kernel lines that faults leave: the driver writes them when it is loaded, or when the fault happens."""

import kernel_log

# Usual words after `Xid (PCI:…): N, `; {bus} is the GPU, {pid} some process.
TEXTS = {
    13: "pid={pid}, name=python, Graphics Exception: ESR 0x504730=0x108000e 0x504734=0x24 "
    "0x504728=0x4c1eb72 0x50472c=0x174",
    31: "pid={pid}, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 "
    "faulted @ 0x7f2c_40000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "pid={pid}, name=python, Ch 00000010",
    45: "pid={pid}, name=python, Ch 00000008",
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU "
    "in the framebuffer "
    "at partition 6, subpartition 1.",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row.",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, "
    "0x0, 0x0, 0x0)",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid={pid}, name=python, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid='<unknown>', name=<unknown>, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "pid={pid}, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU{slot} GSP! "
    "Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
    120: "pid='<unknown>', name=<unknown>, GSP task exception: misaligned load (0x4) @ pc:0x4c4b52",
    149: "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 "
    "0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
}
OF_FAULT = {"gpu_off_bus": 79, "ecc_uncorrectable": 48, "row_remap_pending": 63, "row_remap_failure": 64}


def line(gpu, code: int, text: str = "") -> str:
    """One Xid line of a GPU; a usual text when none is given."""
    bus = gpu["address"].rpartition(".")[0]
    words = text or TEXTS.get(code, "pid='<unknown>', name=<unknown>, ")
    return f"NVRM: Xid (PCI:{bus}): {code}, " + words.format(pid=4000 + code, slot=gpu["slot"])


def lines(node, fault: dict) -> list:
    """What the driver writes about one fault; nothing for those it does not notice."""
    name = fault["id"]
    if name == "xid":
        return [
            line(node.gpus[fault["gpu"]], fault["code"], fault["text"].replace("{", "{{").replace("}", "}}"))
        ]
    if name == "gpu_off_bus":
        gpu = node.gpus[fault["gpu"]]
        address = gpu["address"]
        return [
            f"NVRM: GPU at PCI:{address.rpartition('.')[0]}: {gpu['uuid']}",
            f"NVRM: GPU Board Serial Number: {gpu['serial']}",
            line(gpu, 79),
            f"NVRM: GPU {address}: GPU has fallen off the bus.",
            f"NVRM: GPU {address}: GPU serial number is {gpu['serial']}.",
        ]
    if name in OF_FAULT:
        return [line(node.gpus[fault["gpu"]], OF_FAULT[name])]
    return []


def report(node, faults) -> None:
    """Write the lines of these faults to the kernel log, if a driver is there to notice them."""
    if node.driver() is None:
        return
    for fault in faults:
        if fault.get("once") == "yes" and fault.get("reported"):
            continue
        kernel_log.append(node.folder, lines(node, fault))
        if fault.get("once") == "yes":
            fault["reported"] = True
            node.save()
