"""The rules of gpu_inventory for how the GPUs are set, what runs on them and how they answer (pure).

A setting is held against what was declared, else against the other GPUs: what a site chose for all of them is
no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from provision.checks.check import CheckNode
from provision.checks.gpu.inventory_rules import Values, shared
from provision.checks.judge import Finding, Verdict, spread

_PEERS = 3  # others, below which nobody is compared
_HOTTER = 12.0  # degrees above the peers at rest: what the airflow explains under load, telemetry_rules.py

# The driver gives its firmware (GSP) 6 s for an answer before it logs Xid 119. With the driver kept loaded,
# an answer that takes that long and a second more for each GPU has waited for one that did not come.
_GSP_SECONDS = 6.0
_SECONDS_PER_GPU = 1.0

# metric → (the variable that declares it, its words in what was declared → as nvidia-smi prints them)
_MODES: dict[str, tuple[str, dict[Any, str]]] = {
    "persistence": ("nvidia_driver_persistence", {True: "Enabled", False: "Disabled"}),
    "compute_mode": (
        "gpu_settings_compute_mode",
        {"default": "Default", "exclusive_process": "Exclusive_Process", "prohibited": "Prohibited"},
    ),
    "ecc_mode": ("gpu_settings_ecc", {"enabled": "Enabled", "disabled": "Disabled"}),
}


def judge_settings(check: str, node: CheckNode, values: Values) -> list[Finding]:
    """Modes, power limits, firmware, foreign processes, heat at rest and the time nvidia-smi took."""
    gpus = len(values["name"])
    findings = (
        _modes(check, node, values, gpus) + _mig(check, node, values) + _power(check, node, values, gpus)
    )
    findings += _vbios(check, values)
    return findings + _processes(check, values) + _heat(check, values) + _latency(check, values, gpus)


def _modes(check: str, node: CheckNode, values: Values, gpus: int) -> list[Finding]:
    findings = []
    for metric, (variable, words) in _MODES.items():
        found = {device: str(mode) for device, mode in values.get(metric, {}).items()}
        declared = words.get(node.variables.get(variable, ""))
        wanted = declared or (Counter(found.values()).most_common(1)[0][0] if len(found) > _PEERS else None)
        if wanted is None or (metric == "ecc_mode" and declared is None):
            continue  # ECC that is off is told of in any case
        why = variable if declared else "its peers"
        differ = [d for d, mode in found.items() if mode.lower() != wanted.lower()]
        name = metric.replace("_mode", " mode").replace("persistence", "persistence mode")
        findings += shared(
            [
                Finding(check, Verdict.WARN, d, f"{name} is {found[d]}, not {wanted} ({why})", metric,
                        found[d], action="fix configuration")
                for d in differ
            ],
            gpus,
        )  # fmt: skip
    return findings


def _mig(check: str, node: CheckNode, values: Values) -> list[Finding]:
    on = [device for device, mode in values.get("mig_mode", {}).items() if mode == "Enabled"]
    known = len(values.get("mig_mode", {}))
    declared = node.variables.get("gpu_settings_mig")
    if not on:
        return []
    if not declared and 0 < len(on) <= known // 2 and known > _PEERS:
        said = "MIG is on, on its peers it is not"
        return [
            Finding(check, Verdict.WARN, device, said, "mig_mode", "Enabled", action="fix configuration")
            for device in on
        ]
    said = f"MIG is on on {', '.join(on)}: utilisation and tests of whole GPUs do not apply there"
    return [Finding(check, Verdict.SKIP, "node", said, "mig_mode", "Enabled")]


def _power(check: str, node: CheckNode, values: Values, gpus: int) -> list[Finding]:
    limits = {device: float(watts) for device, watts in values.get("power_limit", {}).items()}
    declared = node.variables.get("gpu_settings_power_limit") or 0
    if isinstance(declared, int | float) and not isinstance(declared, bool) and declared > 0:
        wanted, why = float(declared), "gpu_settings_power_limit"
    elif len(limits) > _PEERS:
        wanted, why = Counter(limits.values()).most_common(1)[0][0], "its peers"
    else:
        return []
    findings = []
    for device, watts in limits.items():
        if abs(watts - wanted) <= 0.01 * wanted:
            continue
        said = f"its power limit is {watts:g} W, not {wanted:g} W ({why})"
        usual = values.get("power_default", {}).get(device)
        said += "" if usual is None else f"; {float(usual):g} W by default"
        verdict = Verdict.FAIL if watts < wanted else Verdict.WARN
        findings.append(
            Finding(check, verdict, device, said, "power_limit", watts, "W", f"= {wanted:g} W", why,
                    "fix configuration")
        )  # fmt: skip
    return shared(findings, gpus)


def _vbios(check: str, values: Values) -> list[Finding]:
    """Firmware is the maker's, and which is right nobody says here: one that differs from most others of its
    model was forgotten, or the GPU is a spare. Two halves of a node are nobody's mistake.
    """
    findings = []
    for model in sorted({str(name) for name in values["name"].values()}):
        found = {d: str(v) for d, v in values.get("vbios", {}).items() if values["name"].get(d) == model}
        if len(found) <= _PEERS:
            continue
        usual, having = Counter(found.values()).most_common(1)[0]
        findings += [
            Finding(check, Verdict.WARN, d, f"its VBIOS is {found[d]}, that of {having} peers {usual}",
                    "vbios", found[d], limit=f"= {usual}", source="most GPUs of its model in the node",
                    action="fix configuration")
            for d in found if found[d] != usual and 2 * having > len(found)
        ]  # fmt: skip
    return findings


def _processes(check: str, values: Values) -> list[Finding]:
    return [
        Finding(
            check, Verdict.WARN, device, f"is in use: {text}; end it, or wait for it, and measure again",
            "processes", text, action="investigate",
        )
        for device, text in values.get("processes", {}).items()
        if text
    ]  # fmt: skip


def _heat(check: str, values: Values) -> list[Finding]:
    busy = {device for device, programs in values.get("processes", {}).items() if programs}
    heat = {d: float(degrees) for d, degrees in values.get("temperature", {}).items() if d not in busy}
    findings = []
    for device, degrees in heat.items():
        others = [other for name, other in heat.items() if name != device]
        if len(others) < _PEERS:
            continue
        middle, deviation = spread(others)
        if degrees - middle > max(_HOTTER, 3 * deviation):
            said = f"is at {degrees:g} °C at rest, its peers at {middle:g} °C: look at its heat sink and fans"
            findings.append(
                Finding(check, Verdict.WARN, device, said, "temperature", degrees, "C",
                        f"≤ {middle + _HOTTER:g} C", "median of the other GPUs of the node", "investigate")
            )  # fmt: skip
    return findings


def _latency(check: str, values: Mapping[str, Mapping[str, Any]], gpus: int) -> list[Finding]:
    seconds = float(values.get("smi_seconds", {}).get("node", 0.0))
    limit = _GSP_SECONDS + _SECONDS_PER_GPU * gpus
    kept = [mode == "Enabled" for mode in values.get("persistence", {}).values()]
    if seconds <= limit or not kept or not all(kept):
        return []  # without persistence mode the driver is loaded anew for each call
    said = f"nvidia-smi took {seconds:.0f} s to answer although the driver stays loaded: it waits for a GPU"
    return [
        Finding(check, Verdict.WARN, "node", said, "smi_seconds", seconds, "s", f"≤ {limit:g} s",
                "the driver's 6 s for its firmware, and a second for each GPU (derived)", "investigate")
    ]  # fmt: skip
