"""Outcomes of gpu_inventory and the health program on NVIDIA's own output, against expected ones."""

from __future__ import annotations

from functools import cache

from gpuprov_lab.silicon.nvidia_smi.nvml_values import Machine
from provision.checks.check import Raw
from provision.checks.judge import Finding
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.desired import stack
from tests.printers import in_service, nvml_values
from tests.printers.in_service import CHECK, Printed
from tests.printers.nvml_faults import NOTHING, Fault
from tests.printers.nvml_values import address
from tests.printers.smi import RELEASES, NvidiaSmi

# SKU → the first driver branch with it here. A name comes from NVML, so a release also prints later SKUs, as
# far as it knows their parts: 470 knows 12 NVLinks, 535 no rack-level domain.
FIRST = {
    **{"v100-sxm2-32": 470, "t4": 470, "a10": 470, "a100-sxm-80": 470},
    **{"h100-pcie": 470, "l4": 470, "rtx-pro-6000-server": 470},
    **{"l40s": 535, "h100-sxm": 535, "h200-sxm": 535, "h20": 535},
    **{"b200": 555, "gb200": 555, "gb300": 555},
}
PAIRS = [(driver, sku) for driver in RELEASES for sku, first in FIRST.items() if int(driver[:3]) >= first]
_LAST = 3  # the GPU that has the fault
_RANK = {"pass": 0, "skip": 0, "warn": 1, "error": 2, "fail": 3}


def loudest(findings: list[Finding]) -> tuple[str, list[Finding]]:
    """Return the worst verdict and its findings."""
    worst = max((finding.verdict.value for finding in findings), key=_RANK.__getitem__, default="pass")
    return (
        ("pass", []) if not _RANK[worst] else (worst, [one for one in findings if one.verdict.value == worst])
    )


def wrong(fault: Fault, findings: list[Finding]) -> str:
    """Describe the error in the verdict on a fault; empty if the verdict is right."""
    verdict, loud = loudest(findings)
    said = "; ".join(
        f"{one.verdict.value} {one.device} {one.metric} [{one.action}] {one.message}"[:200]
        for one in loud[:2]
    )
    if verdict not in fault.verdicts:
        return f"{fault.name}: {verdict}, not {' or '.join(fault.verdicts)}: {said}"
    if verdict == "pass":
        return ""
    if fault.device and fault.device not in {one.device for one in loud}:
        return f"{fault.name}: does not name {fault.device}: {said}"
    if fault.actions and not {one.action for one in loud} & set(fault.actions):
        return f"{fault.name}: asks for none of {', '.join(fault.actions)}: {said}"
    return ""


def printed(smi: NvidiaSmi, machine: Machine) -> Printed:
    """Run gpu_inventory on a machine and return the judged result."""
    node = node_of(machine)
    return Printed.of(node, Raw(node.node, CHECK, smi.inventory(machine)))


def outcome(fault: Fault, smi: NvidiaSmi, driver: str, sku: str) -> tuple[str, str] | None:
    """Return None if the fault does not apply, else `right`, `refused` (an error) or `wrong`, and why."""
    machine = nvml_values.machine(sku, driver)
    if not fault.applies(machine):
        return None
    if sku not in smi.healthy:
        smi.healthy[sku] = printed(smi, machine)
    fault.change(machine)
    found = printed(smi, machine) if fault.name != NOTHING else smi.healthy[sku]
    findings = found.findings
    if why := wrong(fault, findings):
        return ("refused" if loudest(findings)[0] == "error" else "wrong"), why
    gone = None if fault.doubtful or fault.refused else f"gpu{_LAST}" if fault.gone else ""
    if why := "; ".join(in_service.wrong(smi.healthy[sku], found, fault.verdicts, gone)):
        return "wrong", f"{fault.name}: in service: {why}"
    return "right", ""


def node_of(machine: Machine) -> NodeFacts:
    """Return the node as the observers see it without nvidia-smi."""
    return _node(machine.count, machine.driver, machine.sku["pci_ids"][0], machine.sku["fabric"])


@cache
def _node(count: int, driver: str, pci_id: str, fabric: str) -> NodeFacts:
    pci = [{"address": address(index), "device_id": pci_id} for index in range(count)]
    known = {
        **{"os.id": "debian", "os.version_id": "13", "os.codename": "trixie", "os.family": "debian"},
        **{"os.arch": "x86_64", "kernel.release": "6.12.0", "gpu.count": count, "gpu.pci": pci},
        "gpu.nvswitch_count": 4 if fabric == "nvswitch" else 0,
        "driver.loaded_version": driver,
    }
    return node_facts_of("gpu-01", known, {}, stack.describe_node(known), {})
