"""RDMA port counters of earlier validate runs, for nodes without a health program that stores them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from provision.checks.on_node import ports
from provision.errors import GpuprovError
from provision.runs.node_facts import read_node_facts
from provision.runs.store import RunFolder

_DAMAGED = (GpuprovError, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError)
_RUNS = 3  # number of earlier runs to read, since facts of a large fleet are large


def earlier_counters(
    folder: RunFolder, seen: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return node → its value for the fact `hca.earlier`, for nodes without it; `seen`: facts of this run.

    The counters come from the newest run that is at least a day old, or else from the oldest of those read,
    within the same boot of the node. Damaged runs are skipped.
    """
    missing = {
        name for name, facts in seen.items() if facts.get("hca.counters") and not facts.get("hca.earlier")
    }
    counters: dict[str, list[dict[str, Any]]] = {}
    runs = sorted(path for path in folder.path.parent.glob("*-validate") if path.name < folder.path.name)
    for path in reversed(runs[-_RUNS:] if missing else []):
        try:
            stored = read_node_facts(RunFolder(path))
        except _DAMAGED:
            continue
        for name in missing & set(stored):
            with contextlib.suppress(*_DAMAGED):  # a bad answer of one node must not affect the others
                now, then = seen[name], stored[name].facts
                rows_so_far, uptime = counters.get(name), int(now["clock.uptime_s"])
                if not now["boot.id"] or now["boot.id"] != then["boot.id"]:
                    continue
                if rows_so_far and uptime - rows_so_far[0]["uptime"] >= ports.WINDOW:
                    continue
                if rows := ports.rows(then):
                    counters[name] = [{**row, "uptime": int(then["clock.uptime_s"])} for row in rows]
    return counters
