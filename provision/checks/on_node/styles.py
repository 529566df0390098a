"""The node's health in the formats of Nagios plugins, LBNL NHC and Kubernetes' node-problem-detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# https://nagios-plugins.org/doc/guidelines.html: OK, WARNING, CRITICAL, UNKNOWN
_NAGIOS = {
    "pass": (0, "OK"),
    "skip": (0, "OK"),
    "warn": (1, "WARNING"),
    "fail": (2, "CRITICAL"),
    "error": (3, "UNKNOWN"),
}


def causes(told: Mapping[str, Any], verdicts: tuple[str, ...] = ("fail", "error", "warn")) -> list[str]:
    """List what counts, a line each: `gpu3: GPU has fallen off the bus (serial 1652…): power-cycle`."""
    if told["error"]:
        return [str(told["error"])]
    serials = {f"gpu{gpu['index']}": gpu["serial"] for gpu in told["gpus"] if gpu["serial"]}
    result = []
    for row in told["findings"]:
        if row["state"] == "pending" or row["verdict"] not in verdicts:
            continue
        serial = f" (serial {serials[row['device']]})" if row["device"] in serials else ""
        result.append(f"{row['device']}: {row['message']}{serial}: {row['action']}")
    return result


def nagios(told: Mapping[str, Any]) -> tuple[str, int]:
    """Return the plugin's output (worst finding and metrics first) and its exit status."""
    status, label = _NAGIOS[told["verdict"]]
    problems = causes(told)
    first = problems[0] if problems else f"{told['facts'].get('gpus', 0)} GPUs, {len(told['checks'])} checks"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    # Nagios parses everything after a bar as metrics.
    lines = [line.replace("|", "/") for line in (first, *problems[1:])]
    numbers = f"findings={len(problems)} seconds={told['seconds']}s"
    return "\n".join([f"GPUPROV {label} - {lines[0]}{more} | {numbers}", *lines[1:]]), status


def nhc(told: Mapping[str, Any]) -> tuple[str, int]:
    """Return (reason in one line, 0 or 1) for NHC's `check_cmd_status -r 0`.

    A node that fails or could not be measured should be drained; a warning drains nothing."""
    if told["verdict"] not in ("fail", "error"):
        return "", 0
    problems = causes(told, ("fail",)) or causes(told, ("error",)) or [f"verdict {told['verdict']}"]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"gpuprov: {problems[0]}{more}", 1


# node-problem-detector: exit 0 is no problem, 1 is one, others are unknown; messages are cut at byte 80
# (plugin/plugin.go and types/config.go in pkg/custompluginmonitor of kubernetes/node-problem-detector).
_NPD = {"fail": 1, "error": 2}
NPD_BYTES = 80


def npd(told: Mapping[str, Any]) -> tuple[str, int]:
    """Return (the node condition's message in at most 80 bytes, 0, 1 or 2)."""
    status = _NPD.get(told["verdict"], 0)
    problems = causes(told, ("fail",)) if status == 1 else causes(told, ("error",)) if status else []
    text = problems[0] if problems else "no GPU problem" if not status else f"verdict {told['verdict']}"
    return npd_text(text), status


def npd_text(text: str) -> str:
    """Return one line of at most 80 bytes, cut between characters."""
    line = " ".join(text.split())
    data = line.encode()
    if len(data) <= NPD_BYTES:
        return line
    return data[: NPD_BYTES - 3].decode(errors="ignore") + "..."
