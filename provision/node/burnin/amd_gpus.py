"""AMD's GPUs for the sampler: readings of amd-smi, processes on the GPUs, fatal driver messages.

amd-smi numbers the GPUs that answer. A lost GPU leaves the list, and the GPUs after it move up: their list is
read first, and again as soon as other numbers appear.
"""

import json
import os
import re

from provision.node.burnin.kernel_lines import amdgpu_words
from provision.node.burnin.processes import holders_by_file, stat_of

AMD_DRIVER = "/sys/class/kfd/kfd"  # exists once the driver is loaded
AMD_METRIC = ["amd-smi", "metric", "--json"]
AMD_LIST_AND_METRIC = ["/bin/sh", "-c", "amd-smi list --json; exec amd-smi metric --json"]
AMD_DOCUMENT = re.compile(r"^[\[{]", re.MULTILINE)  # warnings may precede it
AMD_PATIENCE = 60.0  # seconds; no duration for eight GPUs is published
AMD_MOST_GPUS = 1024  # GPUs and partitions
# Throttling reasons, the bits of `violations`; checks/vendors/amd/sensors.py has their texts. The power limit
# is not among them, since it throttles GPUs in normal operation.
AMD_VIOLATIONS = (("prochot", 1), ("vr_thermal", 2), ("hbm_thermal", 4), ("socket_thermal", 8))
AMD_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s of a PCIe lane -> generation


def amd_documents(text):
    """Return the documents of an answer, each a list of numbered GPUs; None for any other document.

    ROCm until 6.3 prints a list; from 6.4 on the list is below `gpu_data` (`metric`) or nothing."""
    documents, at, decoder = [], 0, json.JSONDecoder()
    for _ in range(4):
        start = AMD_DOCUMENT.search(text, at)
        if start is None:
            break
        try:
            document, at = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            document, at = None, start.end()
        if isinstance(document, dict):
            document = document.get("gpu_data")
        documents.append(document if are_amd_gpus(document) else None)
    return documents


def are_amd_gpus(document):
    """Return whether the document is a list of GPUs with distinct numbers."""
    if not isinstance(document, list) or not 0 < len(document) <= AMD_MOST_GPUS:
        return False
    numbers = [one.get("gpu") if isinstance(one, dict) else None for one in document]
    return all(type(one) is int for one in numbers) and len(set(numbers)) == len(numbers)


def amd_value(entry, *names):
    """Return the number below these names, {"value": 39, "unit": "C"} or bare; None for anything else."""
    for name in names:
        entry = entry.get(name) if isinstance(entry, dict) else None
    value = entry.get("value") if isinstance(entry, dict) else entry
    # NaN fails every comparison; True is an int.
    return value if type(value) in (int, float) and abs(value) < 1e15 else None


def amd_text(value):
    """Format a number for telemetry; empty without one."""
    return "" if value is None else "%d" % value if value == int(value) else "%.1f" % value


def amd_violations(entry):
    """Return the bits of active throttling; empty if the GPU reports none, like an MI200."""
    throttle = entry.get("throttle")
    states = [(bit, throttle.get(name + "_violation_status") if isinstance(throttle, dict) else None)
              for name, bit in AMD_VIOLATIONS]  # fmt: skip
    if states[0][1] in (None, "", "N/A"):
        return ""
    return "0x%x" % sum(bit for bit, state in states if str(state).upper() == "ACTIVE")


def amd_row(entry):
    """Return the metrics of one GPU of `metric`, named like nvidia-smi's.

    `temperature_c` is the hottest place of the chip, to which AMD's limits refer."""
    clock = entry.get("clock")
    names = [name for name in clock if name.startswith("gfx")] if isinstance(clock, dict) else []
    clocks = [value for value in (amd_value(clock, name, "clk") for name in names) if value]
    watts, rate = amd_value(entry, "power", "socket_power"), amd_value(entry, "pcie", "speed")
    numbers = {
        "temperature_c": amd_value(entry, "temperature", "hotspot"),
        "memory_c": amd_value(entry, "temperature", "mem"),
        "sm_mhz": max(clocks) if clocks else None,
        "mem_mhz": amd_value(entry, "clock", "mem_0", "clk"),
        "util_pct": amd_value(entry, "usage", "gfx_activity"),
        "mem_used_mib": amd_value(entry, "mem_usage", "used_vram"),
        "ecc_ce": amd_value(entry, "ecc", "total_correctable_count"),
        "ecc_ue": amd_value(entry, "ecc", "total_uncorrectable_count"),
        "pcie_gen": AMD_GENERATIONS.get(rate),
        "pcie_width": amd_value(entry, "pcie", "width"),
        "pcie_replays": amd_value(entry, "pcie", "replay_count"),
    }
    metrics = {name: amd_text(value) for name, value in numbers.items()}
    metrics.update(power_w="" if watts is None else "%.1f" % watts, violations=amd_violations(entry))
    return metrics


class AmdGpus:
    """Runs amd-smi and parses its answers into rows. `gpus`: PCI address without function -> device."""

    def __init__(self, gpus):
        self.gpus = gpus
        self.numbers = {}  # amd-smi's number -> (device, identifiers of the GPU); empty: read the list first

    def argv(self):
        return AMD_METRIC if self.numbers else AMD_LIST_AND_METRIC

    def rows(self, text):
        """Parse an answer into [(device, metrics)]; None if it is malformed."""
        documents = amd_documents(text)
        expected = 1 if self.numbers else 2
        if len(documents) != expected or None in documents:
            self.numbers = {}
            return None
        if not self.numbers:
            self._take_list(documents[0])
        metric = documents[-1]
        if {entry["gpu"] for entry in metric} != set(self.numbers):
            self.numbers = {}  # a GPU is lost, or is back
            return [] if expected == 1 else None
        named = [(self.numbers[entry["gpu"]], amd_row(entry)) for entry in metric]
        return [(device, dict(metrics, **names)) for (device, names), metrics in named if device]

    def _take_list(self, listed):
        """Assign devices to amd-smi's numbers.

        Partitions share a GPU's address except the function: the first counts. A CPU's graphics unit has
        none."""
        seen = set()
        for entry in listed:
            address = str(entry.get("bdf")).lower()
            device = self.gpus.get(address.rpartition(".")[0])
            if device in seen:
                device = None
            seen.add(device)
            names = {"uuid": str(entry.get("uuid")), "address": address}
            self.numbers[entry["gpu"]] = (device, names)


# --- processes on the GPUs

KFD_PROCESSES = AMD_DRIVER + "/proc"  # a folder for each process that has /dev/kfd open, named by process id
KFD_FILE = re.compile(r"/dev/kfd\Z")
# They only monitor. The kernel keeps 15 letters of a name.
AMD_WATCHERS = ("amd-smi", "rocm-smi", "gpuagent", "amd-metrics-exp")


def amd_holders():
    """Return ({pid: name}, why the driver's list could not be read); ended processes are left out."""
    try:
        pids = [int(name) for name in os.listdir(KFD_PROCESSES) if name.isdigit()]
        holders, why = {pid: (stat_of(pid) or ("",))[0] for pid in pids}, ""
    except OSError as error:
        holders, why = holders_by_file(KFD_FILE), "%s: %s" % (KFD_PROCESSES, error.strerror)
    return {pid: name for pid, name in holders.items() if name and not name.startswith(AMD_WATCHERS)}, why


# --- messages of the driver in the kernel log


def amd_fatal(line, patterns, gpus):
    """Return (text, device) of a message that fits a pattern; None for others, and for unknown GPUs."""
    address, words = amdgpu_words(line)
    device = gpus.get(address.partition(".")[0]) if address else "node"
    match = next(filter(None, (re.match(pattern, words) for pattern in patterns)), None)
    return (match.group(0)[:80], device) if match and device else None
