"""What gpu_inventory makes of NVIDIA's own output, and how that compares with what a fault is to give."""

from __future__ import annotations

from provision.checks.judge import Finding
from tests.printers import nvml_values
from tests.printers.nvml_faults import Fault
from tests.printers.smi import RELEASES, NvidiaSmi
from tests.support.checks import judged, make_node

# SKU → the first branch of the driver that prints it here. A name comes from NVML, so a release also prints
# the SKUs that came after it, as far as it knows their parts: 470 knows 12 NVLinks, 535 no domain of a rack.
FIRST = {
    **{"v100-sxm2-32": 470, "t4": 470, "a10": 470, "a100-sxm-80": 470},
    **{"h100-pcie": 470, "l4": 470, "rtx-pro-6000-server": 470},
    **{"l40s": 535, "h100-sxm": 535, "h200-sxm": 535, "h20": 535},
    **{"b200": 555, "gb200": 555, "gb300": 555},
}
PAIRS = [(driver, sku) for driver in RELEASES for sku, first in FIRST.items() if int(driver[:3]) >= first]
_RANK = {"pass": 0, "skip": 0, "warn": 1, "error": 2, "fail": 3}


def loudest(findings: list[Finding]) -> tuple[str, list[Finding]]:
    """The worst verdict, and the findings that have it."""
    worst = max((finding.verdict.value for finding in findings), key=_RANK.__getitem__, default="pass")
    return (
        ("pass", []) if not _RANK[worst] else (worst, [one for one in findings if one.verdict.value == worst])
    )


def wrong(fault: Fault, findings: list[Finding]) -> str:
    """Describe how the verdict on a fault is wrong; empty if it is right."""
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


def outcome(fault: Fault, smi: NvidiaSmi, driver: str, sku: str) -> tuple[str, str] | None:
    """`right`, `refused` (an error in place of a verdict) or `wrong`, and how; None if it does not apply."""
    machine = nvml_values.machine(sku, driver)
    if not fault.applies(machine):
        return None
    fault.change(machine)
    node = make_node(machine.count, sku, machine.sku["fabric"], machine.sku["architecture"])
    findings = judged("gpu_inventory", *smi.inventory(machine), node=node)
    if not (why := wrong(fault, findings)):
        return "right", ""
    return ("refused" if loudest(findings)[0] == "error" else "wrong"), why
