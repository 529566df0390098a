"""Kernel lines about the machine around the GPUs: host_lines.json, kind → lines of /dev/kmsg."""

import json
from pathlib import Path

KINDS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def lines(fault: dict) -> list:
    """Return the kernel's lines about one of these faults; empty for others."""
    kinds = {"host_line": "trouble", "host_line_harmless": "harmless"}
    return KINDS[kinds[fault["id"]]][fault["kind"]] if fault["id"] in kinds else []
