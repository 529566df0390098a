"""Counters of RDMA ports as an earlier validate run read them, for nodes whose health program stores none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.checks.on_node import ports
from provision.errors import GpuprovError
from provision.runs.node_facts import read_node_facts
from provision.runs.store import RunFolder

_RUNS = 3  # earlier runs that are read: facts of a large fleet are large


def earlier_counters(
    folder: RunFolder, seen: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Node → what its fact `hca.earlier` would be, of nodes without that fact. `seen`: the facts of this run.

    The newest run that is a day old, else the oldest of those read, within the same boot of the node. A
    damaged run is passed over: it costs a comparison, never a run.
    """
    wanted = {
        name for name, facts in seen.items() if facts.get("hca.counters") and not facts.get("hca.earlier")
    }
    found: dict[str, list[dict[str, Any]]] = {}
    runs = sorted(path for path in folder.path.parent.glob("*-validate") if path.name < folder.path.name)
    for path in reversed(runs[-_RUNS:] if wanted else []):
        try:
            stored = read_node_facts(RunFolder(path))
            for name in wanted & set(stored):
                now, then = seen[name], stored[name].facts
                known, uptime = found.get(name), now.get("clock.uptime_s")
                if now.get("boot.id") != then.get("boot.id") or not isinstance(uptime, int):
                    continue
                if (known is None or uptime - known[0]["uptime"] < ports.WINDOW) and (
                    rows := ports.rows(then)
                ):
                    found[name] = [{**row, "uptime": then["clock.uptime_s"]} for row in rows]
        except (GpuprovError, OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return found
