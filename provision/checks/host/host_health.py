"""The machine around the GPUs: modules and libraries, limits, PCI access control, processors, clock, main
memory, NVMe drives, GPUDirect RDMA; and a container with all GPUs, when one is asked for.

Nearly all from facts. Programs run only where there is something to ask: `nvme smart-log` for each drive, a
container of `gpuprov_container_image`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output, last_words
from provision.checks.host import host_rules, storage_rules
from provision.checks.host.host_rules import finding
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "modules, libraries, memlock, /dev/shm, ACS, IOMMU, governor, clock, memory errors, NVMe, GPUDirect"
NEEDS: tuple[str, ...] = ()
FACTS: tuple[str, ...] = (
    *("module.nouveau.loaded", "module.nvidia.loaded", "module.nvidia_peermem.loaded"),
    *("driver.flavour", "driver.broken_libraries"),
    *("limits.session.memlock", "memory.shm_bytes", "hca.ports"),
    *("pci.hypervisor", "pci.acs_harmful", "pci.iommu", "cpu.governors"),
    *("clock.state", "clock.largest_error_us", "clock.uptime_s"),
    *("edac.controllers", "edac.modules", "nvme.drives", "container_runtime.all.installed"),
)

ID = "host_health"

_DRIVE = re.compile(r"nvme\d{1,4}")
_LISTED = re.compile(r"^GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)", re.MULTILINE)
_GPU_LINE = re.compile(r"^GPU \d|^GP?U? ?\Z", re.MULTILINE)  # or its first letters, at the end
_CONTAINER_SECONDS = 120.0
_HINT = re.compile(r"^See '.*--help'\.?\s*$", re.MULTILINE)


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    found = [
        Command(f"smart_{drive}", ("nvme", "smart-log", "-o", "json", f"/dev/{drive}"), 30.0)
        for drive in _drives(node)
    ]
    image = node.variables.get("gpuprov_container_image")
    runtime = _runtime(node)
    if isinstance(image, str) and image and runtime:
        flags = ("--rm", "--device", "nvidia.com/gpu=all", image, "nvidia-smi", "-L")
        found.append(Command("container", (runtime, "run", *flags), _CONTAINER_SECONDS))
    return found


def _drives(node: CheckNode) -> list[str]:
    rows = node.facts.get("nvme.drives")
    names = (
        [str(row.get("drive")) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    )
    return [name for name in names if _DRIVE.fullmatch(name)]


def _runtime(node: CheckNode) -> str:
    installed = node.facts.get("container_runtime.all.installed")
    names = installed if isinstance(installed, list) else []
    return next((name for name in ("docker", "podman") if name in names), "")


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """What was asked of programs: the drives' own numbers, and the GPUs a container sees.

    What could not be read leaves the measurement `unreadable.<what>` with its reason.
    """
    found = [Measurement("nvme_drives", len(_drives(node)), "drives")]
    for drive in _drives(node):
        output = outputs.get(f"smart_{drive}")
        try:
            if output is None or output.not_started or output.timed_out:
                raise ParseError(_why(output), "gpuprov up installs what checks need")
            found += [
                Measurement(f"smart.{name}", value, "", drive)
                for name, value in storage_rules.smart_of(output).items()
            ]
        except ParseError as error:
            absent = output is not None and bool(output.not_started)
            found.append(Measurement("unasked" if absent else "unreadable", error.what, "", drive))
    container = outputs.get("container")
    if container is not None:
        found += _container(container)
    uptime = node.facts.get("clock.uptime_s")
    if isinstance(uptime, int) and not isinstance(uptime, bool):
        found.append(Measurement("uptime", uptime, "s"))
    return found


def _why(output: Output | None) -> str:
    if output is None:
        return "nvme smart-log was not run"
    if output.not_started:
        return f"nvme smart-log did not start: {output.not_started}"
    return f"nvme smart-log did not end within {output.seconds:.0f} s"


def _container(output: Output) -> list[Measurement]:
    if output.not_started or output.timed_out or output.truncated:
        why = output.not_started or f"it did not end within {output.seconds:.0f} s"
        return [Measurement("unreadable", f"the container: {why}", "")]
    listed = _LISTED.findall(output.stdout)
    if len(listed) != len(_GPU_LINE.findall(output.stdout)):
        return [Measurement("unreadable", "the container: nvidia-smi -L lists a GPU without its UUID", "")]
    seen = len(set(listed))
    found = [Measurement("container_gpus", seen, "GPUs")]
    if output.rc != 0 or not seen:
        # Docker ends its own errors with a hint (26.1: "See 'docker run --help'."), which is no reason.
        reason = replace(output, stderr=_HINT.sub("", output.stderr))
        found.append(Measurement("container_said", last_words(reason), ""))
    return found


def judge(
    node: CheckNode,
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],  # noqa: ARG001 - the contract
) -> list[Finding]:
    findings: list[Finding] = []
    for rule in (*host_rules.RULES, storage_rules.judge_memory, storage_rules.judge_drives):
        try:
            findings += rule(ID, node)
        except ParseError as error:
            findings.append(unmeasured(ID, f"{error.what}; {error.fix}"))
    findings += _judge_smart(measurements)
    findings += _judge_container(node, measurements)
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
        findings += storage_rules.judge_wear(ID, drive, smart)
    if unasked:
        names = ", ".join(m.device for m in unasked)
        message = f"the wear of {names} is not known: {unasked[0].value} (package nvme-cli)"
        findings.append(finding(ID, Verdict.SKIP, message, "smart"))
    return findings


def _judge_container(node: CheckNode, measurements: Sequence[Measurement]) -> list[Finding]:
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
            return []  # said already
        return [unmeasured(ID, f"no container of {image} was started")]
    said = str(values.get("container_said", ""))
    if seen == node.gpu_count:
        if not said:
            return []
        return [unmeasured(ID, f"a container of {image} sees all GPUs, and failed: {said}")]
    message = f"a container of {image} sees {seen} of {node.gpu_count} GPUs"
    return [
        finding(
            ID,
            Verdict.FAIL,
            f"{message}: {said}" if said else message,
            "container_gpus",
            seen,
            "GPUs",
            limit=f"= {node.gpu_count} GPUs",
            evidence=(said,) if said else (),
        )
    ]
