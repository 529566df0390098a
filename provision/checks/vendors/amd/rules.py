"""Rules of gpu_inventory for AMD's GPUs alone: driver, error counters, PCIe, xGMI links (pure).

Rules for all GPUs are in gpu/inventory_rules.py and gpu/inventory_links.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from provision.checks.check import CheckNode
from provision.checks.gpu.inventory_rules import (
    ID,
    REPLAYS_PER_MINUTE,
    REPLAYS_SOURCE,
    Values,
    all_good,
    odd_count,
    shared,
)
from provision.checks.judge import PEERS, Finding, Measurement, Verdict, finding_on, hotter, unmeasured
from provision.checks.thresholds import limits
from provision.checks.vendors.amd.sensors import VIOLATIONS

# Slow levels of amdsmi_dev_perf_level_t (amdsmi.h); MANUAL and DETERMINISM may be intended.
_SLOW_LEVELS = ("LOW", "STABLE_MIN_MCLK", "STABLE_MIN_SCLK")
_TAKEN = 0.05  # of the memory; the driver itself takes 0.3 GiB
_PEERS = 3  # other GPUs needed for a comparison

_SCRAPER = "amd/node-scraper, AMD's own check of nodes"


def judge_taken(values: Values, on_bus: int) -> list[Finding]:
    """Judge GPUs on the bus that no program can use."""
    findings = []
    for device, driver in values.get("untaken", {}).items():
        words = f"is on the PCI bus, and the driver amdgpu did not take it ({driver})"
        findings.append(Finding(ID, Verdict.FAIL, device, words, "untaken", driver, action="power-cycle"))
    for device in lost(values):
        words = "has the driver amdgpu, and amd-smi does not list it: it does not answer"
        findings.append(Finding(ID, Verdict.FAIL, device, words, "unanswered", action="power-cycle"))
    computing = values.get("compute_units", {})
    without = [device for device in values.get("taken", {}) if device not in computing]
    words = "is not in the topology of the compute driver: no program can compute with it"
    findings += shared(
        [
            Finding(ID, Verdict.FAIL, device, words, "compute_units", action="reset GPU")
            for device in without
            if device not in lost(values)
        ],
        on_bus,
    )
    return findings


def _taken(values: Values) -> list[str]:
    """Return the GPUs bound to the driver, or all GPUs if that is unknown."""
    return [device for device in values.get("on_bus", {}) if device not in values.get("untaken", {})]


def lost(values: Values) -> list[str]:
    """Return the GPUs that are bound to the driver but missing in amd-smi; none if it was not run."""
    if "listed" not in values:
        return []
    return [device for device in _taken(values) if device not in values["listed"]]


def judge_board(node: CheckNode, seen: int) -> list[Finding]:
    """Judge whether a GPU is missing from the PCI bus, on a node without a declared GPU count."""
    sku = limits(f"skus/{node.sku}") if node.sku else {}
    boarded = "links_per_pair" in sku.get("xgmi", {}) or sku.get("devices_per_module", 1) > 1
    if not boarded or node.variables.get("gpuprov_expected_gpus") is not None:
        return []
    return odd_count(node, seen, "boards of AMD's GPUs and their partitions (derived)")


# Judged readings.
_JUDGED = {
    "pcie_width": "PCIe width",
    "memory_total": "size of memory",
    "ecc_uncorrectable": "uncorrectable errors",
    "bad_pages": "bad pages of memory",
    "xgmi_links": "xGMI links",
    "temperature": "temperature",
}
# Readings that some GPUs of a product lack, such as the power limit of an MI250's second die: one is missing
# only if all other GPUs have it.
_JUDGED_ALONE = {
    "throttle": "state of throttling",
    "power_limit": "power limit",
    "memory_temperature": "temperature of its memory",
    "xgmi_up": "state of its xGMI links",
}


def judge_absent(values: Values) -> list[Finding]:
    """Report a reading that a GPU lacks though others have it; one that no GPU has is not expected."""
    answering = [device for device in _taken(values) if device not in lost(values)]
    findings = []
    for device in answering:
        peers = [other for other in answering if other != device]
        missing = [
            words
            for metric, words in _JUDGED.items()
            if device not in (known := values.get(metric, {}))
            and 2 * sum(peer in known for peer in peers) > len(peers)
        ]
        missing += [
            words
            for metric, words in _JUDGED_ALONE.items()
            if device not in (known := values.get(metric, {}))
            and len(peers) >= _PEERS
            and all(peer in known for peer in peers)
        ]
        if missing:
            why = str(values.get("unread", {}).get(device, ""))[:120]
            message = f"gives no {', '.join(missing)}, and the other GPUs do" + (f": {why}" if why else "")
            findings.append(unmeasured(ID, message, device=device, action="investigate"))
    if values.get("taken") and not values.get("ecc_uncorrectable"):
        why = next(iter(values.get("unread", {}).values()), "the driver has no counters")
        message = f"errors are not counted on any GPU, so that they go unseen: {str(why)[:120]}"
        findings.append(
            Finding(ID, Verdict.WARN, "node", message, "ecc_uncorrectable", action="fix configuration")
        )
    return findings


def judge_errors(values: Values) -> list[Finding]:
    """Judge hardware errors since the driver was loaded; corrected ones have no limit."""
    findings = []
    for device, errors in values.get("ecc_uncorrectable", {}).items():
        if errors:
            where = _blocks(values, device, "ue")
            words = f"{errors} uncorrectable error{'s' * (errors != 1)} since the driver was loaded{where}"
            measured = Measurement("ecc_uncorrectable", errors, "errors", device)
            findings.append(
                finding_on(ID, Verdict.FAIL, measured, words, "= 0 errors", _SCRAPER, "reset GPU")
            )
    for device, errors in values.get("ecc_deferred", {}).items():
        if errors:
            words = (
                f"{errors} deferred error{'s' * (errors != 1)} since the driver was loaded"
                f"{_blocks(values, device, 'de')}: bad data that nothing has read yet"
            )
            measured = Measurement("ecc_deferred", errors, "errors", device)
            findings.append(finding_on(ID, Verdict.WARN, measured, words, "= 0 errors", _SCRAPER, "watch"))
    return findings


def _blocks(values: Values, device: str, kind: str) -> str:
    """Format ` (umc 2, gfx 1)` from `umc ue 2, umc ce 5, gfx ue 1`."""
    blocks = []
    for part in str(values.get("ecc_blocks", {}).get(device, "")).split(", "):
        words = part.split()
        if len(words) == 3 and words[1] == kind:
            blocks.append(f"{words[0]} {words[2]}")
    return f" ({', '.join(blocks)})" if blocks else ""


def judge_speed(values: Values) -> list[Finding]:
    """Judge the PCIe rate of the slots, which these GPUs do not lower at rest.

    AMD's own check of nodes tests it on idle GPUs. A rate that all GPUs share is not the fault of one."""
    now, best = values.get("pcie_speed", {}), values.get("pcie_speed_max", {})
    slow = {device: rate for device, rate in now.items() if rate < best.get(device, rate)}
    if not slow:
        return []
    if len(slow) == len(now) and len(set(slow.values())) == 1 and len(now) > 1:
        rate = next(iter(slow.values()))
        words = (
            f"no slot gives more than {rate:g} GT/s, the GPUs have {max(best.values()):g}: see the firmware"
        )
        return [
            Finding(ID, Verdict.WARN, "node", words, "pcie_speed", rate, "GT/s", action="fix configuration")
        ]
    findings = []
    for device, rate in slow.items():
        words = f"PCIe runs at {rate:g} GT/s of {best[device]:g} GT/s"
        measured = Measurement("pcie_speed", rate, "GT/s", device)
        limit = f"≥ {best[device]:g} GT/s"
        findings.append(
            finding_on(ID, Verdict.FAIL, measured, words, limit, _SCRAPER, "reseat or check cable")
        )
    return findings


def judge_fatal(values: Values) -> list[Finding]:
    """Warn of FatalErr+ in the PCIe status, for which AMD rejects a GPU; it may predate a repair."""
    message = "reports a fatal PCIe error (lspci: DevSta FatalErr+) since its status was last cleared"
    source = "AMD, system acceptance: no FatalErr+"
    return [
        finding_on(
            *(ID, Verdict.WARN, Measurement("pcie_fatal", True, "", device), message),
            *("= no FatalErr+", source, "reseat or check cable"),
        )
        for device in values.get("pcie_fatal", {})
    ]


def judge_replays(values: Values) -> list[Finding]:
    """Judge PCIe replays between two readings within a minute; a lifetime's count means nothing."""
    findings = []
    for device, more in values.get("pcie_replays_more", {}).items():
        if more > REPLAYS_PER_MINUTE:
            words = f"its PCIe link repeated itself {more} times while it was looked at"
            measured = Measurement("pcie_replays_more", more, "replays", device)
            limit = f"≤ {REPLAYS_PER_MINUTE} a minute"
            findings.append(
                finding_on(ID, Verdict.FAIL, measured, words, limit, REPLAYS_SOURCE, "reseat or check cable")
            )
    return findings


def judge_xgmi(node: CheckNode, values: Values) -> list[Finding]:
    """Judge links that trained at boot (if all GPUs are wired to each other), and links up now.

    The latter against the other GPUs, since unwired links read as down on all of them."""
    findings: list[Finding] = []
    per_pair = limits(f"skus/{node.sku}").get("xgmi", {}).get("links_per_pair") if node.sku else None
    trained = values.get("xgmi_links", {})
    if per_pair and len(trained) > 1:
        expected = (len(trained) - 1) * int(per_pair)  # a GPU that did not start has no links
        short = {device: count for device, count in trained.items() if count < expected}
        for device, count in _accused(short, dict.fromkeys(trained, expected)).items():
            words = f"{count} of {expected} xGMI links to the other GPUs trained"
            measured = Measurement("xgmi_links", count, "links", device)
            source = "AMD CDNA 3 white paper: every GPU is wired to every other"
            findings.append(
                finding_on(ID, Verdict.FAIL, measured, words, f"= {expected} links", source, "reset GPU")
            )
    findings += _links_now(values, {finding.device for finding in findings})
    up = values.get("xgmi_up", {})
    if not findings and len(trained) > 1 and up and not any(up.values()):
        words = "amd-smi reports no xGMI link between the GPUs as up, though they trained at boot"
        findings.append(Finding(ID, Verdict.WARN, "node", words, "xgmi_up", 0, "links", action="investigate"))
    if not findings and trained:
        state = "are up" if up else "trained at boot; whether they are up is not reported"
        findings.append(all_good("xgmi_links", f"the xGMI links between the GPUs {state}"))
    return findings


def _links_now(values: Values, known: Collection[str]) -> list[Finding]:
    """Judge the links that are up or down now against the other GPUs, except devices `known` as bad."""
    reported, trained, down = (values.get(name, {}) for name in ("xgmi_told", "xgmi_links", "xgmi_down"))
    # A GPU with more links than reported states is left out: the state of the rest is unknown.
    up = {
        device: int(count)
        for device, count in values.get("xgmi_up", {}).items()
        if device not in reported or reported[device] >= trained.get(device, 0)
    }
    metric, state = ("xgmi_down", "down") if down else ("xgmi_up", "up")
    counts = {device: -int(count) for device, count in down.items()} if down else up
    if len(counts) <= _PEERS:
        return []
    usual = Counter(counts.values()).most_common(1)[0][0]
    short = {device: count for device, count in counts.items() if count < usual}
    limit = f"{'≤' if down else '≥'} {abs(usual)} links"
    findings = []
    for device, count in _accused(short, dict.fromkeys(counts, usual)).items():
        if device not in known:
            words = f"{abs(count)} of its xGMI links are {state}, {abs(usual)} of its peers'"
            measured = Measurement(metric, abs(count), "links", device)
            findings.append(finding_on(ID, Verdict.FAIL, measured, words, limit, PEERS, "reset GPU"))
    return findings


def _accused(short: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, int]:
    """Return the GPUs, or the pair, that missing links accuse; a lost link is missing at both ends.

    If two GPUs lack one each, either may be to blame, so the pair is named. If a GPU lacks several, its peers
    lack one each and are not to blame."""
    lacking = {device: int(wanted[device]) - int(count) for device, count in short.items()}
    most = max(lacking.values(), default=0)
    if len(lacking) == 2 and set(lacking.values()) == {most}:
        one, other = sorted(lacking, key=lambda name: int(name[3:]))
        return {f"{one}-{other}": int(short[one])}
    if most > 1:
        return {device: int(short[device]) for device, count in lacking.items() if count > 1}
    return {device: int(count) for device, count in short.items()}


def judge_throttle(values: Values) -> list[Finding]:
    """Judge the reasons that throttle the clocks right now."""
    findings = []
    for device, text in values.get("throttle", {}).items():
        active = [name for name in VIOLATIONS if name in str(text).split(", ")]
        if not active:
            continue
        words = f"clocks are held down: {', '.join(VIOLATIONS[name] for name in active)}"
        verdict = Verdict.WARN if active == ["socket_thermal"] else Verdict.FAIL
        findings.append(Finding(ID, verdict, device, words, "throttle", text, action="investigate"))
    return shared(findings, len(values.get("on_bus", {})))


def judge_leftovers(values: Values) -> list[Finding]:
    """Judge leftovers of a user or fault: lowest clocks, memory without a program, link errors."""
    findings = []
    for device, level in values.get("perf_level", {}).items():
        if level in _SLOW_LEVELS:
            words = f"its performance level is {level}: the clocks stay at their lowest"
            findings.append(
                Finding(ID, Verdict.WARN, device, words, "perf_level", level, action="fix configuration")
            )
    totals, programs = values.get("memory_total", {}), values.get("processes", {})
    for device, used in values.get("memory_used", {}).items():
        if programs.get(device) == "" and 0 < _TAKEN * totals.get(device, 0) < used:
            words = f"{used / 1024:.0f} GiB of its memory are in use, and amd-smi lists no program on it"
            findings.append(
                Finding(ID, Verdict.WARN, device, words, "memory_used", used, "MiB", action="investigate")
            )
    for device, counted in values.get("xgmi_errors", {}).items():
        if counted:
            words = "reports errors on its xGMI links"
            findings.append(Finding(ID, Verdict.WARN, device, words, "xgmi_errors", action="watch"))
    return shared(findings, len(values.get("on_bus", {})))


def judge_memory_heat(values: Values) -> list[Finding]:
    """Judge memory that is much hotter than its peers' while the GPU is at rest."""
    busy = _busy(values)
    heat = {
        device: float(degrees)
        for device, degrees in values.get("memory_temperature", {}).items()
        if device not in busy
    }
    message = (
        "its memory is at {degrees:g} °C at rest, its peers' at {middle:g} °C: look at its heat sink and fans"
    )
    return hotter(ID, "memory_temperature", heat, message)


def _busy(values: Values) -> Collection[str]:
    working = {device for device, busy in values.get("busy", {}).items() if busy}
    return working | {device for device, programs in values.get("processes", {}).items() if programs}


def declared(node: CheckNode) -> CheckNode:
    """Return the node with its declared power limit under the name that common rules use."""
    limit = node.variables.get("amd_gpu_settings_power_limit")
    return replace(node, variables={**node.variables, "gpu_settings_power_limit": limit})


def at_rest(values: Values) -> dict[str, Mapping[str, Any]]:
    """Return the values without the temperatures of busy GPUs, which are no peers of idle GPUs."""
    busy = _busy(values)
    heat = {d: degrees for d, degrees in values.get("temperature", {}).items() if d not in busy}
    return {**values, "temperature": heat}


def judge_partitions(values: Values) -> list[Finding]:
    """Report partitioned GPUs among whole ones; if most are partitioned, the site intends it."""
    parts, on_bus = values.get("partition", {}), values.get("on_bus", {})
    modes = Counter(str(mode) for mode in parts.values())
    if not parts:
        return []
    if len(parts) <= len(on_bus) // 2 and len(on_bus) > _PEERS:
        return [
            Finding(
                ID, Verdict.WARN, device, f"is partitioned ({mode}), its peers are not", "partition", mode,
                action="fix configuration",
            )
            for device, mode in parts.items()
        ]  # fmt: skip
    message = f"GPUs are partitioned ({', '.join(modes)}): their memory and tests of whole GPUs do not apply"
    return [Finding(ID, Verdict.SKIP, "node", message, "partition", next(iter(modes)))]
