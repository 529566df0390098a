"""Rules of gpu_inventory for PCIe, NVLinks and the settings of GPUs (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from provision.checks.check import CheckNode
from provision.checks.gpu.inventory_rules import ID, Values, limited, shared
from provision.checks.judge import Finding, Verdict, hotter, unmeasured
from provision.checks.thresholds import Threshold

# Wired with fewer lanes than the GPU has: AWS g4dn and g5 (telegraf's samples of both).
WIRED = {"Tesla T4": 8, "NVIDIA A10G": 8}


def _generation(values: Values, of_sku: int) -> list[Finding]:
    """Judge the highest PCIe generation that GPU and slot support together, which idle links show too.

    `pcie_gen_max` is the pair's, `pcie_gen_device_max` the GPU's own (since driver 530); for older drivers
    the SKU's generation is used (0: unknown), and GPUs of one name are compared with each other.
    """
    allowed, own = values.get("pcie_gen_max", {}), values.get("pcie_gen_device_max", {})
    best: dict[str, int] = {}
    for device, generation in allowed.items():
        name = str(values["name"].get(device))
        # The SKU is that of most GPUs and does not apply to other models among them.
        unknown = of_sku if len(set(values["name"].values())) == 1 else 0
        best[name] = max(best.get(name, 0), generation, own.get(device, unknown))
    slow = {d: g for d, g in allowed.items() if g < best[str(values["name"].get(d))]}
    if not slow:
        return []
    findings = []
    if len(slow) == len(allowed):
        # The highest generation of all slots blames none of them; a GPU below it is suspicious.
        generation = max(slow.values())
        slow = {device: below for device, below in slow.items() if below < generation}
        own_best = max(best.values())
        words = (
            f"no slot allows more than PCIe generation {generation}, the GPUs have {own_best}: look for a "
            "limit in the firmware's settings, unless the board has no more"
        )
        limit = f"≥ {own_best}"
        finding = Finding(
            ID, Verdict.WARN, "node", words, "pcie_gen_max", generation, "", limit,
            "the GPUs' own maximum", "fix configuration",
        )  # fmt: skip
        findings.append(finding)
    for device, generation in slow.items():
        expected = best[str(values["name"].get(device))]
        words = f"its slot allows PCIe generation {generation}, the GPU has {expected}"
        finding = Finding(
            ID, Verdict.FAIL, device, words, "pcie_gen_max", generation, "", f"≥ {expected}",
            "the GPU's own maximum, and its peers'", "reseat or check cable",
        )  # fmt: skip
        findings.append(finding)
    return findings


def judge_links(
    values: Values, thresholds: Mapping[str, Threshold], sku_generation: int = 0, *, nvlink_off: bool = False
) -> list[Finding]:
    """Judge PCIe width, highest PCIe generation (the current one is low at idle) and NVLinks.

    `sku_generation`: PCIe generation of the SKU, 0 if unknown. `nvlink_off`: disabled in the driver.
    """
    findings: list[Finding] = []
    width = thresholds.get(f"{ID}.pcie_width")
    if width is not None and "pcie_width" in values:
        findings += limited("PCIe width", "pcie_width", values["pcie_width"], width, "reseat or check cable")
    else:
        findings += [
            Finding(
                ID,
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
    findings += _generation(values, sku_generation)
    if unlisted := sorted(values.get("nvlink_links", {}).keys() - values["name"].keys()):
        words = f"nvidia-smi nvlink -s lists {', '.join(unlisted)}, which nvidia-smi -q -x does not list"
        findings.append(unmeasured(ID, words, action="investigate"))
    if partitioned := values.get("nvlink_mig", {}):
        words = "the driver shows no NVLinks of a GPU in MIG mode"
        findings += shared(
            [Finding(ID, Verdict.SKIP, device, words, "nvlink_links") for device in partitioned],
            len(values["name"]),
        )
    if nvlink_off and f"{ID}.nvlink_links" in thresholds and not any(values.get("nvlink_links", {}).values()):
        return [*findings, _switched_off(len(values["name"]))]
    for metric, what in (("nvlink_links", "active NVLinks"), ("nvlink_speed", "NVLink speed")):
        threshold = thresholds.get(f"{ID}.{metric}")
        if threshold is None or "unreadable.nvlink" in values:
            continue
        measured = values.get(metric, {})
        # A GPU that does not respond has its own finding: its links are unknown, but its peers' are known.
        # A GPU with all links down has no speed.
        excused = {
            *partitioned,
            *(gpu for gpu, active in values.get("nvlink_links", {}).items() if not active),
            *(gpu for told in ("nvlink_unread", "unanswered", "no_handle") for gpu in values.get(told, {})),
        }
        missing = [
            device
            for device in values["name"]
            if device not in measured and device not in excused and metric == "nvlink_links"
        ]
        findings += [
            unmeasured(ID, "nvidia-smi nvlink -s does not mention this GPU", device=d, action="investigate")
            for d in missing
        ]
        # If one GPU is missing, the others may be incomplete as well.
        if measured and not missing and not values["name"].keys() - measured.keys() - excused:
            findings += limited(what, metric, measured, threshold, "reset GPU")
    if f"{ID}.nvlink_links" not in thresholds:
        links, names = values.get("nvlink_links", {}), values["name"]
        for product in dict.fromkeys(names.values()):
            findings += _fewer_links({d: int(n) for d, n in links.items() if names.get(d) == product})
    return findings


def _fewer_links(links: Mapping[str, Any]) -> list[Finding]:
    """Fail GPUs with fewer active links than the others, for a product without a limit.

    Cards may have no bridge: a card without any link fails only if most have links.
    """
    most = max(links.values(), default=0)
    usual = sum(count == most for count in links.values()) * 2 > len(links)
    return [
        Finding(
            ID, Verdict.FAIL, device, f"{count} NVLinks are active, of its peers up to {most}",
            "nvlink_links", count, "links", action="reset GPU",
        )
        for device, count in links.items()
        if count < most and (count or usual)
    ]  # fmt: skip


def _switched_off(gpus: int) -> Finding:
    """Judge disabled NVLinks, which are normal for one GPU of a virtual machine but isolate several."""
    words = "NVLink is switched off by the driver's option NVreg_NvLinkDisable=1"
    if gpus > 1:
        return Finding(
            ID, Verdict.FAIL, "node", f"{words}: the {gpus} GPUs reach each other over PCIe alone",
            "nvlink_links", 0, "links", action="fix configuration",
        )  # fmt: skip
    return Finding(
        ID, Verdict.SKIP, "node", f"{words}, as usual for a virtual machine of one GPU", "nvlink_links"
    )


# --- settings of the GPUs, processes on them and their response. A setting is compared with its declared
# value, else with the other GPUs: a site's choice for all of them is no fault.


_PEERS = 3  # other GPUs needed for a comparison

# The driver waits 6 s for its firmware (GSP) before it logs Xid 119. With the driver kept loaded, an answer
# that takes that long and a second more per GPU has waited for one that did not come.
_GSP_SECONDS = 6.0
_SECONDS_PER_GPU = 1.0

# metric → (the variable that declares it, declared value → value as nvidia-smi prints it)
_MODES: dict[str, tuple[str, dict[Any, str]]] = {
    "persistence": ("nvidia_driver_persistence", {True: "Enabled", False: "Disabled"}),
    "compute_mode": (
        "gpu_settings_compute_mode",
        {"default": "Default", "exclusive_process": "Exclusive_Process", "prohibited": "Prohibited"},
    ),
    "ecc_mode": ("gpu_settings_ecc", {"enabled": "Enabled", "disabled": "Disabled"}),
}


def judge_settings(node: CheckNode, values: Values) -> list[Finding]:
    """Judge modes, power limits, firmware, foreign processes, idle temperature and nvidia-smi's duration."""
    gpus = len(values["name"])
    findings = _modes(node, values, gpus) + _mig(node, values) + _power(node, values, gpus)
    findings += _vbios(values)
    return findings + _processes(values) + _heat(values) + _latency(values, gpus)


def _default_of(node: CheckNode, variable: str) -> Any:
    """Return an undeclared variable's default: a driver that the role manages is kept loaded."""
    declares = any(name.startswith("nvidia_driver_") for name in node.variables)
    declares = declares and node.variables.get("nvidia_driver_enabled", True) is not False
    return True if variable == "nvidia_driver_persistence" and declares else ""


def _modes(node: CheckNode, values: Values, gpus: int) -> list[Finding]:
    findings = []
    for metric, (variable, words) in _MODES.items():
        actual = {device: str(mode) for device, mode in values.get(metric, {}).items()}
        declared = words.get(node.variables.get(variable, _default_of(node, variable)))
        target = declared or (Counter(actual.values()).most_common(1)[0][0] if len(actual) > _PEERS else None)
        if target is None or (metric == "ecc_mode" and declared is None):
            continue  # disabled ECC is reported in any case
        why = variable if declared else "its peers"
        differ = [d for d, mode in actual.items() if mode.lower() != target.lower()]
        name = metric.replace("_mode", " mode").replace("persistence", "persistence mode")
        findings += shared(
            [
                Finding(ID, Verdict.WARN, d, f"{name} is {actual[d]}, not {target} ({why})", metric,
                        actual[d], action="fix configuration")
                for d in differ
            ],
            gpus,
        )  # fmt: skip
    return findings


def _mig(node: CheckNode, values: Values) -> list[Finding]:
    on = [device for device, mode in values.get("mig_mode", {}).items() if mode == "Enabled"]
    reported = len(values.get("mig_mode", {}))
    declared = node.variables.get("gpu_settings_mig")
    if not on:
        return []
    if not declared and 0 < len(on) <= reported // 2 and reported > _PEERS:
        message = "MIG is on, on its peers it is not"
        return [
            Finding(ID, Verdict.WARN, device, message, "mig_mode", "Enabled", action="fix configuration")
            for device in on
        ]
    message = f"MIG is on on {', '.join(on)}: utilisation and tests of whole GPUs do not apply there"
    return [Finding(ID, Verdict.SKIP, "node", message, "mig_mode", "Enabled")]


def _power(node: CheckNode, values: Values, gpus: int) -> list[Finding]:
    limits = {device: float(watts) for device, watts in values.get("power_limit", {}).items()}
    declared = node.variables.get("gpu_settings_power_limit") or 0
    if isinstance(declared, (int, float)) and not isinstance(declared, bool) and declared > 0:
        expected, why = float(declared), "gpu_settings_power_limit"
    elif len(limits) > _PEERS:
        expected, why = Counter(limits.values()).most_common(1)[0][0], "its peers"
    else:
        return []
    findings = []
    for device, watts in limits.items():
        if abs(watts - expected) <= 0.01 * expected:
            continue
        message = f"its power limit is {watts:g} W, not {expected:g} W ({why})"
        usual = values.get("power_default", {}).get(device)
        message += "" if usual is None else f"; {float(usual):g} W by default"
        verdict = Verdict.FAIL if watts < expected else Verdict.WARN
        findings.append(
            Finding(ID, verdict, device, message, "power_limit", watts, "W", f"= {expected:g} W", why,
                    "fix configuration")
        )  # fmt: skip
    return shared(findings, gpus)


def _vbios(values: Values) -> list[Finding]:
    """Warn about firmware that differs from most other GPUs of the model.

    The right version is unknown here, but such a GPU was forgotten or is a spare. An even split is no fault.
    """
    findings = []
    for model in sorted({str(name) for name in values["name"].values()}):
        by_gpu = {d: str(v) for d, v in values.get("vbios", {}).items() if values["name"].get(d) == model}
        if len(by_gpu) <= _PEERS:
            continue
        usual, having = Counter(by_gpu.values()).most_common(1)[0]
        findings += [
            Finding(ID, Verdict.WARN, d, f"its VBIOS is {by_gpu[d]}, that of {having} peers {usual}",
                    "vbios", by_gpu[d], limit=f"= {usual}", source="most GPUs of its model in the node",
                    action="fix configuration")
            for d in by_gpu if by_gpu[d] != usual and 2 * having > len(by_gpu)
        ]  # fmt: skip
    return findings


def _processes(values: Values) -> list[Finding]:
    return [
        Finding(
            ID, Verdict.WARN, device, f"is in use: {text}; end it, or wait for it, and measure again",
            "processes", text, action="investigate",
        )
        for device, text in values.get("processes", {}).items()
        if text
    ]  # fmt: skip


def _heat(values: Values) -> list[Finding]:
    busy = {device for device, programs in values.get("processes", {}).items() if programs}
    heat = {d: float(degrees) for d, degrees in values.get("temperature", {}).items() if d not in busy}
    text = "is at {degrees:g} °C at rest, its peers at {middle:g} °C: look at its heat sink and fans"
    return hotter(ID, "temperature", heat, text)


def _latency(values: Mapping[str, Mapping[str, Any]], gpus: int) -> list[Finding]:
    seconds = float(values.get("smi_seconds", {}).get("node", 0.0))
    limit = _GSP_SECONDS + _SECONDS_PER_GPU * gpus
    kept = [mode == "Enabled" for mode in values.get("persistence", {}).values()]
    if seconds <= limit or not kept or not all(kept):
        return []  # without persistence mode the driver is loaded again for each call
    text = f"nvidia-smi took {seconds:.0f} s to answer although the driver stays loaded: it waits for a GPU"
    return [
        Finding(ID, Verdict.WARN, "node", text, "smi_seconds", seconds, "s", f"≤ {limit:g} s",
                "the driver's 6 s for its firmware, and a second for each GPU (derived)", "investigate")
    ]  # fmt: skip
