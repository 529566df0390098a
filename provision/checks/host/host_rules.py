"""Rules of host_health for the system: modules, libraries, limits, PCI, CPUs, clock, GPUDirect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from provision.checks.check import CheckNode, fact
from provision.checks.judge import Finding, Measurement, Verdict, finding_on
from provision.checks.network.rdma_port import entries
from provision.checks.thresholds import limits
from provision.errors import ParseError

CONFIGURE = "fix configuration"
_GUIDE = "NCCL user guide, troubleshooting"
Rule = Callable[[str, CheckNode], list[Finding]]


def finding(
    check: str,
    verdict: Verdict,
    message: str,
    metric: str,
    value: Any = None,
    unit: str = "",
    *,
    action: str = CONFIGURE,
    limit: str = "",
    source: str = "",
    device: str = "node",
    evidence: tuple[str, ...] = (),
) -> Finding:
    """Build a finding about the host, without an action if it is no fault."""
    action = "none" if verdict in (Verdict.PASS, Verdict.SKIP) else action
    return Finding(check, verdict, device, message, metric, value, unit, limit, source, action, evidence)


def texts(node: CheckNode, name: str) -> list[str]:
    """Return a fact that is a list of texts; raise ParseError if it is anything else."""
    value = fact(node, name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ParseError(f"{name} is not a list of texts", "run the check again")
    return value


def number_of(node: CheckNode, name: str) -> int | None:
    """Return a fact that is a whole number or missing; raise ParseError if it is anything else."""
    value = fact(node, name)
    if value is not None and (
        not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64
    ):
        raise ParseError(f"{name} is not a number: {value!r:.60}", "run the check again")
    return value


def text_of(node: CheckNode, name: str) -> str | None:
    """Return a fact that is a text or missing; raise ParseError if it is anything else."""
    value = fact(node, name)
    if value is not None and (not isinstance(value, str) or not value):
        raise ParseError(f"{name} is not a text: {value!r:.60}", "run the check again")
    return value


def word_of(node: CheckNode, name: str, *known: str) -> str:
    """Return a fact that is one of `known` words; raise ParseError if it is anything else."""
    value = fact(node, name)
    if not isinstance(value, str) or value not in known:
        raise ParseError(f"{name} is {value!r:.60}, not {' or '.join(known)}", "run the check again")
    return value


def flag_of(node: CheckNode, name: str) -> bool:
    """Return a fact that is true or false; raise ParseError if it is anything else."""
    value = fact(node, name)
    if not isinstance(value, bool):
        raise ParseError(f"{name} is neither true nor false: {value!r:.60}", "run the check again")
    return value


def judge_modules(check: str, node: CheckNode) -> list[Finding]:
    """Judge whether NVIDIA's kernel module, not nouveau, drives the GPUs."""
    if flag_of(node, "module.nouveau.loaded"):
        message = "nouveau is loaded: NVIDIA's driver cannot take the GPUs"
        return [finding(check, Verdict.FAIL, message, "module", "nouveau")]
    if not flag_of(node, "module.nvidia.loaded"):
        message = "the kernel module nvidia is not loaded: no program can use the GPUs"
        return [finding(check, Verdict.FAIL, message, "module", "none")]
    return []


def judge_libraries(check: str, node: CheckNode) -> list[Finding]:
    """Judge whether the driver's libraries can be loaded."""
    broken = texts(node, "driver.broken_libraries")
    if not broken:
        return []
    message = f"libraries of the driver cannot be loaded (empty, or no library): {', '.join(broken[:3])}"
    return [finding(check, Verdict.FAIL, message, "libraries", len(broken), evidence=tuple(broken[:8]))]


def judge_memlock(check: str, node: CheckNode) -> list[Finding]:
    """Judge the limit of locked memory, which RDMA needs for its buffers, on nodes with RDMA cards."""
    if not entries(node, "hca.ports"):
        return []
    row = limits("host_limits")["memlock"]
    declared = node.variables.get("rdma_memlock")
    needed, source = (str(declared), "rdma_memlock") if declared else (str(row["limit"]), str(row["source"]))
    value = fact(node, "limits.session.memlock")
    if not isinstance(value, str):
        raise ParseError("limits.session.memlock is not a limit", "run the check again")
    enough = value in ("unlimited", needed) or (
        value.isdecimal() and needed.isdecimal() and int(value) >= int(needed)
    )
    if enough:
        return []
    message = f"a session may lock {value} KiB of memory, not {needed}: RDMA cannot register its buffers"
    return [
        finding(check, Verdict.FAIL, message, "memlock", value, "KiB", limit=f"≥ {needed}", source=source)
    ]


def judge_shm(check: str, node: CheckNode) -> list[Finding]:
    """Judge the size of /dev/shm, through which NCCL passes data between processes of a node."""
    row = limits("host_limits")["shm_bytes"]
    size, least = number_of(node, "memory.shm_bytes"), int(row["limit"])
    if size is not None and size >= least:
        return []
    message = f"shared memory (/dev/shm) has {(size or 0) // 2**20} MiB; NCCL needs {least // 2**20}"
    limit, source = f"≥ {least} bytes", str(row["source"])
    return [finding(check, Verdict.FAIL, message, "shm_bytes", size, "bytes", limit=limit, source=source)]


def judge_pci(check: str, node: CheckNode) -> list[Finding]:
    """Judge bridges and IOMMU between GPUs and cards; virtual machines depend on their host for that."""
    hypervisor = fact(node, "pci.hypervisor")
    if isinstance(hypervisor, str):
        return []
    if hypervisor is not None:
        raise ParseError(f"pci.hypervisor is {hypervisor!r:.60}", "run the check again")
    found = []
    bridges = texts(node, "pci.acs_harmful")
    if bridges:
        message = f"{len(bridges)} PCI bridges above GPUs or RDMA cards redirect peer traffic (ACS)"
        measured, source = (
            Measurement("acs", len(bridges), "bridges"),
            f"{_GUIDE}, PCI access control services",
        )
        limit, evidence = "= 0 bridges", bridges[:8]
        found.append(finding_on(check, Verdict.FAIL, measured, message, limit, source, CONFIGURE, evidence))
    state = word_of(node, "pci.iommu", "off", "passthrough", "translated", "mixed")
    if state in ("translated", "mixed"):
        message = f"the IOMMU translates what GPUs and cards address ({state}): peer traffic takes a detour"
        limit, source = "off or passthrough", f"{_GUIDE}: iommu=pt"
        found.append(finding(check, Verdict.WARN, message, "iommu", state, limit=limit, source=source))
    return found


def judge_governor(check: str, node: CheckNode) -> list[Finding]:
    """Judge the CPU frequency governor, which most virtual machines do not have."""
    governors = texts(node, "cpu.governors")
    declared = node.variables.get("host_settings_cpu_governor")
    target = declared if isinstance(declared, str) and declared else "performance"
    other = [one for one in governors if one != target]
    if not other:
        return []
    message = f"processors are governed by {', '.join(other)}, not {target}: they are slow to wake"
    source = "host_settings_cpu_governor" if declared else "NVIDIA mlnx_tune, profile of high throughput"
    return [
        finding(
            check, Verdict.WARN, message, "governor", ", ".join(governors), limit=f"= {target}", source=source
        )
    ]


def judge_clock(check: str, node: CheckNode) -> list[Finding]:
    """Judge whether the clock is synchronised, which takes some time after boot."""
    state = word_of(node, "clock.state", "synchronised", "unsynchronised", "host")
    if state != "unsynchronised":
        return []
    row = limits("host_limits")["clock_settling_s"]
    uptime = number_of(node, "clock.uptime_s")
    if uptime is not None and uptime < int(row["limit"]):
        message = f"the clock is not synchronised yet, {uptime} s after boot"
        return [finding(check, Verdict.SKIP, message, "clock", "unsynchronised")]
    message = "the clock is not synchronised: munge, Slurm and certificates will refuse this node"
    error = node.facts.get("clock.largest_error_us")
    evidence = (f"adjtimex: largest error {error} us",) if isinstance(error, int) else ()
    return [finding(check, Verdict.FAIL, message, "clock", "unsynchronised", evidence=evidence)]


def judge_gpudirect(check: str, node: CheckNode) -> list[Finding]:
    """Judge access of RDMA cards to GPU memory: DMA-BUF (open modules, kernel 5.12) or nvidia-peermem."""
    method = node.variables.get("gpudirect_rdma_method", "auto")
    if not entries(node, "hca.ports") or method == "none" or not flag_of(node, "module.nvidia.loaded"):
        return []
    peermem = flag_of(node, "module.nvidia_peermem.loaded")
    release = str(node.facts.get("kernel.release") or "")
    head = release.split("-")[0].split(".")[:2]
    new_enough = (
        len(head) == 2 and all(part.isdecimal() for part in head) and tuple(map(int, head)) >= (5, 12)
    )
    dmabuf = fact(node, "driver.flavour") == "open" and new_enough
    if peermem or (dmabuf and method != "peermem"):
        return []
    why = "nvidia_peermem is not loaded"
    if method != "peermem":
        flavour = fact(node, "driver.flavour")
        why += f", and DMA-BUF needs the open modules and kernel 5.12 ({flavour} modules, kernel {release})"
    message = f"RDMA cards cannot reach GPU memory: {why}"
    source = "NVIDIA CUDA installation guide, GPUDirect RDMA: DMA-BUF or nvidia-peermem"
    return [finding(check, Verdict.FAIL, message, "gpudirect", "none", source=source)]


RULES: tuple[Rule, ...] = (
    judge_modules,
    judge_libraries,
    judge_gpudirect,
    judge_memlock,
    judge_shm,
    judge_pci,
    judge_governor,
    judge_clock,
)
