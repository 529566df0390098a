"""nvidia-smi -q and -q -x: one tree, printed as XML or as text.

There is one form for each generation with known output of the real tool; a driver between two of them prints
like the older one (see _FORMS). tests/lab_silicon/shapes.yml has the shapes with their sources.
An entry is (XML name, text label, value or list of entries); a name or label of None is absent in that
format, and a value that differs between the formats is a pair.
"""

import html
import time

import telemetry

from nvidia_smi import mig as nvidia_smi_mig
from nvidia_smi import silent
from nvidia_smi import tree_errors as errors
from nvidia_smi import tree_fabric as fabric
from nvidia_smi import tree_state as state
from nvidia_smi.mig_profiles import profiles

NA = "N/A"
OLD = "Requested functionality has been deprecated"


# First driver -> its form. Outputs are known for 515.105, 525.147, 530.30, 535.54, 550.163, 570.148, 575.57,
# 580.105, 580.173, 590.44 and 595.91; the forms in between are assumptions.
_FORMS = (
    ((0,), 515), ((525,), 525), ((530,), 530), ((535,), 535), ((545,), 550), ((570,), 570), ((575,), 575),
    ((580,), 580), ((580, 159), 581), ((590,), 590),
)  # fmt: skip


def generation(driver: str) -> int:
    """Return the form of this driver's output; 581 is 580.159's (recorded on an H100) and 580.173's."""
    version = tuple(int(part) for part in driver.split(".")[:2])
    return [form for least, form in _FORMS if version >= least][-1]


def as_xml(node, driver: str, readings: list) -> str:
    """Render the whole document of `-q -x`."""
    form = generation(driver)
    schema = "v13" if form >= 580 else "v12" if form >= 525 else "v11"
    lines = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{schema}.dtd">',
        "<nvidia_smi_log>",
    ]
    for name, value in (
        ("timestamp", _now()),
        ("driver_version", driver),
        ("cuda_version", telemetry.cuda_version(driver)),
        ("attached_gpus", str(len(node.present()))),
    ):
        lines.append(f"\t<{name}>{value}</{name}>")
    for one in readings:
        lines.append(f'\t<gpu id="{_bus(one)}">')
        for entry in _answered(node, driver, one):
            lines += _xml(entry, 2)
        lines += ["\t</gpu>", ""]
    return "\n".join([*lines, "</nvidia_smi_log>"]) + "\n"


def as_text(node, driver: str, readings: list, sections: str) -> str:
    """Render the text of `-q`, or the sections selected with -d (MEMORY,TEMPERATURE,…)."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [
        _row(0, "Timestamp", _now()),
        _row(0, "Driver Version", driver),
        _row(0, "CUDA Version", telemetry.cuda_version(driver)),
        "",
        _row(0, "Attached GPUs", str(len(node.present()))),
    ]
    for one in readings:
        lines.append(f"GPU {_bus(one)}")
        for entry in _answered(node, driver, one):
            if entry[1] and (not sections or _in_sections(entry[1], sections)):
                lines += _text(entry, 1)
        lines.append("")
    return "\n".join(lines) + "\n"


def _in_sections(label: str, sections: str) -> bool:
    named = {
        "MEMORY": ("FB Memory", "BAR1 Memory", "Conf Compute"),
        "UTILIZATION": ("Utilization", "GPU Utilization"),
        "ECC": ("ECC",),
        "TEMPERATURE": ("Temperature",),
        "POWER": ("GPU Power", "GPU Memory Power", "Module Power"),
        "CLOCK": ("Clocks", "Applications Clocks", "Default Applications", "Max Clocks", "Max Customer"),
        "COMPUTE": ("Compute Mode",),
        "PERFORMANCE": ("Performance", "Clocks Event", "Sparse"),
        "ROW_REMAPPER": ("Remapped",),
        "PAGE_RETIREMENT": ("Retired",),
    }
    return any(label.startswith(named.get(one.strip(), ("\0",))) for one in sections.split(","))


def _bus(one: dict) -> str:
    return "0000" + one["gpu"]["address"].upper()


def _now() -> str:
    return time.strftime("%a %b %e %H:%M:%S %Y")


def _row(depth: int, label: str, value: str) -> str:
    return f"{'    ' * depth + label:<42}: {value}"


def _xml(entry, depth: int) -> list:
    name, _, value = entry
    if name is None:
        return []
    tab = "\t" * depth
    if isinstance(value, list):
        inner = [line for one in value for line in _xml(one, depth + 1)]
        return [f"{tab}<{name}>", *inner, f"{tab}</{name}>"]
    text = value[0] if isinstance(value, tuple) else value
    if text == "None" and name == "mig_devices":
        return [f"{tab}<{name}>", f"{tab}\tNone", f"{tab}</{name}>"]
    return [f"{tab}<{name}>{html.escape(text, quote=False)}</{name}>"]


def _text(entry, depth: int) -> list:
    _, label, value = entry
    if label is None:
        return []
    if isinstance(value, list):
        inner = [line for one in value for line in _text(one, depth + 1)]
        return ["    " * depth + label, *inner]
    return [_row(depth, label, value[1] if isinstance(value, tuple) else value)]


def _answered(node, driver: str, one: dict) -> list:
    entries = _entries(node, driver, one)
    return silent.entries(entries, one["silent"]) if one["silent"] else entries


def _entries(node, driver: str, one: dict) -> list:
    form = generation(driver)
    parts = (
        _identity(node, one, form)
        + _boards(node, one, form, driver)
        + state.pci(node, one, form)
        + state.performance(node, one, form)
    )
    return (
        parts
        + errors.health(node, one, form)
        + state.sensors(node, one, form)
        + fabric.fabric(node, one, form)
    )


def _identity(node, one: dict, form: int) -> list:
    current, pending = (
        NA if not profiles(node.sku_name) else "Enabled" if one["settings"][key] else "Disabled"
        for key in ("mig", "mig_pending")
    )
    entries = [
        ("product_name", "Product Name", node.sku["name"]),
        ("product_brand", "Product Brand", "NVIDIA"),
        ("product_architecture", "Product Architecture", node.sku["architecture"]),
        ("display_mode", "Display Mode", OLD if form >= 575 else "Enabled"),
    ]
    if form >= 575:
        entries.append(("display_attached", "Display Attached", "Yes"))
    entries += [
        ("display_active", "Display Active", "Disabled"),
        ("persistence_mode", "Persistence Mode", "Enabled" if one["persistence"] else "Disabled"),
        *([("addressing_mode", "Addressing Mode", _addressing(node, form))] if form >= 535 else []),
        ("mig_mode", "MIG Mode", [("current_mig", "Current", current), ("pending_mig", "Pending", pending)]),
        ("mig_devices", None, nvidia_smi_mig.entries(node, one) or "None"),
        ("accounting_mode", "Accounting Mode", "Disabled"),
        ("accounting_mode_buffer_size", "Accounting Mode Buffer Size", "4000"),
        ("driver_model", "Driver Model", [("current_dm", "Current", NA), ("pending_dm", "Pending", NA)]),
        ("serial", "Serial Number", one["gpu"]["serial"]),
        ("uuid", "GPU UUID", one["gpu"]["uuid"]),
    ]
    if form >= 580:
        entries.append(("pdi", "GPU PDI", "0x" + one["gpu"]["uuid"].replace("-", "")[3:19]))
    return entries


def _addressing(node, form: int) -> str:
    """Return the mode that 580 printed on GB200, H100 and B200."""
    if form < 570:
        return "None"
    return {"imex": "ATS", "nvlink5": "None"}.get(node.sku["fabric"], "HMM")


def _boards(node, one: dict, form: int, driver: str) -> list:
    sku = node.sku
    inforom = [
        ("img_version", "Image Version", sku["vbios_inforom"]),
        ("oem_object", "OEM Object", "2.1"),
        ("ecc_object", "ECC Object", "7.16" if sku["pcie"] > 4 else "6.16"),
        ("pwr_object", "Power Management Object", NA),
    ]
    entries = [
        ("minor_number", "Minor Number", str(one["gpu"]["slot"])),
        ("vbios_version", "VBIOS Version", one["gpu"]["vbios"]),
        ("multigpu_board", "MultiGPU Board", "No"),
        ("board_id", "Board ID", f"0x{int(one['gpu']['bus'], 16) << 8:x}"),
        *([("board_part_number", "Board Part Number", sku["board_part"])] if form >= 525 else []),
        ("gpu_part_number", "GPU Part Number", sku["gpu_part" if form >= 525 else "board_part"]),
        *([("gpu_fru_part_number", "FRU Part Number", NA)] if form >= 530 else []),
        _place(node, one, form),
        ("inforom_version", "Inforom Version", inforom),
    ]
    if form >= 550:
        known = form >= 580 and sku["fabric"] in ("nvswitch", "imex")  # H100 and GB200, not B200 and L40S
        when, took = (time.strftime("%Y/%m/%d 04:12:51.318"), "93088 us") if known else (NA, NA)
        flush = [("latest_timestamp", "Latest Timestamp", when), ("latest_duration", "Latest Duration", took)]
        entries.append(("inforom_bbx_flush", "Inforom BBX Object Flush", flush))
    return entries + _modes(sku, form, driver, one)


def _place(node, one: dict, form: int):
    module = str(one["gpu"]["slot"] + 1)
    if form < 570:
        return ("gpu_module_id", "Module ID", module)
    in_rack = node.sku["fabric"] == "imex"
    names = (
        ("chassis_serial_number", "Chassis Serial Number", "1820000000001" if in_rack else ""),
        ("slot_number", "Slot Number", "11" if in_rack else NA),
        ("tray_index", "Tray Index", "7" if in_rack else NA),
        ("host_id", "Host ID", "1"),
        ("peer_type", "Peer Type", "Switch Connected"),
        ("module_id", "Module Id", module),
        ("gpu_fabric_guid", "GPU Fabric GUID", "0x" + one["gpu"]["uuid"][-12:].rjust(16, "0")),
    )
    known = node.sku["fabric"] in ("nvlink5", "imex")
    rows = [(x, t, value if known or x == "module_id" else NA) for x, t, value in names]
    return ("platformInfo", "Platform Info", rows)


def _modes(sku, form: int, driver: str, one: dict) -> list:
    pending = one["remap_pending"]
    virtual = [
        ("virtualization_mode", "Virtualization Mode", "None"),
        ("host_vgpu_mode", "Host VGPU Mode", NA),
    ]
    if form >= 550:
        virtual.append(("vgpu_heterogeneous_mode", "vGPU Heterogeneous Mode", NA))
    required, recommended = (OLD, OLD) if form >= 570 else ("Yes" if pending else "No", "No")
    reset = [
        ("reset_required", "Reset Required", required),
        ("drain_and_reset_recommended", "Drain and Reset Recommended", recommended),
    ]
    chip = {"imex": "Enabled", None: NA}.get(sku["fabric"], "Disabled") if form >= 580 else NA
    operation = [("current_gom", "Current", NA), ("pending_gom", "Pending", NA)]
    entries = {
        "operation": ("gpu_operation_mode", "GPU Operation Mode", operation),
        "firmware": ("gsp_firmware_version", "GSP Firmware Version", driver),
        "chip": ("c2c_mode", "GPU C2C Mode", chip),
        "virtual": ("gpu_virtualization_mode", "GPU Virtualization Mode", virtual),
        "reset": ("gpu_reset_status", "GPU Reset Status", reset),
        "recovery": ("gpu_recovery_action", "GPU Recovery Action", one["recovery"]),
        "ibm": ("ibmnpu", "IBMNPU", [("relaxed_ordering_mode", "Relaxed Ordering Mode", NA)]),
    }
    order = (
        (580, "operation chip virtual recovery firmware ibm"),
        (570, "operation chip virtual reset recovery firmware ibm"),
        (550, "operation chip virtual reset firmware ibm"),
        (530, "operation firmware virtual reset ibm"),
        (515, "operation firmware virtual ibm"),
    )
    names = next(names for least, names in order if form >= least)
    return [entries[name] for name in names.split()]
