"""The logs of fabric manager and IMEX, and the lines for faults: fabric_log.json, kind -> lines."""

import json
import os
import time
from pathlib import Path

KINDS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def write(path: Path, level: str, text: str) -> None:
    """Write one line of a log. Raises OSError."""
    stamp = time.strftime("[%b %d %Y %H:%M:%S]")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.write(f"{stamp} [{level}] [tid {os.getpid()}] {text}\n")


def report(node, fault: dict) -> None:
    """Write the daemon's lines for one of these faults; a no-op for others."""
    kinds = {"fabric_line": "trouble", "fabric_line_harmless": "harmless"}
    if fault["id"] not in kinds:
        return
    of_imex = fault["kind"].startswith("imex_")
    path = node.root / "var/log" / ("nvidia-imex.log" if of_imex else "fabricmanager.log")
    name = "NodeId" if int(node.library().split(".")[0] or 0) >= 580 else "fid"
    for level, text in KINDS[kinds[fault["id"]]][fault["kind"]]:
        write(path, level, text.replace("{node}", name))
