"""Kernel lines of faults, which the driver writes when it is loaded or when the fault strikes."""

import time

import kernel_log
from amd import driver_log

# Typical text after `Xid (PCI:…): N, `; {bus} is the GPU, {pid} some process.
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
    # Form of the line: leptonai/gpud, tests of its Xids. Registers of a fatal one: data/nvlink.yml.
    145: "RLW_REMAP Fatal XC1 i0 Link 10 (0x00000082 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)",
    149: "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 "
    "0x00000000)",
}
# NVIDIA/open-gpu-kernel-modules, gpu.c (_gpuRecoveryActionName), to 595; logs of 610.43.02 have other words.
RECOVERY = {1: ("GPU Reset Required", "PF FLR"), 2: ("Node Reboot Required", "OS Reboot")}
OF_FAULT = {"gpu_off_bus": 79, "ecc_uncorrectable": 48, "row_remap_pending": 63, "row_remap_failure": 64}


def line(gpu, code: int, text: str = "", instance: str = "") -> str:
    """Render an Xid line of a GPU or one of its MIG instances, by default with a typical text.

    The head is `Xid (PCI:%04x:%02x:%02x GPU-I:%02u GPU-CI:%02u)` in krcReportXid of NVIDIA's open driver
    (src/nvidia/src/kernel/gpu/rc/kernel_rc.c), without inapplicable parts.
    """
    where = " ".join([gpu["address"].rpartition(".")[0], *instance.split()])
    words = text or TEXTS.get(code, "pid='<unknown>', name=<unknown>, ")
    return f"NVRM: Xid (PCI:{where}): {code}, " + words.format(pid=4000 + code, slot=gpu["slot"])


def major(node) -> int:
    """Return the first number of the loaded driver's version, 0 without one."""
    driver = node.driver()
    return int(driver[0].split(".")[0]) if driver else 0


def requested(node, action: int) -> str:
    """Return the driver's text for its recovery action, which changed with 610."""
    words = RECOVERY[action][major(node) >= 610]
    return f"GPU recovery action changed from 0x0 (None) to {action:#x} ({words})"


def _text(node, fault: dict) -> str:
    """Return the text of a single Xid if it was chosen or depends on the driver."""
    return fault["text"] or (requested(node, 1) if fault["code"] == 154 else "")


def _incident(node, fault: dict) -> list:
    """Return a root cause and its consequences: channel cleanup, row remapping, recovery action."""
    gpu, code = node.gpus[fault["gpu"]], fault["code"]
    train = [code, 63, 94, 45, 154] if code in (48, 95) else [code, 13, 43, 45]
    if code == 79:
        train = [79, 119, 45, 154]
    words = {154: requested(node, 2 if code == 79 else 1)}
    if major(node) >= 570:  # since 570.124.04, kernel_rc.c 376 to 381
        words[45] = f"{TEXTS[45]} caused by previous Xid {code}"
    return [line(gpu, one, words.get(one, "")) for one in train]


def _storm(node, code: int) -> list:
    """Return the errors of every GPU's links at once, and of the switch that they share."""
    switch = "nvidia-nvswitch0: SXid (PCI:0000:e8:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    lost = [line(gpu, code) for gpu in node.usable()]
    return [*lost, switch] if node.sku["switches"] else lost


def _corrected(node, gpu) -> list:
    """Return the lines of the kernel's AER driver about one corrected error."""
    where = gpu["address"]
    driver, maker = ("amdgpu", "1002") if node.vendor == "amd" else ("nvidia", "10de")
    return [
        f"pcieport 0000:00:01.0: AER: Correctable error message received from {where}",
        f"{driver} {where}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
        f"{driver} {where}:   device [{maker}:{node.sku['device']}] error status/mask=00001000/0000a000",
        f"{driver} {where}:    [12] Timeout               ",
    ]


def _refused(node, gpu) -> list:
    """Return the driver's message about a GPU with registers that read as ones: three lines (osapi.c)."""
    address = gpu["address"]
    return [
        f"NVRM: The NVIDIA GPU {address}\\x0a"
        f"NVRM: (PCI ID: 10de:{node.sku['device']}) installed in this system has\\x0a"
        "NVRM: fallen off the bus and is not responding to commands.",
        f"nvidia {address}: probe with driver nvidia failed with error -1",
    ]


def lines(node, fault: dict) -> list:
    """Return the driver's lines about one fault; empty for faults that it does not notice."""
    name = fault["id"]
    if name == "xid_incident":
        return _incident(node, fault)
    if name == "nvlink_storm":
        return _storm(node, fault["code"])
    if name == "xid":
        return [
            line(
                node.gpus[fault["gpu"]],
                fault["code"],
                _text(node, fault).replace("{", "{{").replace("}", "}}"),
                fault.get("instance", ""),
            )
        ]
    if name == "gpu_off_bus_at_boot":
        return _refused(node, node.gpus[fault["gpu"]])
    if name == "gpu_off_bus":
        gpu = node.gpus[fault["gpu"]]
        address = gpu["address"]
        return [
            line(gpu, 79),
            f"NVRM: GPU {address}: GPU has fallen off the bus.",
            f"NVRM: GPU {address}: GPU serial number is {gpu['serial']}.",
        ]
    if name in OF_FAULT:
        return [line(node.gpus[fault["gpu"]], OF_FAULT[name])]
    return []


def _introduced(node, said: list) -> list:
    """Insert the lines that identify a GPU before its first Xid since boot."""
    known = {text for _, text in kernel_log.read(node.folder)}
    found = []
    for text in said:
        for gpu in node.gpus:
            bus = gpu["address"].rpartition(".")[0]
            if not text.startswith(f"NVRM: Xid (PCI:{bus}"):
                continue
            head = f"NVRM: GPU at PCI:{bus}: {gpu['uuid']}"
            if head not in known:
                known.add(head)
                found += [head, f"NVRM: GPU Board Serial Number: {gpu['serial']}"]
        found.append(text)
    return found


def _report_aer(node, fault: dict) -> None:
    """Log the errors spread over one minute, or one every ten minutes, in real time."""
    now = max(0.0, time.time() - kernel_log.boot_time(node.folder))
    apart = 60.0 / fault["count"] if fault["id"] == "aer_storm" else 600.0
    for number in range(min(fault["count"], 500)):
        kernel_log.append(node.folder, _corrected(node, node.gpus[fault["gpu"]]), at=now + apart * number)


def report(node, faults) -> None:
    """Write the lines of these faults to the kernel log if a driver is loaded to notice them."""
    if node.driver() is None and not node.loaded("amdgpu"):
        return
    for fault in faults:
        if fault.get("once") == "yes" and fault.get("reported"):
            continue
        if fault.get("onset") and not fault.get("struck"):
            continue
        if fault["id"] in ("aer_storm", "aer_old"):
            _report_aer(node, fault)
            continue
        if node.vendor == "amd":
            kernel_log.append(node.folder, driver_log.lines(node, fault))
            continue
        kernel_log.append(node.folder, _introduced(node, lines(node, fault)))
        if fault.get("once") == "yes":
            fault["reported"] = True
            node.save()
