"""AMD's Instinct GPUs as seen by the amdgpu driver, from sysfs alone, without ROCm or a tool.

`amdgpu.devices` has one entry per GPU on the PCI bus, in address order; each die of an MI250 module is one.
Values that the driver does not provide are None; for counters that it does not provide now, `unread` has the
reason, and they are not zero.
"""

import os

from provision.node.observe.files import ReadError, link_target, names_in, read_bytes, read_line, read_text
from provision.node.observe.probe import FAMILIES, Probe, answered, whole_family
from provision.node.observe.system import PCI_FUNCTIONS, as_number, boot_release, pci_id
from provision.node.observe.vendors import AMD, gpu_part, number_in

MODULE = "/sys/module/amdgpu"
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
# The second path is for ROCm 7.12 and newer.
ROCM_VERSIONS = ("/opt/rocm/.info/version", "/opt/rocm/core/.info/version")
RAS_KINDS = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
# amd-smi of ROCm 6.4 and newer reads the threshold here, too; it needs root and a readable debugfs.
PAGE_THRESHOLD = "/sys/kernel/debug/dri/%s/ras/bad_page_cnt_threshold"
XGMI = 11  # the link type in the topology (kfd_crat.h)
EXPRESS, DEVICE_STATUS, FATAL = 0x10, 10, 4  # PCIe capability id, its device status, lspci's FatalErr+
# Parameters that AMD's acceptance guide requires or forbids on the kernel's command line.
GUIDE_PARAMETERS = (
    *("pci", "iommu", "amd_iommu", "intel_iommu", "numa_balancing", "transparent_hugepage"),
    "modprobe.blacklist",
)
COUNTS = "_err_count"  # suffix of error counter files, such as umc_err_count; each block of the GPU has one


def amdgpu_version():
    """Return the driver's version, or the kernel's release for an in-tree driver; None if not loaded."""
    if not names_in(MODULE):
        return None
    return read_line(MODULE + "/version") or "kernel " + (
        read_line("/proc/sys/kernel/osrelease") or "unknown"
    )


def counted(text):
    """Parse a file of error counts into {"ue": 0, "ce": 3}.
    Raises ReadError without a count, as in `Query currently inaccessible`, while the GPU is being reset."""
    counts = {}
    for line in text.splitlines():
        word, colon, number = line.partition(": ")
        if not colon or word not in RAS_KINDS or not number.strip().isdigit():
            raise ReadError(line.strip()[:80] or "an empty line")
        counts[word] = int(number)
    if "ue" not in counts:
        raise ReadError("no count of uncorrected errors")
    return counts


def ras_counters(folder, unread):
    """Sum the errors of a GPU by kind over all its blocks; `blocks` lists the affected ones.
    Reasons for missing counts go to `unread`; totals then cover other blocks, with None instead of zero."""
    totals = {}
    blocks = []
    files = [name for name in names_in(folder + "ras") if name[-len(COUNTS) :] == COUNTS]
    for name in files:
        block = name[: -len(COUNTS)]
        try:
            counts = counted(read_text(folder + "ras/" + name) or "")
        except ReadError as reason:
            unread.append("%s: %s" % (block, reason))
            continue
        for word in counts:
            totals[word] = totals.get(word, 0) + counts[word]
        blocks += ["%s %s %d" % (block, word, counts[word]) for word in counts if counts[word]]
    if not files:
        unread.append("the driver gives no error counters")
    silent = None if unread else 0
    errors = {kind: totals[word] or silent if word in totals else None for word, kind in RAS_KINDS.items()}
    return dict(errors, blocks=", ".join(blocks))


def bad_pages(folder, unread):
    """Count the bad memory pages, in total and not (yet) reserved by the driver."""
    try:
        text = read_text(folder + "ras/gpu_vram_bad_pages", 1024 * 1024)
    except ReadError as reason:
        unread.append("bad pages: %s" % reason)
        text = None
    if text is None:
        return {"bad_pages": None, "bad_pages_in_use": None}
    flags = [line.rpartition(":")[2].strip() for line in text.splitlines() if line.strip()]
    # 0x00000001 : 0x00001000 : R  (reserved; P is pending, F could not be reserved)
    return {"bad_pages": len(flags), "bad_pages_in_use": len([flag for flag in flags if flag != "R"])}


def bad_page_threshold(folder):
    """Return how many bad pages the driver allows this GPU; None if it does not report that."""
    numbers = [name[4:] for name in names_in(folder + "drm") if name[:4] == "card"]
    for path in [PAGE_THRESHOLD % number for number in numbers] + [MODULE + "/parameters/bad_page_threshold"]:
        try:
            pages = as_number(read_line(path))
        except ReadError:
            continue
        if pages and 0 < pages < 1 << 31:  # the parameter is negative by default
            return pages
    return None


def slot_of(folder, address):
    """Return the folder of the function that is plugged into the slot.
    AMD's GPUs are behind bridges of their own, between which the link always has its full speed and width."""
    slot = folder
    parents = (link_target(folder[:-1]) or "").split("/")
    for parent in reversed(parents[:-1] if parents[-1:] == [address] else []):
        above = "%s/%s/" % (PCI_FUNCTIONS, parent)
        if number_in(above + "vendor") != AMD:
            break
        slot = above
    return slot


def kfd_values(path):
    """Parse a topology file into {name: text}."""
    lines = (read_text(path) or "").splitlines()
    return dict(line.split(None, 1) for line in lines if len(line.split()) == 2)


def kfd_properties():
    """Return {PCI address: {compute_units, memory_bytes, partitions, linked}} of GPUs usable for compute.
    `linked`: PCI addresses of the GPUs at the other end of its xGMI links, joined by spaces."""
    gpus = {}
    numbers = {}
    for name in names_in(KFD_NODES):
        folder = "%s/%s/" % (KFD_NODES, name)
        values = kfd_values(folder + "properties")
        simds, each = as_number(values.get("simd_count")), as_number(values.get("simd_per_cu"))
        location = as_number(values.get("location_id"))
        if not simds or not each or location is None:
            continue  # a CPU
        domain = as_number(values.get("domain")) or 0
        location &= 0xFFFF  # the bits above are the partition number
        address = "%04x:%02x:%02x.%d" % (domain, location >> 8, location >> 3 & 31, location & 7)
        numbers[name] = address
        gpu = gpus.setdefault(
            address, {"compute_units": 0, "memory_bytes": 0, "partitions": 0, "linked": set()}
        )
        gpu["linked"].update(kfd_linked(folder))
        gpu["compute_units"] += simds // each
        gpu["memory_bytes"] += kfd_memory(folder)
        gpu["partitions"] += 1
    for address, gpu in gpus.items():
        peers = {numbers[name] for name in gpu["linked"] if name in numbers}
        gpu["linked"] = " ".join(sorted(peers - {address}))
    return gpus


def kfd_linked(folder):
    """Return the topology nodes that this node's xGMI links lead to."""
    nodes = set()
    for name in names_in(folder + "io_links"):
        values = kfd_values("%sio_links/%s/properties" % (folder, name))
        if as_number(values.get("type")) == XGMI:
            nodes.add((values.get("node_to") or "").strip())
    return nodes


def kfd_memory(folder):
    """Sum the bytes of all memory banks of a topology node."""
    total = 0
    for name in names_in(folder + "mem_banks"):
        for line in (read_text("%smem_banks/%s/properties" % (folder, name)) or "").splitlines():
            words = line.split()
            if words[:1] == ["size_in_bytes"]:
                total += as_number(words[-1]) or 0
    return total


def xgmi_links(row):
    """Count the links to all other GPUs, and the linked GPUs, in the driver's row (`00 01 01 01`).
    The row does not identify the GPUs; it is in the order in which the driver was bound to them."""
    try:
        numbers = [int(cell, 16) for cell in (row or "").split()]
    except ValueError:
        numbers = []
    if not numbers:
        return {"xgmi_links": None, "xgmi_peers": None, "xgmi_row": None}
    peers = len([number for number in numbers if number])
    return {"xgmi_links": sum(numbers), "xgmi_peers": peers, "xgmi_row": " ".join(map(str, numbers))}


def fatal_error(folder):
    """Return whether the GPU reports a fatal PCIe error that was never cleared.
    The result is None if its configuration space cannot be read."""
    try:
        config = read_bytes(folder + "config") or b""
    except ReadError:
        return None
    offset = config[0x34] if len(config) >= 256 else 0
    for _ in range(48):  # a corrupt list must not be followed forever
        if not 0x40 <= offset <= 0xF0:
            break
        if config[offset] == EXPRESS:
            return bool(config[offset + DEVICE_STATUS] & FATAL)
        offset = config[offset + 1]
    return None


def amdgpu_device(address, computing):
    folder = "%s/%s/" % (PCI_FUNCTIONS, address)
    slot = slot_of(folder, address)
    unread = []

    def given(name, place=folder):
        # Some files of the driver are unreadable while the GPU is being reset.
        try:
            return read_line(place + name) or None
        except ReadError as reason:
            unread.append("%s: %s" % (name, reason))
            return None

    entry = {
        "address": address,
        "device_id": pci_id(folder, ""),
        "driver": (link_target(folder + "driver") or "").rpartition("/")[2] or None,
        "name": given("product_name"),
        "serial": given("serial_number"),
        "unique_id": given("unique_id"),
        "vbios": given("vbios_version"),
        "memory_bytes": as_number(given("mem_info_vram_total")),
        "compute_partition": given("current_compute_partition"),
        "memory_partition": given("current_memory_partition"),
        "compute_units": None,
        "partitions": None,
        "xgmi_to": None,
        "link_speed": given("current_link_speed", slot),
        "link_speed_max": given("max_link_speed", slot),
        "link_width": as_number(given("current_link_width", slot)),
        "link_width_max": as_number(given("max_link_width", slot)),
        "pcie_replays": as_number(given("pcie_replay_count")),
        "fatal_error": fatal_error(folder),
    }
    compute = computing.get(address)
    if compute:
        entry.update(compute_units=compute["compute_units"], partitions=compute["partitions"])
        entry["xgmi_to"] = compute["linked"]
        # An MI300A has no separate memory; only the topology shows how much the driver may use.
        entry["memory_bytes"] = entry["memory_bytes"] or compute["memory_bytes"] or None
    entry.update(xgmi_links(given("xgmi_num_links")))
    entry.update(ras_counters(folder, unread))
    entry.update(bad_pages(folder, unread))
    entry["bad_page_threshold"] = bad_page_threshold(folder)
    return dict(entry, unread="; ".join(unread))


def amdgpu_devices():
    """Return one entry per AMD GPU, whether the driver is bound to it or not."""
    computing = kfd_properties()
    devices = []
    for address in names_in(PCI_FUNCTIONS):
        folder = "%s/%s/" % (PCI_FUNCTIONS, address)
        if number_in(folder + "vendor") == AMD and gpu_part(folder) == "gpu":
            devices.append(amdgpu_device(address, computing))
    return devices


def amdgpu_taken():
    """Return the folders of the GPUs that the driver is bound to."""
    folders = ["%s/%s/" % (PCI_FUNCTIONS, address) for address in names_in(PCI_FUNCTIONS)]
    return [folder for folder in folders if (link_target(folder + "driver") or "").endswith("/amdgpu")]


def amdgpu_partitions(kind):
    """Return the distinct modes of the driver's GPUs; an empty one stands for a GPU that reports none."""
    names = {read_line("%scurrent_%s_partition" % (folder, kind)) or "" for folder in amdgpu_taken()}
    return sorted(names)


def amdgpu_power_limits():
    """Return the distinct power limits of the GPUs in W. The second die of a module has none, or zero."""
    limits = set()
    for folder in amdgpu_taken():
        for name in names_in(folder + "hwmon"):
            limits.add((as_number(read_line("%shwmon/%s/power1_cap" % (folder, name))) or 0) // 1000000)
    return sorted(limits - {0})


def parse_amdgpu_modinfo(names, output):
    """Parse `modinfo --field=version`; it prints the driver's version, or no line for the kernel's own."""
    if "not found" in output:
        return dict.fromkeys(names)
    lines = output.strip().splitlines()
    if len(lines) > 1 or (lines and not lines[0].replace(".", "").isdigit()):
        raise answered("modinfo", output)
    return dict.fromkeys(names, lines[0] if lines else "kernel " + boot_release(os.uname().release))


def amdgpu_blacklisted():
    """Return whether the kernel's command line keeps the driver from loading at boot."""
    words = (read_line("/proc/cmdline") or "").split()
    names = [word.partition("=")[2].split(",") for word in words if word.startswith("modprobe.blacklist=")]
    return any("amdgpu" in modules for modules in names)


def guide_parameters():
    words = (read_line("/proc/cmdline") or "").split()
    return [word for word in words if word.partition("=")[0] in GUIDE_PARAMETERS]


def amdgpu_installed_probe(name):
    command = ["modinfo", "-k", boot_release(os.uname().release), "-F", "version", "amdgpu"]
    return Probe([name], command=command, parse=parse_amdgpu_modinfo)


FAMILIES["amdgpu"] = whole_family(
    {
        "loaded_version": amdgpu_version,
        "dkms_version": lambda: read_line(MODULE + "/version") or None,  # the kernel's own driver has none
        "devices": amdgpu_devices,
        "rocm": lambda: next(filter(None, map(read_line, ROCM_VERSIONS)), None),
        "blacklisted": amdgpu_blacklisted,
        "kernel_parameters": guide_parameters,
        "compute_partitions": lambda: amdgpu_partitions("compute"),
        "memory_partitions": lambda: amdgpu_partitions("memory"),
        "power_limits": amdgpu_power_limits,
    },
    tools={"installed_version": amdgpu_installed_probe},
)
