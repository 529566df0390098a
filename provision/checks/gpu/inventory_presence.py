"""The rules of gpu_inventory for what answers at all: the tools, and as many GPUs as there should be."""

from __future__ import annotations

from collections.abc import Sequence

from provision.checks.check import CheckNode
from provision.checks.gpu import nvml_error
from provision.checks.gpu.inventory_rules import Values
from provision.checks.judge import Finding, Verdict, unmeasured

# Boards with NVSwitches carry 4, 8 or 16 GPUs, and are handed to virtual machines in parts of 1, 2, 4 or 8:
# derived from the boards NVIDIA sells, no document states the list.
_BOARD_COUNTS = (1, 2, 4, 8, 16)

# What one broken sensor prints, too. The other errors are of the whole GPU.
_OF_ONE_READING = (nvml_error.UNKNOWN, nvml_error.UNSPECIFIED)


def judge_readability(check: str, values: Values) -> list[Finding]:
    """What could not be read is an error, except a GPU that is lost: that is a broken GPU."""
    findings = []
    for metric, devices in values.items():
        if not metric.startswith("unreadable."):
            continue
        message = str(devices["node"])
        if metric.startswith("unreadable.nvlink") and "unreadable.nvidia_smi" in values:
            continue  # the same program, the same reason: once is enough
        if "no_handle" in values and metric != "unreadable.kernel_log":
            continue  # the GPU that keeps it from answering is a finding
        if "GPU is lost" in message:
            findings.append(
                Finding(check, Verdict.FAIL, "node", message, metric=metric, action="power-cycle")
            )
        else:
            action = "fix configuration" if "did not start" in message else "investigate"
            findings.append(unmeasured(check, message, action=action))
    if "inforom_corrupted" in values:
        message = "nvidia-smi reports a corrupted infoROM (status 14)"
        findings.append(Finding(check, Verdict.WARN, "node", message, metric="inforom", action="investigate"))
    return findings


def judge_no_handle(check: str, values: Values) -> list[Finding]:
    """A GPU that keeps nvidia-smi from answering at all; no more than its address is known."""
    without = "nvidia-smi therefore describes no GPU"
    if "unreadable.nvidia_smi" not in values:
        without = "nvidia-smi therefore lists no NVLinks"
    return [
        Finding(
            check,
            Verdict.FAIL,
            device,
            f"does not answer: {error!r} at PCI {values['no_handle_address'][device]}; {without}",
            "unanswered",
            error,
            action=nvml_error.ACTIONS[error],
        )
        for device, error in values.get("no_handle", {}).items()
    ]


def judge_unanswered(check: str, values: Values) -> list[Finding]:
    """A GPU whose readings are NVML errors: broken as far as the driver can tell, whatever else it prints."""
    findings = []
    for device, error in values.get("unanswered", {}).items():
        count = values["unanswered_readings"][device]
        serial, address = (values.get(metric, {}).get(device) for metric in ("serial", "pci_address"))
        where = ", ".join(f"{what} {text}" for what, text in (("serial", serial), ("PCI", address)) if text)
        first = values["unanswered_first"][device]
        words = f"does not answer: {error!r} in place of {count} readings, {first} first ({where})"
        sensor = not values["unanswered_judged"][device] and error in _OF_ONE_READING
        verdict = Verdict.WARN if sensor else Verdict.FAIL
        action = "investigate" if sensor else nvml_error.ACTIONS[error]
        findings.append(Finding(check, verdict, device, words, "unanswered", error, action=action))
    for device, paths in values.get("forbidden", {}).items():
        words = f"nvidia-smi may not read {paths} ({nvml_error.NOT_PERMITTED}): gpuprov has to run it as root"
        action = nvml_error.ACTIONS[nvml_error.NOT_PERMITTED]
        findings.append(unmeasured(check, words, device=device, action=action))
    return findings


# Readings that are judged, and in what the ECC mode or MIG has no part.
_JUDGED = {
    "pcie_width": "PCIe width",
    "pcie_gen_max": "highest PCIe generation",
    "sram_threshold_exceeded": "SRAM threshold flag",
    "remap_pending": "pending row remap",
    "remap_failure": "row remap failure",
    "channel_repair_pending": "pending channel repair",
    "tpc_repair_pending": "pending TPC repair",
    "unrepairable_memory": "flag of unrepairable memory",
    "recovery": "recovery action",
    "ecc_uncorrectable": "uncorrectable ECC errors",
}
_OF_ECC = frozenset({"sram_threshold_exceeded", "ecc_uncorrectable"})


def judge_absent(check: str, values: Values) -> list[Finding]:
    """A reading that is N/A on one GPU, and not on others of its model: which readings a GPU has is a matter
    of the model (NVML_ERROR_NOT_SUPPORTED), so this one was not answered."""
    findings = []
    for device, name in values.get("name", {}).items():
        if device in values.get("unanswered", {}) or device in values.get("forbidden", {}):
            continue  # a finding of its own
        peers = [d for d, other in values["name"].items() if other == name and d != device]
        without_ecc = values.get("ecc_mode", {}).get(device) == "Disabled"
        partitioned = values.get("mig_mode", {}).get(device) == "Enabled"
        missing = [
            words
            for metric, words in _JUDGED.items()
            if _fewer(values, metric, device, peers)
            and not (metric in _OF_ECC and without_ecc)
            and not partitioned
        ]
        if missing:
            said = f"nvidia-smi gives no {', '.join(missing)} of it, and does of the other {name}s"
            findings.append(unmeasured(check, said, device=device, action="investigate"))
    return findings


def _fewer(values: Values, metric: str, device: str, peers: Sequence[str]) -> bool:
    """Whether most peers have this reading, or all counters of it, and the GPU has not."""
    known, partly = values.get(metric, {}), values.get("ecc_unread", {})
    if metric == "ecc_uncorrectable" and device in partly:
        return 2 * sum(peer in known and peer not in partly for peer in peers) > len(peers)
    return device not in known and 2 * sum(peer in known for peer in peers) > len(peers)


def judge_counts(check: str, node: CheckNode, values: Values) -> list[Finding]:
    """As many GPUs as declared, on the bus and in the driver."""
    seen = int(values["driver_gpus"]["node"])
    declared = node.variables.get("gpuprov_expected_gpus")
    expected = int(declared) if declared is not None else node.gpu_count
    limit = f"= {expected} GPUs"
    source = "gpuprov_expected_gpus" if declared is not None else "PCI devices of the node"
    if declared is None and seen == node.gpu_count and (odd := _odd_board(check, node, seen)) is not None:
        return [odd]
    if seen == expected == node.gpu_count:
        return [
            Finding(
                check, Verdict.PASS, "node", f"{seen} GPUs, as expected", "driver_gpus", seen, "GPUs", limit
            )
        ]
    listed = {str(address) for address in values.get("pci_address", {}).values()}
    on_bus = [str(address) for address in node.variables.get("gpuprov_pci_addresses", ())]
    lost = [address for address in on_bus if address.rsplit(".", 1)[0].lower() not in listed]
    message = f"{seen} of {expected} GPUs answer; {node.gpu_count} are on the PCI bus"
    if lost:
        message += f"; the driver does not list {', '.join(lost)}"
    return [_wrong_count(check, message, seen, limit, source)]


def _odd_board(check: str, node: CheckNode, seen: int) -> Finding | None:
    """A GPU gone from the PCI bus altogether, on a node whose owner did not say how many it has."""
    if node.gpuprov_node["gpu"].get("fabric", "none") == "none" or seen in _BOARD_COUNTS:
        return None
    message = (
        f"{seen} GPUs on the PCI bus: no {node.sku} board or partition has that many, so one is missing "
        "(set gpuprov_expected_gpus if that is wrong)"
    )
    limit = f"{', '.join(str(count) for count in _BOARD_COUNTS)} GPUs"
    return _wrong_count(check, message, seen, limit, "NVSwitch boards and their partitions (derived)")


def _wrong_count(check: str, message: str, seen: int, limit: str, source: str) -> Finding:
    return Finding(
        check,
        Verdict.FAIL,
        "node",
        message,
        metric="driver_gpus",
        value=seen,
        unit="GPUs",
        limit=limit,
        source=source,
        action="reseat or check cable",
    )
