"""The rules of host_health for parts that wear: main memory and NVMe drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks import json_text
from provision.checks.check import CheckNode, Output, last_words
from provision.checks.host.host_rules import finding, number_of
from provision.checks.judge import Finding, Verdict
from provision.checks.limits import limits
from provision.checks.network.rdma_port import entries
from provision.errors import ParseError

# NVM Express base specification, SMART / Health Information log, Critical Warning: bit -> meaning.
_WARNINGS = (
    "spare space is below its threshold",
    "temperature is beyond a threshold",
    "reliability is degraded",
    "it is read-only",
    "its volatile memory backup has failed",
    "its persistent memory region is unreliable",
)


def judge_memory(check: str, node: CheckNode) -> list[Finding]:
    """Errors of memory modules, or of their controller where it cannot tell which."""
    controllers, modules = entries(node, "edac.controllers"), entries(node, "edac.modules")
    days = max(1.0, (number_of(node, "clock.uptime_s") or 0) / 86400)
    per_day = limits("host_limits")["memory_corrected_per_day"]
    found = []
    for device, corrected, uncorrected in _counted(controllers, modules):
        if uncorrected:
            source = str(limits("host_limits")["memory_uncorrected"]["source"])
            message = f"{device} has {uncorrected} uncorrected memory errors"
            found.append(
                finding(
                    check,
                    Verdict.FAIL,
                    message,
                    "memory_uncorrected",
                    uncorrected,
                    "errors",
                    action="replace part",
                    limit="= 0 errors",
                    source=source,
                    device=device,
                )
            )
            continue
        for level, verdict, action in (
            ("fail", Verdict.FAIL, "replace part"),
            ("warn", Verdict.WARN, "watch"),
        ):
            limit = float(per_day[level]["limit"])
            if corrected / days >= limit:
                message = f"{device} has {corrected} corrected memory errors in {days:.0f} days"
                found.append(
                    finding(
                        check,
                        verdict,
                        message,
                        "memory_corrected",
                        corrected,
                        "errors",
                        action=action,
                        limit=f"< {limit:g} a day",
                        source=str(per_day[level]["source"]),
                        device=device,
                    )
                )
                break
    return found


def _counted(
    controllers: Sequence[Mapping[str, Any]], modules: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int, int]]:
    """(device, corrected, uncorrected): each module, and what its controller counted beyond its modules."""
    found = []
    told: dict[str, tuple[int, int]] = {}
    for row in modules:
        corrected, uncorrected = _count(row, "corrected"), _count(row, "uncorrected")
        controller = str(row.get("controller"))
        label = str(row.get("label") or row.get("module"))
        found.append((f"{controller}/{row.get('module')} ({label})", corrected, uncorrected))
        before = told.get(controller, (0, 0))
        told[controller] = before[0] + corrected, before[1] + uncorrected
    for row in controllers:
        name = str(row.get("controller"))
        known = told.get(name, (0, 0))
        rest = max(0, _count(row, "corrected") - known[0]), max(0, _count(row, "uncorrected") - known[1])
        found.append((name, *rest))
    return found


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise ParseError(f"a memory error counter is not a number: {value!r:.60}", "run the check again")
    return value


def judge_drives(check: str, node: CheckNode) -> list[Finding]:
    """As many NVMe drives as declared, and each of them alive."""
    drives = entries(node, "nvme.drives")
    if not all(isinstance(row.get("drive"), str) for row in drives):
        raise ParseError("nvme.drives: an entry without drive", "run the check again")
    expected = node.variables.get("gpuprov_expected_nvmes")
    found = []
    if isinstance(expected, int) and not isinstance(expected, bool) and len(drives) < expected:
        message = f"{len(drives)} of {expected} NVMe drives"
        there = ", ".join(str(row.get("drive")) for row in drives) or "none"
        found.append(
            finding(
                check,
                Verdict.FAIL,
                message,
                "nvme_drives",
                len(drives),
                "drives",
                action="reseat or check cable",
                limit=f"≥ {expected} drives",
                source="gpuprov_expected_nvmes",
                evidence=(f"there: {there}",),
            )
        )
    for row in drives:
        if row.get("state") not in ("live", None):
            device = str(row.get("drive"))
            message = f"{device} is {row.get('state')}, not live"
            found.append(
                finding(
                    check,
                    Verdict.FAIL,
                    message,
                    "nvme_state",
                    str(row.get("state")),
                    action="replace part",
                    device=device,
                )
            )
    return found


def _cause(output: Output) -> str:
    """Why nvme-cli failed. With `-o json`, 2.13 prints the reason as `{"error": text}` on standard output,
    and its usage text on standard error."""
    try:
        document = json_text.decode_all(output.stdout)
    except (ValueError, RecursionError):
        return last_words(output)
    error = document.get("error") if isinstance(document, dict) else None
    return error.strip()[:200] if isinstance(error, str) and error.strip() else last_words(output)


def smart_of(output: Output) -> dict[str, int]:
    """`nvme smart-log -o json` → its numbers. Raises ParseError on anything else."""
    if output.rc != 0 or output.truncated:
        raise ParseError(f"nvme smart-log failed: {_cause(output)}", "look at the drive: nvme smart-log")
    try:
        document = json_text.decode_all(output.stdout)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"nvme smart-log did not print JSON: {error}", "run the check again") from error
    if not isinstance(document, dict):
        raise ParseError("nvme smart-log printed no object", "run the check again")
    found = {}
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
        found[name] = value
    return found


def judge_wear(check: str, drive: str, smart: Mapping[str, int]) -> list[Finding]:
    """What a drive says of itself."""
    bits = [words for bit, words in enumerate(_WARNINGS) if smart["critical_warning"] >> bit & 1]
    used = limits("host_limits")["nvme_percent_used"]
    evidence = (", ".join(f"{name} {value}" for name, value in smart.items()),)
    if smart["critical_warning"]:
        message = f"{drive} warns: {'; '.join(bits) or 'of something unknown'}"
        hot = smart["critical_warning"] == 2
        return [
            finding(
                check,
                Verdict.FAIL,
                message,
                "nvme_critical_warning",
                smart["critical_warning"],
                action="investigate" if hot else "replace part",
                device=drive,
                evidence=evidence,
            )
        ]
    if smart["avail_spare"] < smart["spare_thresh"]:
        message = f"{drive} has {smart['avail_spare']} % spare space, below its own {smart['spare_thresh']} %"
        return [
            finding(
                check,
                Verdict.FAIL,
                message,
                "nvme_spare",
                smart["avail_spare"],
                "%",
                action="replace part",
                device=drive,
                evidence=evidence,
            )
        ]
    found = []
    if smart["percent_used"] >= int(used["limit"]):
        message = f"{drive} has used {smart['percent_used']} % of its promised life"
        found.append(
            finding(
                check,
                Verdict.WARN,
                message,
                "nvme_used",
                smart["percent_used"],
                "%",
                action="replace part",
                limit=f"< {used['limit']} %",
                source=str(used["source"]),
                device=drive,
                evidence=evidence,
            )
        )
    if smart["media_errors"]:
        message = f"{drive} could not read back written data {smart['media_errors']} times"
        found.append(
            finding(
                check,
                Verdict.WARN,
                message,
                "nvme_media_errors",
                smart["media_errors"],
                "errors",
                action="watch",
                device=drive,
                evidence=evidence,
            )
        )
    return found
