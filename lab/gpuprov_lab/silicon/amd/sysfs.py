"""The kernel's view of AMD GPUs: PCI functions, the files of the driver amdgpu, the kfd topology.

Each GPU is behind two private bridges, as in `lspci -PP` of an MI300X in AMD's documentation: the link at the
GPU is always whole, and the slot's link is at the upper bridge. Files and their forms: drivers/gpu/drm/amd of
the Linux kernel (amdgpu_ras.c, amdgpu_xgmi.c, kfd_topology.c), Documentation/gpu/amdgpu.
"""

import shutil
import struct
from pathlib import Path

import noise
from small_files import put

from amd import readings

# The bits of the blocks that count errors (amdgpu_ras.h).
ORDER = (
    *("umc", "sdma", "gfx", "mmhub", "athub", "pcie_bif", "hdp", "xgmi_wafl", "df", "smn", "sem", "mp0"),
    *("mp1", "fuse", "mca", "vcn", "jpeg"),
)
SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
TREE = ".tree"  # a hidden folder below the PCI devices; the visible entries link into it
KFD = "sys/class/kfd"
DRM = "sys/class/drm"
STATES = {"reserved": "R", "pending": "P", "unreservable": "F"}
UPPER, LOWER = "0x14a0", "0x14a1"  # the bridges: lspci of a Vega 20, open-mpi/hwloc pull request 406
XGMI, PCIE = 11, 2  # types of links between nodes of the topology (kfd_crat.h)
XGMI_RATE = 50000  # MB/s in the driver's accounting of a 16-lane link (amdgpu_amdkfd.c)
RATES = {3: 985, 4: 1969, 5: 3938}  # likewise of a PCIe lane
_OF_DRIVER = (
    *("product_name", "serial_number", "unique_id", "vbios_version", "mem_info_vram_total"),
    *("current_compute_partition", "current_memory_partition", "pcie_replay_count", "xgmi_num_links"),
    *("available_compute_partition", "available_memory_partition"),
)
HWMON = "hwmon/hwmon3"


def bridges_of(gpu) -> tuple:
    """Return the addresses of the two bridges above a GPU, upper first; empty for one inside a CPU."""
    if gpu["integrated"]:
        return ()
    bus = int(gpu["bus"], 16)
    return f"0000:{bus - 2:02x}:00.0", f"0000:{bus - 1:02x}:00.0"


def buses_of(gpu) -> tuple:
    """Return (first, last) of the buses that belong to a GPU."""
    bus = int(gpu["bus"], 16)
    return (bus if gpu["integrated"] else bus - 2), bus


def pci(node):
    """Yield (address, files) of each function."""
    for gpu in node.on_bus():
        link = readings.pcie(node, gpu)
        common = {"vendor": "0x1002", "numa_node": str(gpu["numa"]), "local_cpulist": gpu["cpus"]}
        whole = _link(node.sku["pcie"], 16, node.sku["pcie"], 16)
        slot = _link(link["generation"], link["width"], node.sku["pcie"], link["width_max"])
        if node.lost(gpu):
            whole = slot = {"current_link_width": "0", "current_link_speed": "Unknown"}
        if gpu["integrated"]:
            whole = slot
        for address, (device, shown) in zip(bridges_of(gpu), ((UPPER, slot), (LOWER, whole))):  # noqa: B905 - 3.6
            yield (
                address,
                {
                    **common, **shown, "device": device, "class": "0x060400", "revision": "0x00",
                    "subsystem_vendor": "0x0000", "subsystem_device": "0x0000",
                },
            )  # fmt: skip
        yield (
            gpu["address"],
            {
                **common, **whole, "device": "0x" + node.sku["device"], "class": node.sku["class"],
                "revision": "0x00", "subsystem_vendor": "0x1002",
                "subsystem_device": "0x" + node.sku["subsystem"], "enable": "1",
            },
        )  # fmt: skip


def _link(generation: int, width: int, best: int, widest: int) -> dict:
    return {
        "current_link_speed": f"{SPEEDS[generation]} GT/s PCIe",
        "current_link_width": str(width),
        "max_link_speed": f"{SPEEDS[best]} GT/s PCIe",
        "max_link_width": str(widest),
    }


def lay_out(node) -> None:
    """Create the functions' folders: links to their positions in the tree, as in sysfs."""
    devices = node.folder / "sys_pci"
    for slot, gpu in enumerate(node.gpus):
        domain = gpu["address"][:4]
        place = f"{TREE}/pci{domain}:00/{domain}:00:{slot + 1:02x}.0"
        for address in (*bridges_of(gpu), gpu["address"]):
            place += "/" + address
            if gpu in node.on_bus():
                (devices / place).mkdir(parents=True, exist_ok=True)
                if not (devices / address).is_symlink():
                    (devices / address).symlink_to(place)


def write_bridge(folder: Path, gpu) -> None:
    """Write the configuration space of one of a GPU's bridges, with only the bus numbers below it."""
    first, last = buses_of(gpu)
    own = int(folder.name[5:7], 16)
    device = UPPER if own == first else LOWER
    space = bytearray(4096)
    struct.pack_into("<HHHHI", space, 0, 0x1002, int(device, 16), 0x0547, 0x0010, 0x060400 << 8)
    space[0x0E] = 0x01
    space[0x18:0x1B] = bytes((own, own + 1, last))
    (folder / "config").write_bytes(space)


def _write_space(node, gpu, folder: Path) -> None:
    """Write a GPU's configuration space: power management, then PCIe with its device status, as in lspci."""
    space = bytearray(4096)
    struct.pack_into("<HHHHI", space, 0, 0x1002, int(node.sku["device"], 16), 0x0547, 0x0010, 0x120000 << 8)
    space[0x34], space[0x48:0x4A], space[0x64] = 0x48, bytes((0x01, 0x64)), 0x10
    space[0x6E] = 4 if node.fault("pcie_fatal", gpu=gpu["slot"]) else 0
    space[0x6E] |= 9 if node.fault("pcie_unsupported", gpu=gpu["slot"]) else 0  # CorrErr+, UnsupReq+
    (folder / "config").write_bytes(space)


def write(node) -> None:
    """Write the driver's files, or remove them if it is not loaded, and its compute topology."""
    loaded = node.loaded("amdgpu")
    devices = node.folder / "sys_pci"
    taken = readings.answering(node) if loaded else []
    started = [gpu for gpu in node.on_bus() if gpu in taken or (loaded and node.lost(gpu))]
    for gpu in node.on_bus():
        place = devices / gpu["address"]
        _write_space(node, gpu, place)
        if gpu in started:
            _write_gpu(node, gpu, place, started)
        else:
            _clear(place)
    _write_topology(node, taken)
    _write_cards(node, taken)


def _clear(place: Path) -> None:
    for folder in ("ras", "drm", "hwmon"):
        shutil.rmtree(str(place / folder), ignore_errors=True)
    for name in (*_OF_DRIVER, "driver"):
        if (place / name).is_symlink() or (place / name).exists():
            (place / name).unlink()


def keep_memory_modes(node) -> None:
    """Save a requested memory mode before the driver is unloaded; it applies from the next load on.
    All GPUs of a hive change together (amdgpu_gmc.c). In any mode but the usual one they are CPX."""
    for gpu in readings.answering(node):
        place = node.folder / "sys_pci" / gpu["address"]
        requested = place / "current_memory_partition"
        offered = place / "available_memory_partition"
        if requested.exists() and requested.read_text().strip() in offered.read_text().strip().split(", "):
            (node.folder / readings.MEMORY_MODE).write_text(requested.read_text())
            return


def _write_gpu(node, gpu, place: Path, started: list) -> None:
    """Write a GPU's files. `started`: the GPUs that the driver accepted.
    The row of links has a number for each GPU of the same hive."""
    identity = readings.identity(node, gpu)
    compute, memory = readings.partition(node, gpu)
    own, hive = readings.links(node, gpu), readings.hive(node, gpu)
    files = {
        "unique_id": identity["unique_id"],
        "mem_info_vram_total": str(readings.vram_bytes(node, gpu)),
        "pcie_replay_count": str(readings.pcie(node, gpu)["replays"]),
    }
    if len(hive) > 1:  # a card without a bridge has no such file
        row = [own[other["slot"]] for other in started if other["slot"] in hive]
        files["xgmi_num_links"] = " ".join(f"{links:02x}" for links in row)
    else:
        _clear_links(place)
    if not gpu["integrated"]:  # there is no board with a memory for them, and no firmware
        files.update(
            product_name=node.sku["product"], serial_number=identity["serial"], vbios_version=gpu["vbios"]
        )
    if compute:
        files.update(
            current_compute_partition=compute,
            current_memory_partition=memory,
            available_compute_partition="SPX, DPX, QPX, CPX",
            available_memory_partition="NPS1, NPS4",
        )
    put(place, files)
    limit = readings.power_limit(node, gpu) * 10**6
    put(
        place / HWMON,
        {
            "name": "amdgpu",
            "power1_cap": str(limit),
            "power1_cap_min": "0",
            "power1_cap_max": str(0 if readings.second(node, gpu) else node.sku["power"] * 10**6),
        },
    )
    if not (place / "driver").is_symlink():
        (place / "driver").symlink_to("../../../bus/pci/drivers/amdgpu")
    _write_counters(node, gpu, place / "ras")


def _clear_links(place: Path) -> None:
    if (place / "xgmi_num_links").exists():
        (place / "xgmi_num_links").unlink()


def _write_counters(node, gpu, place: Path) -> None:
    features = sum(1 << ORDER.index(block) for block in node.sku["ras"])
    put(place, {"features": f"feature mask: {features:#x}"})
    resetting = node.fault("gpu_resetting", gpu=gpu["slot"]) or node.lost(gpu)
    for block, counts in readings.errors(node, gpu).items():
        kinds = ("ue", "ce", "de") if node.sku["deferred"] else ("ue", "ce")
        text = "\n".join(f"{kind}: {counts[kind]}" for kind in kinds)
        put(place, {f"{block}_err_count": "Query currently inaccessible" if resetting else text})
    pages = readings.bad_pages(node, gpu)
    text = "".join(f"0x{page:08x} : 0x00001000 : {STATES[state]}\n" for page, state in pages)
    (place / "gpu_vram_bad_pages").write_text(text)


def _write_cards(node, taken: list) -> None:
    """Write the graphics driver's devices; AMD's programs identify a GPU by its card."""
    top = node.folder / DRM
    top.mkdir(parents=True, exist_ok=True)
    for known in list(top.iterdir()):  # the folder itself is mounted elsewhere
        known.unlink()
    for gpu in taken:
        number = gpu["slot"]
        place = node.folder / "sys_pci" / gpu["address"] / "drm"
        shutil.rmtree(str(place), ignore_errors=True)
        for name, minor in ((f"card{number}", number), (f"renderD{128 + number}", 128 + number)):
            put(place / name, {"dev": f"226:{minor}"})
            (place / name / "device").symlink_to(f"../../../{gpu['address']}")
            (top / name).symlink_to(f"../../bus/pci/devices/{gpu['address']}/drm/{name}")


# --- the topology of the compute driver: processors first, then GPUs in the order of the bus


def _write_topology(node, taken: list) -> None:
    top = node.folder / KFD
    top.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(str(top / "kfd"), ignore_errors=True)
    if not node.loaded("amdgpu"):
        return
    (top / "kfd/proc").mkdir(parents=True)  # a folder for each computing process: load.py
    for mark in (node.folder / "run").glob("load.*"):
        (top / "kfd/proc" / mark.suffix[1:]).mkdir()
    nodes = top / "kfd/topology/nodes"
    sockets = sorted({gpu["numa"] for gpu in node.gpus})
    for number in sockets:
        _put_node(
            nodes / str(number),
            0,
            {"cpu_cores_count": node.sku["cpus"] // len(sockets), "drm_render_minor": 0},
            2**39,
        )
    numbers = {gpu["slot"]: len(sockets) + order for order, gpu in enumerate(taken)}
    rate = RATES[node.sku["pcie"]] * 16
    for number in sockets:
        for order, gpu in enumerate(other for other in taken if other["numa"] == number):
            text = _io_link(PCIE, (number, numbers[gpu["slot"]]), 20, rate, rate)
            put(nodes / f"{number}/io_links/{order}", {"properties": text})
    for gpu in taken:
        place = nodes / str(numbers[gpu["slot"]])
        units = node.sku["units"]
        properties = {
            "cpu_cores_count": 0,
            "simd_count": units * 4,
            "simd_per_cu": 4,
            "array_count": node.sku["arrays"],
            "simd_arrays_per_engine": 1,
            "cu_per_simd_array": node.sku["units_per_array"],
            "vendor_id": 0x1002,
            "device_id": int(node.sku["device"], 16),
            "location_id": int(gpu["bus"], 16) << 8,
            "domain": int(gpu["address"][:4], 16),
            "gfx_target_version": node.sku["gfx_version"],
            "hive_id": _hive_id(node, gpu),
            "unique_id": int(readings.identity(node, gpu)["unique_id"], 16),
            "drm_render_minor": 128 + gpu["slot"],
            "max_engine_clk_fcompute": node.sku["clock"],
        }
        kfd_id = readings.identity(node, gpu)["kfd_id"]
        _put_node(place, kfd_id, properties, readings.vram_bytes(node, gpu), node.sku["kfd_name"])
        ends = (numbers[gpu["slot"]], gpu["numa"])
        put(place / "io_links/0", {"properties": _io_link(PCIE, ends, 20, rate, rate)})
        own = readings.links(node, gpu)
        peers = [other for other in taken if own[other["slot"]]]
        for order, other in enumerate(peers):
            ends = (numbers[gpu["slot"]], numbers[other["slot"]])
            text = _io_link(XGMI, ends, 15, XGMI_RATE, XGMI_RATE * own[other["slot"]])
            put(place / f"io_links/{order + 1}", {"properties": text})


def _hive_id(node, gpu) -> int:
    hive = readings.hive(node, gpu)
    words = ("hive", node.seed, node.name, *(hive[:1] if hive[0] else ()))
    return int(noise.hexadecimal(15, *words), 16) if len(hive) > 1 else 0


def _io_link(kind: int, ends: tuple, weight: int, least: int, most: int) -> str:
    """Render a link. `least`, `most`: MB/s of one link and of all links."""
    properties = {
        "type": kind,
        "version_major": 0,
        "version_minor": 0,
        "node_from": ends[0],
        "node_to": ends[1],
        "weight": weight,
        "min_latency": 0,
        "max_latency": 0,
        "min_bandwidth": least,
        "max_bandwidth": most,
        "recommended_transfer_size": 0,
        "flags": 1,
    }
    return "\n".join(f"{name} {value}" for name, value in properties.items())


def _put_node(place: Path, gpu_id: int, properties: dict, memory: int, name: str = "") -> None:
    for links in ("io_links", "p2p_links"):
        (place / links).mkdir(parents=True, exist_ok=True)
    put(
        place,
        {
            "gpu_id": str(gpu_id),
            "name": name,
            "properties": "\n".join(f"{name} {value}" for name, value in properties.items()),
            "mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 8192",
        },
    )
