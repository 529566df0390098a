"""The kernel's view of the machine: memory controllers, NVMe drives, CPUs, IOMMU, clock and limits.
Forms: Documentation/admin-guide/ras.rst, Documentation/ABI/stable/sysfs-nvme,
Documentation/admin-guide/pm/cpufreq.rst, proc(5).
"""

import shutil
from pathlib import Path

import bridges
import noise
from faults.host import DRIVES, MODULES
from small_files import put

CONTROLLERS = 8
MODULE_MIB, BLOCK_MIB = 65536, 2048  # a large x86 machine shows its memory in blocks of 2 GiB
PRESENT = Path("/sys/devices/system/cpu/present")
OF_MEMORY = ("memory_corrected_few", "memory_errors", "ecc_uncorrectable", "ras_errors", "ras_corrected_few")
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1048576              1048576              files
Max locked memory         {locked:<20} {locked:<20} bytes
"""
BITS = {"spare": 1, "temperature": 2, "reliability": 4, "read_only": 8}


def _put(path: Path, text: str) -> None:
    put(path.parent, {path.name: text})


def write(node) -> None:
    """Write all files of the machine according to the faults."""
    system = node.folder / "sys/devices/system"
    fresh = node.fault("fresh_boot")
    days = node.given("long_uptime", "days", 2 + 60 * noise.fraction(node.seed, node.name, "uptime"))
    uptime = fresh["seconds"] if fresh else int(86400 * days)
    _put(node.folder / "proc_uptime", f"{uptime}.27 {uptime * 100}.81")
    small = node.fault("memlock_small")
    locked = str(small["kib"] * 1024) if small else "unlimited"
    (node.folder / "proc_self_limits").write_text(LIMITS.format(locked=locked))
    clock = node.folder / "run_timesync"
    clock.mkdir(exist_ok=True)
    mark = clock / "synchronized"
    if node.fault("clock_unsynchronised") or fresh:
        if mark.exists():
            mark.unlink()
    else:
        mark.touch()
    _write_cpus(node, system / "cpu")
    _write_blocks(node, system / "memory")
    _write_memory(node, system / "edac/mc")
    _write_drives(node, node.folder / "sys/class/nvme")
    _write_iommu(node)
    text = bridges.cpuinfo()
    if node.fault("virtual_machine"):
        lines = text.splitlines()
        text = "\n".join(line + " hypervisor" if line.startswith("flags") else line for line in lines) + "\n"
    (node.folder / "proc_cpuinfo").write_text(text)
    _write_libraries(node)


def _write_cpus(node, folder: Path) -> None:
    count = node.sku["cpus"]
    if str(node.root) == "/":  # on a lab node programs start as many threads as this file names
        count = 1 + int(PRESENT.read_text().strip().rpartition("-")[2])
    last = max(1, count - node.given("cpus_offline", "count", 0)) - 1
    _put(folder / "online", f"0-{last}" if last else "0")
    for policy in (0, 1):
        place = folder / f"cpufreq/policy{policy}"
        guest = node.fault("virtual_machine")
        if guest:
            shutil.rmtree(str(place), ignore_errors=True)
            continue
        _put(place / "scaling_governor", node.given("governor", "name", "performance"))
        _put(place / "scaling_driver", "intel_pstate")


def _missing(node, module: int) -> bool:
    return node.fault("memory_module_missing", module=module) is not None


def _write_blocks(node, folder: Path) -> None:
    """Write the memory that firmware reports, without missing modules (memory-hotplug.rst)."""
    modules = sum(not _missing(node, module) for module in range(MODULES))
    expected = {f"memory{number}" for number in range(modules * MODULE_MIB // BLOCK_MIB)}
    _put(folder / "block_size_bytes", f"{BLOCK_MIB * 2**20:x}")
    known = {path.name for path in folder.iterdir() if path.is_dir()}
    for name in known - expected:
        (folder / name).rmdir()
    for name in expected - known:
        (folder / name).mkdir()


def _write_own_memory(node, folder: Path) -> None:
    """Write the memory controllers of accelerators that are also CPUs, without modules.
    amd64_edac has a controller for each socket, and counts deferred errors as uncorrected."""
    for gpu in node.gpus:
        counts = {"ce": 0, "ue": 0}
        for fault in node.faults:
            # A module's fault is assigned to the socket that would contain the module.
            slot = fault.get("gpu", fault.get("module", -1) * len(node.gpus) // MODULES)
            if fault["id"] not in OF_MEMORY or slot != gpu["slot"] or fault.get("block", "umc") != "umc":
                continue
            few = fault["id"] in ("memory_corrected_few", "ras_corrected_few")
            corrected = few or fault.get("kind") in ("corrected", "ce")
            counts["ce" if corrected else "ue"] += fault["count"]
        place = folder / f"mc{gpu['slot']}"
        _put(place / "mc_name", "F19h_M90h")
        _put(place / "ce_count", str(counts["ce"]))
        _put(place / "ue_count", str(counts["ue"]))
        _put(place / "seconds_since_reset", "100000")


def _write_memory(node, folder: Path) -> None:
    if node.sku.get("integrated"):
        _write_own_memory(node, folder)
        return
    per = MODULES // CONTROLLERS
    for controller in range(CONTROLLERS):
        totals = {"ce": 0, "ue": 0}
        place = folder / f"mc{controller}"
        for slot in range(per):
            number = controller * per + slot
            corrected, uncorrected = 0, 0
            for fault in node.faults:
                if fault.get("module") != number:
                    continue
                if fault["id"] == "memory_corrected_few" or fault.get("kind") == "corrected":
                    corrected += fault["count"]
                elif fault["id"] == "memory_errors":
                    uncorrected += fault["count"]
            totals["ce"] += corrected
            totals["ue"] += uncorrected
            dimm = place / f"dimm{slot}"
            if _missing(node, number):
                shutil.rmtree(str(dimm), ignore_errors=True)
                continue
            _put(dimm / "dimm_label", f"CPU_SrcID#{controller // 4}_MC#{controller % 4}_Chan#0_DIMM#{slot}")
            _put(dimm / "dimm_ce_count", str(corrected))
            _put(dimm / "dimm_ue_count", str(uncorrected))
            _put(dimm / "size", str(MODULE_MIB))
        _put(place / "mc_name", f"Intel_EDAC i10nm Socket#{controller // 4} IMC#{controller % 4}")
        _put(place / "ce_count", str(totals["ce"]))
        _put(place / "ue_count", str(totals["ue"]))
        _put(place / "seconds_since_reset", "100000")


def drives(node) -> list:
    """Return the numbers of the present NVMe drives."""
    return [number for number in range(DRIVES) if not node.fault("nvme_missing", drive=number)]


def _write_drives(node, folder: Path) -> None:
    there = {f"nvme{number}" for number in drives(node)}
    folder.mkdir(parents=True, exist_ok=True)
    for known in folder.iterdir():
        if known.name not in there:
            shutil.rmtree(str(known))
    for number in drives(node):
        place = folder / f"nvme{number}"
        dead = node.fault("nvme_dead", drive=number)
        _put(place / "model", "SAMSUNG MZQL23T8HCLS-00A07              ")
        _put(place / "serial", "S64HNE0T" + noise.digits(6, node.seed, node.name, "nvme", number))
        _put(place / "firmware_rev", "GDC5902Q")
        _put(place / "state", "dead" if dead else "live")
        _put(place / "transport", "pcie")
        _put(place / "address", f"0000:{0xF1 + number:02x}:00.0")


def _write_iommu(node) -> None:
    if str(node.root) == "/":
        return  # a lab node has the groups of the host's kernel
    translated = node.fault("iommu_translated") or node.fault("virtual_machine")
    for gpu in node.on_bus():
        group = str(40 + gpu["slot"])
        _put(node.folder / "sys/kernel/iommu_groups" / group / "type", "DMA-FQ" if translated else "identity")
        link = node.folder / "sys_pci" / gpu["address"] / "iommu_group"
        if link.parent.is_dir() and not link.is_symlink():
            link.symlink_to("../../../../kernel/iommu_groups/" + group)


def _write_libraries(node) -> None:
    """Empty an installed library, which only a reinstallation restores."""
    for fault in node.faults:
        if fault["id"] == "library_empty" and str(node.root) != "/":
            for place in ("usr/lib/x86_64-linux-gnu", "usr/lib64"):
                for file in (node.root / place).glob(fault["name"] + ".so.*.*"):
                    file.write_bytes(b"")


def smart(node, number: int) -> dict:
    """Return the SMART / Health Information log of a drive, with nvme-cli's names."""
    words = (node.seed, node.name, "smart", number)
    warning = node.given("nvme_warning", "of", "", drive=number)
    life = 2 + int(noise.fraction("life", *words) * 20)
    return {
        "critical_warning": BITS.get(warning, 0),
        "temperature": 308 + int(noise.fraction("temperature", *words) * 8),
        "avail_spare": 4 if warning == "spare" else 100,
        "spare_thresh": 10,
        "percent_used": node.given("nvme_worn", "percent", life, drive=number),
        "endurance_grp_critical_warning_summary": 0,
        "data_units_read": int(noise.fraction("read", *words) * 10**9),
        "data_units_written": life * 10**7,
        "host_read_commands": int(noise.fraction("reads", *words) * 10**11),
        "host_write_commands": life * 10**9,
        "controller_busy_time": life * 500,
        "power_cycles": 20 + int(noise.fraction("cycles", *words) * 30),
        "power_on_hours": life * 700,
        "unsafe_shutdowns": int(noise.fraction("unsafe", *words) * 12),
        "media_errors": 0,
        "num_err_log_entries": int(noise.fraction("log", *words) * 40),
        "warning_temp_time": 0,
        "critical_comp_time": 0,
    }
