"""The rules of gpu_inventory for what joins GPUs: PCIe, NVLink and the NVSwitch fabric (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from provision.checks.check import CheckNode
from provision.checks.gpu.inventory_rules import Values, all_good, limited, shared
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.thresholds import Threshold

# Wired with fewer lanes than the GPU has: AWS g4dn and g5 (telegraf's samples of both).
WIRED = {"Tesla T4": 8, "NVIDIA A10G": 8}


def _generation(check: str, values: Values, of_sku: int) -> list[Finding]:
    """The highest PCIe generation that GPU and slot allow together, which idle links show as well.

    `pcie_gen_max` is the pair's, `pcie_gen_device_max` the GPU's own (from driver 530 on); with older drivers
    that of its SKU stands in (0: unknown), and GPUs of one name are compared with each other.
    """
    allowed, own = values.get("pcie_gen_max", {}), values.get("pcie_gen_device_max", {})
    best: dict[str, int] = {}
    for device, generation in allowed.items():
        name = str(values["name"].get(device))
        # The SKU is that of most GPUs, and says nothing of another model among them.
        unknown = of_sku if len(set(values["name"].values())) == 1 else 0
        best[name] = max(best.get(name, 0), generation, own.get(device, unknown))
    slow = {d: g for d, g in allowed.items() if g < best[str(values["name"].get(d))]}
    if not slow:
        return []
    findings = []
    if len(slow) == len(allowed):
        # What all slots have at most accuses none of them; a GPU below that is one to look at.
        generation = max(slow.values())
        slow = {device: below for device, below in slow.items() if below < generation}
        own_best = max(best.values())
        words = (
            f"no slot allows more than PCIe generation {generation}, the GPUs have {own_best}: look for a "
            "limit in the firmware's settings, unless the board has no more"
        )
        limit = f"≥ {own_best}"
        found = Finding(
            check, Verdict.WARN, "node", words, "pcie_gen_max", generation, "", limit,
            "the GPUs' own maximum", "fix configuration",
        )  # fmt: skip
        findings.append(found)
    for device, generation in slow.items():
        wanted = best[str(values["name"].get(device))]
        words = f"its slot allows PCIe generation {generation}, the GPU has {wanted}"
        found = Finding(
            check, Verdict.FAIL, device, words, "pcie_gen_max", generation, "", f"≥ {wanted}",
            "the GPU's own maximum, and its peers'", "reseat or check cable",
        )  # fmt: skip
        findings.append(found)
    return findings


def judge_links(
    check: str, values: Values, thresholds: Mapping[str, Threshold], sku_generation: int = 0
) -> list[Finding]:
    """PCIe width (the present generation is low at idle and says nothing), highest generation and NVLinks.
    `sku_generation`: of PCIe, what GPUs of this SKU have; 0 when it is not known.
    """
    findings: list[Finding] = []
    width = thresholds.get(f"{check}.pcie_width")
    if width is not None and "pcie_width" in values:
        findings += limited(
            check, "PCIe width", "pcie_width", values["pcie_width"], width, "reseat or check cable"
        )
    else:
        findings += [
            Finding(
                check,
                Verdict.WARN,
                device,
                f"PCIe runs x{lanes} of x{values['pcie_width_max'][device]}",
                "pcie_width",
                lanes,
                "lanes",
                action="reseat or check cable",
            )
            for device, lanes in values.get("pcie_width", {}).items()
            if lanes < values.get("pcie_width_max", {}).get(device, 0)
            and lanes != WIRED.get(str(values["name"].get(device)))
        ]
    findings += _generation(check, values, sku_generation)
    if strangers := sorted(values.get("nvlink_links", {}).keys() - values["name"].keys()):
        words = f"nvidia-smi nvlink -s lists {', '.join(strangers)}, which nvidia-smi -q -x does not list"
        findings.append(unmeasured(check, words, action="investigate"))
    if partitioned := values.get("nvlink_mig", {}):
        words = "the driver shows no NVLinks of a GPU in MIG mode"
        findings += shared(
            [Finding(check, Verdict.SKIP, device, words, "nvlink_links") for device in partitioned],
            len(values["name"]),
        )
    for metric, what in (("nvlink_links", "active NVLinks"), ("nvlink_speed", "NVLink speed")):
        threshold = thresholds.get(f"{check}.{metric}")
        if threshold is None or "unreadable.nvlink" in values:
            continue
        measured = values.get(metric, {})
        # Of a GPU that does not answer another finding tells: its links are not known, and its peers' are.
        excused = {
            *partitioned,
            *(gpu for told in ("nvlink_unread", "unanswered", "no_handle") for gpu in values.get(told, {})),
        }
        missing = [
            device
            for device in values["name"]
            if device not in measured and device not in excused and metric == "nvlink_links"
        ]
        findings += [
            unmeasured(
                check, "nvidia-smi nvlink -s does not mention this GPU", device=d, action="investigate"
            )
            for d in missing
        ]
        # Where one is not told of, the rest may be half told as well.
        if measured and not missing and not values["name"].keys() - measured.keys() - excused:
            findings += limited(check, what, metric, measured, threshold, "reset GPU")
    return findings


def judge_fabric(check: str, node: CheckNode, values: Values) -> list[Finding]:
    """GPUs behind NVSwitches must have joined the fabric, else cuInit fails with 802 while nvidia-smi looks
    fine.
    """
    if node.gpuprov_node["gpu"].get("fabric", "none") == "none":
        return []
    if node.gpuprov_node["gpu"].get("architecture") == "ampere":
        return []  # these drivers report no fabric state before Hopper
    states, statuses = values.get("fabric_state", {}), values.get("fabric_status", {})
    findings = []
    for device in values["name"]:
        if device in values.get("unanswered", {}):
            continue  # a finding of its own
        state, status = states.get(device), statuses.get(device)
        if (state, status) == ("Completed", "Success"):
            continue
        if state is None:
            findings.append(
                unmeasured(check, "the driver reports no fabric state", device=device, action="investigate")
            )
            continue
        words = f"has not joined the NVLink fabric: state {state}, status {status or 'N/A'} (fabric manager)"
        findings.append(
            Finding(check, Verdict.FAIL, device, words, "fabric_state", state, action="fix configuration")
        )
    findings += _fabric_health(check, values, {finding.device for finding in findings})
    return shared(findings, len(values["name"])) or [
        all_good(check, "fabric_state", "every GPU has joined the NVLink fabric")
    ]


# metric → (what it reads when all is well, what it means when it does not)
_HEALTH = {
    "fabric_bandwidth": ("Full", "it has less than its bandwidth"),
    "fabric_route": ("False", "a route is unhealthy"),
    "fabric_timeout": ("False", "an access timed out"),
    "fabric_configuration": ("None", "its configuration is wrong"),
    "fabric_summary": ("Healthy", "the driver calls it unhealthy"),
}


def _fabric_health(check: str, values: Values, told: Collection[str]) -> list[Finding]:
    """What the driver says of a GPU that has joined: one finding, with the most telling of its fields."""
    findings = []
    for device in values["name"]:
        wrong = [
            (metric, str(values[metric][device]), words)
            for metric, (good, words) in _HEALTH.items()
            if values.get(metric, {}).get(device, good) != good
        ]
        if not wrong or device in told:
            continue
        metric, shown, words = wrong[0]
        action = "fix configuration" if metric == "fabric_configuration" else "reset GPU"
        said = f"joined the NVLink fabric, and {words}: {shown}"
        findings.append(Finding(check, Verdict.FAIL, device, said, metric, shown, action=action))
    return findings
