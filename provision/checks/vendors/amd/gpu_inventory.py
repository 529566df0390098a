"""gpu_inventory of AMD's GPUs: the GPUs of the node, and whether the driver calls them healthy.

Reads sysfs (the facts amdgpu.*), which needs no program, and amd-smi, which knows sensors and limits; changes
nothing. Values that both have are taken from sysfs, which can be read while a program hangs.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.gpu import gpu_inventory
from provision.checks.gpu.inventory_links import judge_links, judge_settings
from provision.checks.gpu.inventory_rules import ID as ID
from provision.checks.gpu.inventory_rules import Values, all_good, judge_flags, judge_models, shared
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.kernel import host_lines, kernel_incidents, kernel_log
from provision.checks.thresholds import Threshold, limits
from provision.checks.vendors.amd import bad_pages, devices, rules, sensors, smi
from provision.errors import ParseError
from provision.node.observe.amd_smi import STATIC

SUMMARY = "count, model, memory, error counters, bad pages, PCIe, xGMI links, throttling, heat, kernel log"
NEEDS: tuple[str, ...] = ("amd-smi",)
FACTS: tuple[str, ...] = (*devices.FACTS, "amdgpu.blacklisted")

# No duration for eight GPUs is published; a stuck driver never answers.
_DEADLINE = 40.0
_ASKED = {
    "static": STATIC,
    "metric": ("metric", "--json"),
    "xgmi": ("xgmi", "-l", "--json"),
    "process": ("process", "--json"),
    "later": ("metric", "--pcie", "--json"),
}


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    result = host_lines.commands()
    if node.facts.get("amdgpu.loaded_version", "") is None:
        return result  # without the driver, amd-smi would only waste time
    queries = ((f"amd_smi_{name}", argv) for name, argv in _asked(node).items())
    return [*result, *(Command(name, ("amd-smi", *argv), _DEADLINE) for name, argv in queries)]


def _asked(node: CheckNode) -> dict[str, tuple[str, ...]]:
    """Return name → arguments of amd-smi, without link states on MI200, where some releases crash."""
    old = node.gpuprov_node["gpu"].get("architecture") == "cdna2"
    return {name: argv for name, argv in _ASKED.items() if name != "xgmi" or not old}


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse each source separately; a failed one leaves `unreadable.<source>` with its reason."""
    gpus = kernel_incidents.devices(node)
    rows = [Measurement("on_bus", True, "", device) for device in gpus.values()]
    rows += _kernel(outputs, gpus)
    try:
        version = devices.loaded(node)
        if version is None:
            return [*rows, Measurement("driver", "not loaded", "")]
        rows.append(Measurement("driver_version", version[:80], ""))
        rows += devices.measured(devices.entries(node), gpus)
    except ParseError as error:
        rows.append(Measurement("unreadable.amdgpu", f"{error.what}; {error.fix}", ""))
    rows += _amd_smi(_asked(node), outputs, gpus)
    return _named(node, rows, gpus)


def _kernel(outputs: Mapping[str, Output], gpus: Mapping[str, str]) -> list[Measurement]:
    events, error = kernel_log.read(outputs.get("journal"), outputs.get("dmesg"))
    read = (
        Measurement("unreadable.kernel_log", f"{error.what}; {error.fix}", "")
        if error
        else Measurement("kernel_log", "read", "")
    )
    return [read, *kernel_incidents.measured(kernel_incidents.named(events, gpus))]


def _amd_smi(
    asked: Iterable[str], outputs: Mapping[str, Output], gpus: Mapping[str, str]
) -> Iterator[Measurement]:
    rows: dict[str, Sequence[smi.Entry]] = {}
    for name in asked:
        output = outputs.get(f"amd_smi_{name}")
        try:
            if output is None:
                raise ParseError(f"the output of amd-smi {name} is missing", "run the check again")
            rows[name] = smi.entries(output)
        except smi.OlderError as error:
            yield Measurement(f"unasked.amd_smi_{name}", error.what, "")
        except ParseError as error:
            yield Measurement(f"unreadable.amd_smi_{name}", f"{error.what}; {error.fix}", "")
    try:
        by_number = sensors.by_device(rows["static"], gpus)
    except KeyError:
        return  # only `static` has addresses
    except ParseError as error:
        yield Measurement("unreadable.amd_smi_static", f"{error.what}; {error.fix}", "")
        return
    readers: Mapping[str, Callable[[Sequence[smi.Entry], Mapping[int, str]], Iterator[Measurement]]] = {
        "static": sensors.of_static,
        "metric": sensors.of_metric,
        "xgmi": sensors.of_links,
        "process": sensors.of_processes,
        "later": functools.partial(sensors.of_replays, rows.get("metric", ())),
    }
    for name in rows:
        try:
            yield from list(readers[name](rows[name], by_number))
        except ParseError as error:
            yield Measurement(f"unreadable.amd_smi_{name}", f"{error.what}; {error.fix}", "")


def _named(node: CheckNode, found: list[Measurement], gpus: Mapping[str, str]) -> list[Measurement]:
    """Add count, addresses and names of GPUs that answer; without amd-smi, names come from PCI ids."""
    values = _by_metric(found)
    silent = {*values.get("untaken", {}), *rules.lost(values)}
    answering = {address: device for address, device in gpus.items() if device not in silent}
    product = next(iter(node.gpuprov_node["gpu"].get("product_names", ())), "AMD GPU")
    names = [
        Measurement("name", product, "", device)
        for device in answering.values()
        if device not in values.get("name", {})
    ]
    return [
        *found,
        *names,
        Measurement("driver_gpus", len(answering), "GPUs"),
        *(Measurement("pci_address", address, "", device) for address, device in answering.items()),
    ]


def _by_metric(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    for one in measurements:
        values[one.metric][one.device] = one.value
    return values


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    values = _by_metric(measurements)
    findings = _readability(values, bool(node.facts.get("amdgpu.blacklisted")))
    if "driver_gpus" in values:
        on_bus = len(values["on_bus"])
        findings += rules.judge_board(node, node.gpu_count) or gpu_inventory.judge_counts(node, values)
        findings += rules.judge_taken(values, on_bus)
        findings += rules.judge_absent(values)
        findings += judge_models(node, _whole(values), thresholds)
        findings += _health(node, values)
        findings += judge_links(values, thresholds, 0)
        findings += rules.judge_speed(values) + rules.judge_replays(values)
        findings += rules.judge_fatal(values)
        findings += rules.judge_xgmi(node, values)
        findings += judge_settings(rules.declared(node), rules.at_rest(values))
        findings += rules.judge_memory_heat(values) + rules.judge_partitions(values)
        findings += rules.judge_leftovers(_whole(values))
    return findings + gpu_inventory.judge_events(node, values, findings)


def _whole(values: Values) -> dict[str, Mapping[str, Any]]:
    """Return the values without the memory of partitioned GPUs, which the driver splits or repeats."""
    parts = values.get("partition", {})
    sizes = {d: size for d, size in values.get("memory_total", {}).items() if d not in parts}
    return {**values, "memory_total": sizes}


def _health(node: CheckNode, values: Values) -> list[Finding]:
    """Judge error counters, pages and clocks: the ECC flag by common rules, counters by AMD's."""
    without = {**values, "ecc_uncorrectable": {}, "throttle": {}}
    flags = [one for one in judge_flags(without) if one.verdict is not Verdict.PASS]
    findings = (
        flags + rules.judge_errors(values) + bad_pages.judge_pages(values) + rules.judge_throttle(values)
    )
    if not findings and values.get("ecc_uncorrectable"):
        findings.append(all_good("ecc_uncorrectable", "error counters, memory pages and clocks are in order"))
    return findings + _units(node, values)


def _units(node: CheckNode, values: Values) -> list[Finding]:
    """Judge compute units against the GPU's peers and the product's data sheet."""
    units = {
        d: int(n) for d, n in values.get("compute_units", {}).items() if d not in values.get("partition", {})
    }
    product = int(limits(f"skus/{node.sku}").get("compute_units", 0)) if node.sku else 0
    expected = max([product, *units.values()], default=0)
    findings = [
        Finding(
            ID, Verdict.FAIL, device, f"has {count} compute units, not {expected}", "compute_units", count,
            "units", f"= {expected} units", "the product's data sheet, or its peers", "replace part",
        )
        for device, count in units.items() if count < expected
    ]  # fmt: skip
    return shared(findings, len(values["on_bus"]))


def _readability(values: Values, blacklisted: bool) -> list[Finding]:
    """Report unreadable sources as errors, each reason once.

    `blacklisted`: the kernel's command line keeps the driver from being loaded."""
    findings: list[Finding] = []
    if "driver" in values:
        why, fix = "is not loaded", "gpuprov up, then reboot"
        if blacklisted:  # AMD's acceptance guide requires it for MI325X, MI350X and MI355X
            why, fix = (
                "is kept from loading by modprobe.blacklist on the kernel command line",
                "run modprobe amdgpu",
            )
        message = f"the driver amdgpu {why}: of the GPUs nothing can be measured; {fix}"
        return [unmeasured(ID, message, action="fix configuration")]
    reasons: set[str] = set()
    for metric, by_device in values.items():
        reason = str(by_device.get("node", ""))
        if metric.startswith("unreadable.") and reason not in reasons:
            reasons.add(reason)
            action = "fix configuration" if "did not start" in reason else "investigate"
            findings.append(unmeasured(ID, reason, action=action))
        elif metric.startswith("unasked."):
            findings.append(Finding(ID, Verdict.SKIP, "node", f"not measured: {reason}", metric))
    return findings
