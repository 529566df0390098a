"""Counters of RDMA ports over the last day, so that rates are judged by the day and not since boot.

/var/lib/gpuprov/node-health/ports.json, read by the fact `hca.earlier`:
{"boot_id": ..., "samples": [{"uptime": seconds, "counters": [{"device": ..., "port": ..., ...}]}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision import atomic_file, foreign_json

FILE = "ports.json"
WINDOW = 24 * 3600.0  # seconds
_EVERY = 3600.0


def keep(folder: Path, facts: Mapping[str, Any], boot_id: str, uptime: float) -> None:
    """Store this run's counters, at most once an hour. Raises OSError.

    Samples no longer needed for a window of one day are dropped."""
    # Readers subtract it from this fact, which starts later than `uptime` in a container.
    fact_uptime = facts.get("clock.uptime_s")
    uptime = fact_uptime if isinstance(fact_uptime, int) else uptime
    counters = rows(facts)
    if not counters:
        return
    samples = [one for one in _read(folder / FILE, boot_id) if one["uptime"] <= uptime]
    if samples and uptime - samples[-1]["uptime"] < _EVERY:
        return
    samples.append({"uptime": int(uptime), "counters": counters})
    while len(samples) > 1 and uptime - samples[1]["uptime"] >= WINDOW:
        del samples[0]
    text = json.dumps({"boot_id": boot_id, "samples": samples})
    atomic_file.write(folder / FILE, text, sync=False)


def rows(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each port's counters with its interface's carrier losses; empty without ports."""
    ports, counters = facts.get("hca.ports"), facts.get("hca.counters")
    if not isinstance(ports, list) or not isinstance(counters, list):
        return []
    downs = {(row.get("device"), row.get("port")): row.get("carrier_downs") for row in ports}
    return [{**row, "carrier_downs": downs.get((row.get("device"), row.get("port")))} for row in counters]


def _read(path: Path, boot_id: str) -> list[dict[str, Any]]:
    """Return the samples of this boot; none if the file is missing or damaged."""
    try:
        document = foreign_json.read(path.read_bytes())
        samples = document["samples"] if document["boot_id"] == boot_id else []
        return [{"uptime": int(one["uptime"]), "counters": one["counters"]} for one in samples]
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return []
