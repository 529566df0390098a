"""The host around the GPUs: system settings, PCI, memory, drives, GPUDirect RDMA and containers.

Modules and libraries, limits, PCI access control, CPUs, clock, main memory and NVMe drives are judged almost
entirely from facts. The only programs are `nvme smart-log` for each drive, and on request a container of
`gpuprov_container_image` with all GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision import foreign_json
from provision.checks.check import INSTALL, CheckNode, Command, Output, last_words
from provision.checks.host import host_basics, host_rules
from provision.checks.host.host_rules import finding, number_of
from provision.checks.judge import Finding, Measurement, Verdict, finding_on, unmeasured
from provision.checks.kernel import host_lines
from provision.checks.network.rdma_port import entries
from provision.checks.thresholds import Threshold, limits
from provision.errors import ParseError

SUMMARY = (
    "modules, libraries, limits, ACS, IOMMU, governor, clock, memory, drives, GPUDirect, services, kernel log"
)
FINDS = (
    "nouveau, broken driver libraries, memlock, /dev/shm, ACS and IOMMU, governor, clock, memory errors, "
    "NVMe drives, GPUDirect RDMA, a container with all GPUs; lines of the kernel log about processors, "
    "memory, drives, file systems, PCIe ports and network cards"
)
NEEDS: tuple[str, ...] = ()
FACTS: tuple[str, ...] = (
    *("module.nouveau.loaded", "module.nvidia.loaded", "module.nvidia_peermem.loaded"),
    *("driver.flavour", "driver.broken_libraries"),
    *("limits.session.memlock", "memory.shm_bytes", "hca.ports"),
    *("pci.hypervisor", "pci.acs_harmful", "pci.iommu", "cpu.governors"),
    *("clock.state", "clock.largest_error_us", "clock.uptime_s"),
    *("edac.controllers", "edac.modules", "nvme.drives", "container_runtime.all.installed"),
    *host_basics.FACTS,
)
ID = "host_health"

_DRIVE = re.compile(r"nvme\d{1,4}")
_LISTED = re.compile(r"^GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)", re.MULTILINE)
_GPU_LINE = re.compile(r"^GPU \d|^GP?U? ?\Z", re.MULTILINE)  # or its first letters, at the end
_CONTAINER_SECONDS = 120.0
_HINT = re.compile(r"^(?:See '.*--help'\.?|Run '.*--help' for more information)\s*$", re.MULTILINE)


def of_drives(node: CheckNode) -> list[Command]:
    """Return the commands that read the health of each NVMe drive."""
    return [
        Command(f"smart_{drive}", ("nvme", "smart-log", "-o", "json", f"/dev/{drive}"), 30.0)
        for drive in _drives(node)
    ]


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    container = of_container(node, "nvidia.com/gpu=all", "nvidia-smi", "-L")
    return [*of_drives(node), *container, *host_lines.commands()]


def of_container(node: CheckNode, devices: str, *program: str) -> list[Command]:
    """Return the command for a container of the declared image, in which `program` lists these devices."""
    image = node.variables.get("gpuprov_container_image")
    runtime = _runtime(node)
    if not isinstance(image, str) or not image or not runtime:
        return []
    flags = ("--rm", "--device", devices, image, *program)
    return [Command("container", (runtime, "run", *flags), _CONTAINER_SECONDS)]


def _drives(node: CheckNode) -> list[str]:
    rows = node.facts.get("nvme.drives")
    rows = rows if isinstance(rows, list) else []
    names = [str(row.get("drive")) for row in rows if isinstance(row, Mapping)]
    return [name for name in names if _DRIVE.fullmatch(name)]


def _runtime(node: CheckNode) -> str:
    names = node.facts.get("container_runtime.all.installed")
    return next((one for one in ("docker", "podman") if isinstance(names, list) and one in names), "")


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse the health of the drives and the number of GPUs that a container sees.

    Unreadable output leaves the measurement `unreadable.<what>` with the reason.
    """
    return parse_by(listed_by_nvidia_smi, node, outputs)


def parse_by(
    listed: Callable[[str], int], node: CheckNode, outputs: Mapping[str, Output]
) -> list[Measurement]:
    """Parse outputs like `parse`; `listed` counts GPUs in the container's output or raises ParseError."""
    measurements = [Measurement("nvme_drives", len(_drives(node)), "drives")]
    for drive in _drives(node):
        output = outputs.get(f"smart_{drive}")
        try:
            if output is None or output.not_started or output.timed_out:
                raise ParseError(_why(output), INSTALL)
            measurements += [
                Measurement(f"smart.{name}", value, "", drive) for name, value in smart_of(output).items()
            ]
        except ParseError as error:
            absent = output is not None and bool(output.not_started)
            measurements.append(Measurement("unasked" if absent else "unreadable", error.what, "", drive))
    container = outputs.get("container")
    if container is not None:
        measurements += _container(container, listed)
    measurements += host_lines.measured(outputs)
    uptime = node.facts.get("clock.uptime_s")
    if isinstance(uptime, int) and not isinstance(uptime, bool):
        measurements.append(Measurement("uptime", uptime, "s"))
    return measurements


def _why(output: Output | None) -> str:
    if output is None:
        return "nvme smart-log was not run"
    if output.not_started:
        return f"nvme smart-log did not start: {output.not_started}"
    return f"nvme smart-log did not end within {output.seconds:.0f} s"


def listed_by_nvidia_smi(text: str) -> int:
    listed = _LISTED.findall(text)
    if len(listed) != len(_GPU_LINE.findall(text)):
        raise ParseError("nvidia-smi -L lists a GPU without its UUID", "run the check again")
    return len(set(listed))


def _container(output: Output, listed: Callable[[str], int]) -> list[Measurement]:
    if output.not_started or output.timed_out or output.truncated:
        why = output.not_started or f"it did not end within {output.seconds:.0f} s"
        return [Measurement("unreadable", f"the container: {why}", "")]
    try:
        seen = listed(output.stdout)
    except ParseError as error:
        return [Measurement("unreadable", f"the container: {error.what}", "")]
    measurements = [Measurement("container_gpus", seen, "GPUs")]
    if output.rc != 0 or not seen:
        # Docker ends its errors with a hint (26.1: "See 'docker run --help'.", 28.5: "Run …"), not a reason.
        reason = replace(output, stderr=_HINT.sub("", output.stderr))
        measurements.append(Measurement("container_said", last_words(reason), ""))
    return measurements


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    return judge_by(host_rules.RULES, node, measurements, judge_container(node, measurements, node.gpu_count))


def judge_by(
    rules: Sequence[host_rules.Rule],
    node: CheckNode,
    measurements: Sequence[Measurement],
    container: Sequence[Finding],
) -> list[Finding]:
    """Judge by these rules and by the common ones for memory, drives, kernel log and container."""
    findings: list[Finding] = []
    for rule in (*rules, *host_basics.RULES, judge_memory, judge_drives):
        try:
            findings += rule(ID, node)
        except ParseError as error:
            findings.append(unmeasured(ID, f"{error.what}; {error.fix}"))
    findings += _judge_smart(measurements)
    findings += container
    findings += host_lines.judge_log(ID, node, measurements, findings)
    if not any(one.verdict in (Verdict.FAIL, Verdict.WARN, Verdict.ERROR) for one in findings):
        message = "modules, limits, PCI, processors, clock, memory and drives are as they should be"
        findings.append(finding(ID, Verdict.PASS, message, "host"))
    return findings


def _judge_smart(measurements: Sequence[Measurement]) -> list[Finding]:
    by_drive: dict[str, dict[str, int]] = {}
    findings = []
    unasked = [m for m in measurements if m.metric == "unasked"]
    for m in measurements:
        if m.metric.startswith("smart."):
            by_drive.setdefault(m.device, {})[m.metric.removeprefix("smart.")] = int(m.value)
        elif m.metric == "unreadable":
            findings.append(unmeasured(ID, str(m.value), device=m.device, action="investigate"))
    for drive, smart in by_drive.items():
        findings += judge_wear(drive, smart)
    if unasked:
        names = ", ".join(m.device for m in unasked)
        message = f"the wear of {names} is not known: {unasked[0].value} (package nvme-cli)"
        findings.append(finding(ID, Verdict.SKIP, message, "smart"))
    return findings


def judge_container(node: CheckNode, measurements: Sequence[Measurement], gpus: int) -> list[Finding]:
    """Judge whether a container, if one was requested, has all `gpus` GPUs."""
    image = node.variables.get("gpuprov_container_image")
    if not image:
        return []
    values = {m.metric: m.value for m in measurements if m.metric.startswith("container_")}
    if not _runtime(node):
        try:
            host_rules.texts(node, "container_runtime.all.installed")
        except ParseError as error:
            return [unmeasured(ID, error.what)]
        message = f"no container of {image} can be started: neither Docker nor podman is installed"
        return [finding(ID, Verdict.FAIL, message, "container_gpus")]
    seen = values.get("container_gpus")
    if seen is None:
        if any(m.metric == "unreadable" and m.device == "node" for m in measurements):
            return []  # reported already
        return [unmeasured(ID, f"no container of {image} was started")]
    printed = str(values.get("container_said", ""))
    if seen == gpus:
        if not printed:
            return []
        return [unmeasured(ID, f"a container of {image} sees all GPUs, and failed: {printed}")]
    message = f"a container of {image} sees {seen} of {gpus} GPUs"
    measured, limit = Measurement("container_gpus", seen, "GPUs"), f"= {gpus} GPUs"
    message, evidence = (f"{message}: {printed}", (printed,)) if printed else (message, ())
    return [
        finding_on(ID, Verdict.FAIL, measured, message, limit, action=host_rules.CONFIGURE, evidence=evidence)
    ]


# --- rules for parts that wear: main memory and NVMe drives


# NVM Express base specification, SMART / Health Information log, Critical Warning: bit → meaning.
_WARNINGS = (
    "spare space is below its threshold",
    "temperature is beyond a threshold",
    "reliability is degraded",
    "it is read-only",
    "its volatile memory backup has failed",
    "its persistent memory region is unreliable",
)


def judge_memory(check: str, node: CheckNode) -> list[Finding]:
    """Judge errors of memory modules, or of their controller if the module is unknown."""
    controllers, modules = entries(node, "edac.controllers"), entries(node, "edac.modules")
    days = max(1.0, (number_of(node, "clock.uptime_s") or 0) / 86400)
    per_day = limits("host_limits")["memory_corrected_per_day"]
    findings = []
    for device, corrected, uncorrected in _counted(controllers, modules):
        if uncorrected:
            source = str(limits("host_limits")["memory_uncorrected"]["source"])
            message = f"{device} has {uncorrected} uncorrected memory errors"
            measured = Measurement("memory_uncorrected", uncorrected, "errors", device)
            findings.append(
                finding_on(check, Verdict.FAIL, measured, message, "= 0 errors", source, "replace part")
            )
            continue
        for level, verdict, action in (
            ("fail", Verdict.FAIL, "replace part"),
            ("warn", Verdict.WARN, "watch"),
        ):
            limit = float(per_day[level]["limit"])
            if corrected / days >= limit:
                message = f"{device} has {corrected} corrected memory errors in {days:.0f} days"
                measured = Measurement("memory_corrected", corrected, "errors", device)
                source = str(per_day[level]["source"])
                findings.append(
                    finding_on(check, verdict, measured, message, f"< {limit:g} a day", source, action)
                )
                break
    return findings


def _counted(
    controllers: Sequence[Mapping[str, Any]], modules: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int, int]]:
    """Return (device, corrected, uncorrected) of each module, and of each controller beyond its modules."""
    counts = []
    by_controller: dict[str, tuple[int, int]] = {}
    for row in modules:
        corrected, uncorrected = _count(row, "corrected"), _count(row, "uncorrected")
        controller = str(row.get("controller"))
        label = str(row.get("label") or row.get("module"))
        counts.append((f"{controller}/{row.get('module')} ({label})", corrected, uncorrected))
        before = by_controller.get(controller, (0, 0))
        by_controller[controller] = before[0] + corrected, before[1] + uncorrected
    for row in controllers:
        name = str(row.get("controller"))
        counted = by_controller.get(name, (0, 0))
        rest = max(0, _count(row, "corrected") - counted[0]), max(0, _count(row, "uncorrected") - counted[1])
        counts.append((name, *rest))
    return counts


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise ParseError(f"a memory error counter is not a number: {value!r:.60}", "run the check again")
    return value


def judge_drives(check: str, node: CheckNode) -> list[Finding]:
    """Judge whether all declared NVMe drives exist and are live."""
    drives = entries(node, "nvme.drives")
    if not all(isinstance(row.get("drive"), str) for row in drives):
        raise ParseError("nvme.drives: an entry without drive", "run the check again")
    expected = node.variables.get("gpuprov_expected_nvmes")
    findings = []
    if isinstance(expected, int) and not isinstance(expected, bool) and len(drives) < expected:
        message = f"{len(drives)} of {expected} NVMe drives"
        there = ", ".join(str(row.get("drive")) for row in drives) or "none"
        measured, limit = Measurement("nvme_drives", len(drives), "drives"), f"≥ {expected} drives"
        source, action = "gpuprov_expected_nvmes", "reseat or check cable"
        evidence = (f"there: {there}",)
        findings.append(finding_on(check, Verdict.FAIL, measured, message, limit, source, action, evidence))
    for row in drives:
        if row.get("state") not in ("live", None):
            device = str(row.get("drive"))
            message = f"{device} is {row.get('state')}, not live"
            measured = Measurement("nvme_state", str(row.get("state")), "", device)
            findings.append(finding_on(check, Verdict.FAIL, measured, message, action="replace part"))
    return findings


def _cause(output: Output) -> str:
    """Return the reason of nvme-cli's failure.

    With `-o json`, 2.13 prints `{"error": text}` on standard output and its usage on standard error."""
    try:
        document = foreign_json.read(output.stdout, unique=True)
    except foreign_json.JsonError:
        return last_words(output)
    error = document.get("error") if isinstance(document, dict) else None
    return error.strip()[:200] if isinstance(error, str) and error.strip() else last_words(output)


def smart_of(output: Output) -> dict[str, int]:
    """Parse the numbers of `nvme smart-log -o json`; raise ParseError on anything else."""
    if output.rc != 0 or output.truncated:
        raise ParseError(f"nvme smart-log failed: {_cause(output)}", "look at the drive: nvme smart-log")
    try:
        document = foreign_json.read(output.stdout, unique=True)
    except foreign_json.JsonError as error:
        raise ParseError(f"nvme smart-log did not print JSON: {error}", "run the check again") from error
    if not isinstance(document, dict):
        raise ParseError("nvme smart-log printed no object", "run the check again")
    numbers = {}
    for name in ("critical_warning", "percent_used", "avail_spare", "spare_thresh", "media_errors"):
        value = document.get(name, document.get("percentage_used") if name == "percent_used" else None)
        if isinstance(value, dict):  # nvme-cli 2 with details
            value = value.get("value")
        if isinstance(value, str) and value.isdecimal() and len(value) < 40:  # 128 bits, as text
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ParseError(f"nvme smart-log: {name} is {value!r:.60}", "an nvme-cli of another format?")
        numbers[name] = value
    return numbers


def judge_wear(drive: str, smart: Mapping[str, int]) -> list[Finding]:
    """Judge the health that a drive reports."""
    bits = [words for bit, words in enumerate(_WARNINGS) if smart["critical_warning"] >> bit & 1]
    used = limits("host_limits")["nvme_percent_used"]
    evidence = (", ".join(f"{name} {value}" for name, value in smart.items()),)

    def worn(
        verdict: Verdict,
        metric: str,
        name: str,
        unit: str,
        said: str,
        action: str,
        limit: str = "",
        by: str = "",
    ) -> Finding:
        measured = Measurement(metric, smart[name], unit, drive)
        return finding_on(ID, verdict, measured, f"{drive} {said}", limit, by, action, evidence)

    if smart["critical_warning"]:
        said = f"warns: {'; '.join(bits) or 'of something unknown'}"
        action = "investigate" if smart["critical_warning"] == 2 else "replace part"  # 2: only too hot
        return [worn(Verdict.FAIL, "nvme_critical_warning", "critical_warning", "", said, action)]
    if smart["avail_spare"] < smart["spare_thresh"]:
        said = f"has {smart['avail_spare']} % spare space, below its own {smart['spare_thresh']} %"
        return [worn(Verdict.FAIL, "nvme_spare", "avail_spare", "%", said, "replace part")]
    findings = []
    if smart["percent_used"] >= int(used["limit"]):
        said, limit = f"has used {smart['percent_used']} % of its promised life", f"< {used['limit']} %"
        by = str(used["source"])
        findings.append(worn(Verdict.WARN, "nvme_used", "percent_used", "%", said, "replace part", limit, by))
    if smart["media_errors"]:
        said = f"could not read back written data {smart['media_errors']} times"
        findings.append(worn(Verdict.WARN, "nvme_media_errors", "media_errors", "errors", said, "watch"))
    return findings
