"""Results of the nodes with AMD GPUs, as a table for docs/detection.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from benchmarks.detection import catalogue_amd, scores
from benchmarks.detection.scores import Outcomes

BEGIN, END = "<!-- amd: begin -->", "<!-- amd: end -->"


def lines(outcomes: Outcomes, how: str) -> list[str]:
    """Render the classes with recall and blame, the look-alikes and the healthy nodes."""
    by_key: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in outcomes:
        by_key[one["key"]].append(one)
    found = [how, "", "| # | fault | recall, clear | blame right |", "|---:|---|---|---|"]
    for key, entry in catalogue_amd.ENTRIES.items():
        if not entry.trap:
            score = scores.of_class(entry, by_key[key])
            found.append(f"| {entry.number} | {entry.name} | {score.recall} | {score.blame} |")
    found += ["", "| # | healthy look-alike | flagged |", "|---:|---|---|"]
    for key, entry in catalogue_amd.ENTRIES.items():
        if entry.trap:
            flagged = scores.share(by_key[key], "flagged")
            found.append(f"| {entry.number} | {entry.name} | {flagged} |")
    healthy = scores.share(by_key[catalogue_amd.HEALTHY], "flagged")
    return [*found, f"| | healthy nodes | {healthy} |"]


def misses(outcomes: Outcomes) -> list[str]:
    """List missed, wrongly blamed and wrongly flagged trials, and errors of the benchmark itself."""
    rows = []
    for one in outcomes:
        entry = catalogue_amd.ENTRIES.get(one["key"])
        healthy = entry is None or entry.trap
        right = not one["flagged"] if healthy else one["caught"] and one["blamed"]
        if not right or one["trouble"]:
            faults = "; ".join(one["faults"]) or "no fault"
            rows.append(f"{one['key']} seed {one['seed']} ({one['sku']}: {faults}) verdict {one['verdict']}")
            rows += [f"    {line}" for line in (*one["findings"][:4], one["trouble"]) if line]
    return rows
