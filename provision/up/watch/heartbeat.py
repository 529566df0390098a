"""The watch's heartbeat: a file in its folder, and metrics for a node exporter on its controller."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.checks.exposition import Family, Sample, render
from provision.text import iso, spelled
from provision.up.watch.incidents import FORMAT

EVERY = 15.0  # seconds between two beats
LATE = 120.0  # seconds after which a watch without a beat counts as gone


def beat(folder: Path, nodes: str, held: Collection[str]) -> dict[str, Any]:
    """Write the file, and return its content. `nodes`: the pattern of --nodes; `held`: the kinds of what
    people must know of. Raises OSError."""
    row = {"format": FORMAT, "at": time.time(), "pid": os.getpid(), "nodes": nodes, "held": sorted(held)}
    atomic_file.write(folder / "heartbeat.json", json.dumps(row) + "\n", sync=False)
    return row


def export(path: str, row: Mapping[str, Any]) -> str:
    """Write the metrics; why that failed, or ""."""
    try:
        with atomic_file.held(Path(path).absolute().parent) as exporters:
            atomic_file.write(exporters / Path(path).name, render(families(row)), private=False, sync=False)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def families(row: Mapping[str, Any]) -> list[Family]:
    """The metrics of a heartbeat."""
    return [
        Family(
            "gpuprov_watch_heartbeat_timestamp_seconds",
            "gauge",
            "When the watch last finished a round, in seconds since 1970.",
            (Sample(row["at"]),),
        ),
        Family(
            "gpuprov_watch_held",
            "gauge",
            "1 for each kind of trouble that lasts, as named in docs/watch.md.",
            tuple(Sample(1, {"kind": kind}) for kind in row["held"]),
        ),
    ]


def last(folder: Path) -> dict[str, Any]:
    """The newest heartbeat; empty if there is none."""
    try:
        row = json.loads((folder / "heartbeat.json").read_text("utf-8"))
        return {**row, "at": float(row["at"]), "nodes": str(row["nodes"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def line(row: Mapping[str, Any], now: float) -> str:
    """The state of the watch for `watch state`."""
    if not row:
        return "! no watch has run here yet"
    age = int(now - row["at"])
    which = "" if row["nodes"] == "all" else f" of --nodes {row['nodes']}"
    if age <= LATE:
        return f"watch{which}: at work"
    return f"! watch{which}: gone; its last round was {spelled(age)} ago, at {iso(row['at'])}"
