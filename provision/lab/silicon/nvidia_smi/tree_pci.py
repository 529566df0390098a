"""The part of `nvidia-smi -q` about PCI Express (see nvidia_smi_tree)."""

NA = "N/A"


def pci(node, one: dict, form: int) -> list:
    """Where the GPU is on the bus, and its link."""
    sku, gpu = node.sku, one["gpu"]
    device, subsystem = sku["device"].upper() + "10DE", sku["subsystem"].upper() + "10DE"
    classes = [
        ("pci_base_class", "Base Classcode", ("3", "0x3")),
        ("pci_sub_class", "Sub Classcode", ("2", "0x2")),
    ]
    chip = [("bridge_chip_type", "Type", NA), ("bridge_chip_fw", "Firmware", NA)]
    moved = "1215 KB/s" if one["load"] else "0 KB/s"
    entries = [
        ("pci_bus", "Bus", (gpu["bus"], "0x" + gpu["bus"])),
        ("pci_device", "Device", ("00", "0x00")),
        ("pci_domain", "Domain", ("0000", "0x0000")),
        *(classes if form >= 550 else []),
        ("pci_device_id", "Device Id", (device, "0x" + device)),
        ("pci_bus_id", "Bus Id", "0000" + one["gpu"]["address"].upper()),
        ("pci_sub_system_id", "Sub System Id", (subsystem, "0x" + subsystem)),
        ("pci_gpu_link_info", "GPU Link Info", _link(sku, one, form)),
        ("pci_bridge_chip", "Bridge Chip", chip),
        ("replay_counter", "Replays Since Reset", str(one["replays"])),
        ("replay_rollover_counter", "Replay Number Rollovers", "0"),
        ("tx_util", "Tx Throughput", moved),
        ("rx_util", "Rx Throughput", moved),
    ]
    return [("pci", "PCI", entries + _atomics(sku, form))]


def _atomics(sku, form: int) -> list:
    every = "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64 "  # a blank after each
    inbound = every if form >= 580 and sku["fabric"] in ("nvlink5", "imex") else NA
    outbound = every if form >= 580 and sku["fabric"] == "nvlink5" else NA
    atomic = [
        ("atomic_caps_inbound", "Atomic Caps Inbound", inbound),
        ("atomic_caps_outbound", "Atomic Caps Outbound", outbound),
    ]
    return [] if form < 525 else atomic if form < 570 else atomic[::-1]


def _link(sku, one: dict, form: int) -> list:
    best, now = str(sku["pcie"]), str(one["generation"])
    generations = [
        ("max_link_gen", "Max", best),
        ("current_link_gen", "Current", now),
    ]
    device = [
        ("device_current_link_gen", "Device Current", now),
        ("max_device_link_gen", "Device Max", best),
        ("max_host_link_gen", "Host Max", best),
    ]
    widths = [
        ("max_link_width", "Max", f"{one['width_max']}x"),
        ("current_link_width", "Current", f"{one['width']}x"),
    ]
    generations += device if form >= 525 else []
    return [("pcie_gen", "PCIe Generation", generations), ("link_widths", "Link Width", widths)]
