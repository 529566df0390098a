"""Parser of `nvidia-smi -q -x` into measurements, for the XML schemas v11 to v13.

Lessons from real samples: a container may be the plain text N/A, values include units, retired features read
"Requested functionality has been deprecated", the throttle reasons were renamed at 535, and the XML has
nothing about NVLink. A missing value is omitted; a malformed one is a ParseError. A GPU that does not respond
is listed nevertheless, with exit status 0 and an NVML error text in each cell that needs an answer of the GPU
(gpu_answers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.gpu.gpu_answers import NOT_PERMITTED, RC_INFOROM, error_text, worst
from provision.checks.kernel.kernel_log import bus_address
from provision.errors import ParseError

_NO_VALUE = {"", "N/A", "[N/A]", "None", "Requested functionality has been deprecated"}

# Alarms among the clock event reasons (0x8, 0x20, 0x40, 0x80); idle, application clocks and the software
# power cap are normal.
THROTTLE_ALARMS = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "software thermal slowdown",
}

INFOROM_CORRUPTED = "Corrupted infoROM"  # in place of its versions (nvidia-smi 470.256 to 555.58)

# metric → (path in a <gpu>, unit, type); of several paths, separated by blanks, the first that exists
_FIELDS = {
    "name": ("product_name", "", "text"),
    "serial": ("serial", "", "text"),
    "uuid": ("uuid", "", "text"),
    "vbios": ("vbios_version", "", "text"),
    "memory_total": ("fb_memory_usage/total", "MiB", "number"),
    "mig_mode": ("mig_mode/current_mig", "", "text"),
    "pcie_width": ("pci/pci_gpu_link_info/link_widths/current_link_width", "lanes", "number"),
    "pcie_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width", "lanes", "number"),
    "pcie_gen": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", "", "number"),
    "pcie_gen_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", "", "number"),
    "pcie_gen_device_max": ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen", "", "number"),
    "pcie_gen_host_max": ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen", "", "number"),
    "ecc_mode": ("ecc_mode/current_ecc", "", "text"),
    "sram_threshold_exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded", "", "text"),
    "channel_repair_pending": ("ecc_errors/channel_repair_pending", "", "text"),
    "tpc_repair_pending": ("ecc_errors/tpc_repair_pending", "", "text"),
    "unrepairable_memory": ("ecc_errors/unrepairable_memory", "", "text"),
    "remapped_correctable": ("remapped_rows/remapped_row_corr", "rows", "number"),
    "remapped_uncorrectable": ("remapped_rows/remapped_row_unc", "rows", "number"),
    "remap_pending": ("remapped_rows/remapped_row_pending", "", "text"),
    "remap_failure": ("remapped_rows/remapped_row_failure", "", "text"),
    "remap_banks_low": (
        "remapped_rows/row_remapper_histogram/row_remapper_histogram_low",
        "banks",
        "number",
    ),
    "remap_banks_none": (
        "remapped_rows/row_remapper_histogram/row_remapper_histogram_none",
        "banks",
        "number",
    ),
    "retirement_pending": ("retired_pages/pending_retirement", "", "text"),
    "fabric_state": ("fabric/state", "", "text"),
    "fabric_status": ("fabric/status", "", "text"),
    "fabric_clique": ("fabric/cliqueId", "", "text"),
    "fabric_cluster": ("fabric/clusterUuid", "", "text"),
    "fabric_bandwidth": ("fabric/health/bandwidth", "", "text"),
    "fabric_summary": ("fabric/health/summary", "", "text"),
    "fabric_route": ("fabric/health/route_unhealthy", "", "text"),
    "fabric_timeout": ("fabric/health/access_timeout_recovery", "", "text"),
    "fabric_configuration": ("fabric/health/incorrect_configuration", "", "text"),
    "persistence": ("persistence_mode", "", "text"),
    "compute_mode": ("compute_mode", "", "text"),
    "temperature": ("temperature/gpu_temp", "C", "number"),
    "replays": ("pci/replay_counter", "replays", "number"),
    # Drivers before about 530 (T4 and A10G in telegraf's samples) have the second names.
    "power_limit": (
        "gpu_power_readings/current_power_limit power_readings/enforced_power_limit",
        "W",
        "number",
    ),
    "power_default": (
        "gpu_power_readings/default_power_limit power_readings/default_power_limit",
        "W",
        "number",
    ),
    "retired_single_bit": ("retired_pages/multiple_single_bit_retirement/retired_count", "pages", "number"),
    "retired_double_bit": ("retired_pages/double_bit_retirement/retired_count", "pages", "number"),
}
_MUST_HAVE = ("name", "uuid")
# Values that may look like an NVML error: the result of a fabric probe (nvmlErrorString), and names of
# programs, which their users choose.
_WORDS_OF_OTHERS = ("processes", "accounted_processes")


def parse_xml(output: Output) -> list[Measurement]:
    """Parse `nvidia-smi -q -x` for the node and each GPU, `gpu<n>` in nvidia-smi's own order."""
    root = _root(output)
    gpus = root.findall("gpu")
    attached = _text(root, "attached_gpus")
    if attached is None or attached != str(len(gpus)):
        raise ParseError(
            f"nvidia-smi announces {attached} GPUs and describes {len(gpus)}", "run the check again"
        )
    measurements = [Measurement("driver_gpus", len(gpus), "GPUs")]
    driver = _text(root, "driver_version")
    if driver is None:
        raise ParseError("nvidia-smi's answer has no driver version", "run the check again")
    measurements.append(Measurement("driver_version", driver, ""))
    if output.rc == RC_INFOROM:
        measurements.append(Measurement("inforom_corrupted", True, ""))
    _refuse_gaps(gpus)
    for index, gpu in enumerate(gpus):
        measurements += _gpu(gpu, f"gpu{index}")
    return measurements


# Elements of a GPU that are parsed. One driver describes all GPUs of a model with the same elements, so one
# that only a single GPU lacks was lost on the way: it may have contained a fault.
_READ = (
    "serial", "pci", "fb_memory_usage", "mig_mode", "ecc_mode", "ecc_errors", "remapped_rows",
    "retired_pages", "fabric", "clocks_event_reasons", "clocks_throttle_reasons",
    "gpu_recovery_action", "gpu_reset_status",
)  # fmt: skip


def _refuse_gaps(gpus: list[ElementTree.Element]) -> None:
    # A GPU that does not respond is incomplete and reported separately.
    described: dict[str | None, dict[str, bool]] = {}
    answering = [(index, gpu) for index, gpu in enumerate(gpus) if not _errors(gpu)]
    for _, gpu in answering:
        described.setdefault(_text(gpu, "product_name"), {}).update(_paths(gpu))
    for index, gpu in answering:
        own = _paths(gpu)
        for path in described[_text(gpu, "product_name")].keys() - own.keys():
            above = [path[:at] for at, letter in enumerate(path) if letter == "/"]
            if not any(own.get(container) for container in above):
                raise ParseError(
                    f"nvidia-smi: gpu{index} has no {path}, which others have", "run the check again"
                )


def _paths(gpu: ElementTree.Element) -> dict[str, bool]:
    """Return every parsed element of a GPU, and whether it is the text N/A in place of a container."""
    return {
        path: len(element) == 0 and (element.text or "").strip() in _NO_VALUE
        for child in gpu
        if child.tag in _READ
        for path, element in _walk(child, child.tag)
    }


def _walk(element: ElementTree.Element, path: str = "") -> Iterator[tuple[str, ElementTree.Element]]:
    """Yield an element and all its descendants, each with its path."""
    yield path, element
    for child in element:
        yield from _walk(child, f"{path}/{child.tag}" if path else child.tag)


def _root(output: Output) -> ElementTree.Element:
    text = output.stdout
    # Warnings (a corrupted infoROM) may precede and follow the document.
    begin, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if begin < 0 or end < 0:
        raise ParseError(
            f"nvidia-smi -q -x did not print its document: {last_words(output)}", "run the check again"
        )
    if "<!ENTITY" in text:
        raise ParseError(
            "nvidia-smi -q -x: the document defines entities, which nvidia-smi never does", "investigate"
        )
    try:
        # Entities are refused above, and expat fetches nothing.
        return ElementTree.fromstring(text[begin : end + len("</nvidia_smi_log>")])  # noqa: S314
    except ElementTree.ParseError as error:
        raise ParseError(f"nvidia-smi -q -x: {error}", "run the check again") from error


def _text(element: ElementTree.Element, path: str) -> str | None:
    """Return the text at `path`, or None if it is missing or one of nvidia-smi's words for "nothing"."""
    text = (element.findtext(path) or "").strip()
    failed = error_text(text) and not (path == "fabric/status" and _probed(element))
    return None if text in _NO_VALUE or failed else text


def _probed(gpu: ElementTree.Element) -> bool:
    """Return whether the driver answered for the fabric: its status is then the GPU's probe result."""
    return error_text(gpu.findtext("fabric/state") or "") is None


def _errors(gpu: ElementTree.Element) -> dict[str, str]:
    """Return path → the NVML error in place of a reading."""
    errors = (
        (path, error_text(element.text or ""))
        for child in gpu
        if child.tag not in _WORDS_OF_OTHERS
        for path, element in _walk(child, child.tag)
        if path != "fabric/status" or not _probed(gpu)
    )
    # A healthy B200 prints `Insufficient Permissions` for power_smoothing, even to root.
    return {
        path: error
        for path, error in errors
        if error is not None and (error != NOT_PERMITTED or path.split("/")[0] in _READ)
    }


def _number(text: str, where: str) -> int:
    match = re.fullmatch(r"(\d{1,18})(?:\.\d{1,6})?\s*(?:MiB|x|W|C|bank\(s\))?", text)
    if match is None:
        raise ParseError(
            f"nvidia-smi: {where} is {text[:60]!r}, which is not a number", "report the new format"
        )
    return int(match[1])


def _gpu(gpu: ElementTree.Element, device: str) -> list[Measurement]:
    measurements = []
    errors = _errors(gpu)
    for metric, (paths, unit, kind) in _FIELDS.items():
        path = next((one for one in paths.split() if _text(gpu, one) is not None), paths)
        text = _text(gpu, path)
        if text is None and metric in _MUST_HAVE and not errors:
            raise ParseError(f"nvidia-smi: {device} has no {path}", "run the check again")
        if text is not None:
            value = _number(text, f"{device} {path}") if kind == "number" else text
            measurements.append(Measurement(metric, value, unit, device))
    address = gpu.get("id") or _text(gpu, "pci/pci_bus_id")
    if address is None:
        raise ParseError(f"nvidia-smi: {device} has no PCI address", "run the check again")
    measurements.append(Measurement("pci_address", bus_address(address), "", device))
    if errors:
        measurements += _unanswered(errors, device)
    elif _text(gpu, "fb_memory_usage/total") is None:
        measurements.append(Measurement("memory_unread", True, "", device))
    cells = (cell.text for cell in gpu.iter() if cell.tag != "process_name")
    if any((text or "").strip() == INFOROM_CORRUPTED for text in cells):
        measurements.append(Measurement("inforom", INFOROM_CORRUPTED, "", device))
    if (_text(gpu, "ecc_mode/current_ecc"), _text(gpu, "ecc_mode/pending_ecc")) == ("Enabled", "Disabled"):
        measurements.append(Measurement("ecc_pending", "Disabled", "", device))
    measurements += _ecc(gpu, device)
    measurements.append(Measurement("processes", programs(gpu), "", device))
    measurements.append(Measurement("throttle", _throttle(gpu), "", device))
    if recovery := _recovery(gpu):
        measurements.append(Measurement("recovery", recovery, "", device))
    return measurements


def _unanswered(errors: dict[str, str], device: str) -> list[Measurement]:
    """Return `unanswered`, the GPU's worst NVML error, and `forbidden`, readings that only root may see.

    `unanswered_readings` is the number of failed readings, `unanswered_first` the first of them, and
    `unanswered_judged` whether any of them is judged."""
    refused = sorted(path for path, error in errors.items() if error == NOT_PERMITTED)
    faulty = sorted(path for path, error in errors.items() if error != NOT_PERMITTED)
    measurements = []
    if faulty:
        # A failed sensor (fan, power, a clock) does not stop a job; failed memory, PCIe and the like do.
        judged = any(path.split("/")[0] in _READ for path in faulty)
        measurements.append(Measurement("unanswered", worst(set(errors.values())), "", device))
        measurements.append(Measurement("unanswered_judged", judged, "", device))
        measurements.append(Measurement("unanswered_readings", len(faulty), "readings", device))
        measurements.append(Measurement("unanswered_first", faulty[0], "", device))
    if refused:
        measurements.append(Measurement("forbidden", ", ".join(refused[:3]), "", device))
    return measurements


def _ecc(gpu: ElementTree.Element, device: str) -> list[Measurement]:
    """Return the uncorrectable errors since the driver was loaded.

    One SRAM counter until v12, two since 550; before Turing double-bit errors, by memory and with a total."""
    counters = gpu.find("ecc_errors/volatile")
    if counters is None:
        return []
    named = {counter.tag: counter for counter in counters if "uncorrectable" in counter.tag}
    if (double := counters.find("double_bit")) is not None:
        named = {counter.tag: counter for counter in double}
        if _text(double, "total") is not None:
            named = {"total": named["total"]}
    counts = [
        _number(text, f"{device} {tag}")
        for tag, counter in named.items()
        if (text := (counter.text or "").strip()) not in _NO_VALUE and not error_text(text)
    ]
    if not counts:
        return []
    unread = len(named) - len(counts)
    return [
        Measurement("ecc_uncorrectable", sum(counts), "errors", device),
        *([Measurement("ecc_unread", unread, "counters", device)] if unread else []),
    ]


def _throttle(gpu: ElementTree.Element) -> str:
    """Return the active alarming reasons, joined; `none`, or `unknown` if no reason is reported."""
    reasons = gpu.find("clocks_event_reasons")
    if reasons is None:
        reasons = gpu.find("clocks_throttle_reasons")
    if reasons is None or len(reasons) == 0:
        return "unknown"
    active = {
        re.sub(r"^clocks_(event|throttle)_reason_", "", reason.tag)
        for reason in reasons
        if (reason.text or "").strip() == "Active"
    }
    return ", ".join(name for name in THROTTLE_ALARMS if name in active) or "none"


def _recovery(gpu: ElementTree.Element) -> str:
    """Return the driver's recovery request as nvidia-smi prints it; empty if its element has no answer."""
    if action := _text(gpu, "gpu_recovery_action"):
        return action
    if _text(gpu, "gpu_reset_status/reset_required") == "Yes":
        return "Reset"
    if _text(gpu, "gpu_reset_status/drain_and_reset_recommended") == "Yes":
        return "Drain and Reset"
    return "" if "N/A" in (gpu.findtext("gpu_recovery_action") or "") else "None"


# --- the programs on a GPU


# Programs that only monitor: they hold a context without work.
_AGENTS = frozenset({"nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-smi", "nvidia-persistenced"})
_AGENT_STEMS = ("nvidia-persiste",)  # the kernel cuts names at 15 letters


def is_agent(name: str) -> bool:
    """Return whether a program only monitors GPUs: `/usr/bin/nv-hostengine`, `nvidia-smi`."""
    stem = (name.split() or ["?"])[0].rsplit("/", 1)[-1]
    return stem in _AGENTS or stem.startswith(_AGENT_STEMS)


def programs(gpu: Element) -> str:
    """Return the programs on the GPU except monitors, such as `python3 (pid 4711, 4096 MiB)`."""
    texts = []
    for process in gpu.findall("processes/process_info"):
        name = (process.findtext("process_name") or "?").strip()
        if (process.findtext("type") or "").strip() != "G" and not is_agent(name):
            memory = (process.findtext("used_memory") or "?").strip()
            texts.append(f"{name[:80]} (pid {(process.findtext('pid') or '?').strip()[:10]}, {memory[:20]})")
    return ", ".join(texts[:8])


# --- partitioned GPUs (MIG): CUDA lists slices in their place, and a slice has a part of its GPU


MIG = "mig"


def mig_command() -> Command:
    """Return the command that prints each GPU's MIG mode."""
    return Command(MIG, ("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"), 60.0)


def partitioned(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return `mig` for each partitioned GPU and nothing for the others; raise ParseError."""
    output = completed(outputs, MIG)
    modes = [line.strip() for line in output.stdout.splitlines() if line.strip()]
    if len(modes) != node.gpu_count or not set(modes) <= {"Enabled", "Disabled", "[N/A]", "N/A"}:
        raise ParseError(
            f"nvidia-smi did not report the MIG mode of {node.gpu_count} GPUs: {last_words(output)}",
            "look at the gpu_inventory check",
        )
    return [
        Measurement("mig", True, "", f"gpu{index}") for index, mode in enumerate(modes) if mode == "Enabled"
    ]
