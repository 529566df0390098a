"""The watch's heartbeat: a file in its folder, and metrics for a node exporter on its controller."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.checks.exposition import Family, Sample, render
from provision.checks.on_node.document import stale
from provision.text import iso, many, spelled
from provision.up.watch.decide import View, ready
from provision.up.watch.incidents import FORMAT, Step
from provision.up.watch.policy import Policy
from provision.up.watch.roles import Role

EVERY = 15.0  # seconds between two heartbeats
LATE = 120.0  # seconds after which a watch without a heartbeat counts as gone


def beat(
    folder: Path, nodes: str, held: Collection[str], counts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write the heartbeat file and return its content. Raises OSError. `nodes`: pattern of --nodes.

    `held`: kinds of lasting conditions; `counts`: see `counted`."""
    row = {"format": FORMAT, "at": time.time(), "pid": os.getpid(), "nodes": nodes, "held": sorted(held)}
    row["counts"] = dict(counts or {})
    atomic_file.write(folder / "heartbeat.json", json.dumps(row) + "\n", sync=False)
    return row


def counted(
    view: View, policy: Policy, results: Mapping[str, tuple[float, float]], began: float, failures: int
) -> dict[str, Any]:
    """Return the watch's counters; `results`: node → age and interval (s) of its latest health result.

    `began`: start of this watch, seconds since 1970; `failures`: its failed rounds. Drains and replacements
    are counted in all incident files, so they grow across restarts. Nodes in repair may be off, so their
    results do not count."""
    role = view.roles
    steps = Counter(one.step for one in view.incidents if one.holds_node)
    taken = {one.spare for one in view.incidents if one.holds_spare}
    spares = [name for name, one in role.items() if one is Role.SPARE]
    ages = [age for name, age in results.items() if role.get(name, Role.REPAIR) is not Role.REPAIR]
    return {
        "started": began,
        "failures": failures,
        "incidents": {step.value: steps[step] for step in Step if step is not Step.CLOSED},
        "drains": sum(one.drained is not None and not one.was_spare for one in view.incidents),
        "replacements": sum(one.placed is not None for one in view.incidents),
        "spares": len(spares),
        "ready": sum(name not in taken and not ready(name, view, policy) for name in spares),
        "oldest": round(max((age for age, _ in ages), default=0.0), 1),
        "stale": sum(stale(age, interval) for age, interval in ages),
    }


def export(path: str, row: Mapping[str, Any]) -> str:
    """Write the metrics; return why that failed, or ""."""
    try:
        with atomic_file.held(Path(path).absolute().parent) as exporters:
            atomic_file.write(exporters / Path(path).name, render(families(row)), private=False, sync=False)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


_METRICS = {  # key of a heartbeat or of `counted`: the metric, and its help
    "at": ("heartbeat_timestamp_seconds", "When the watch last finished a round, in seconds since 1970."),
    "started": ("start_timestamp_seconds", "When this watch started, in seconds since 1970."),
    "failures": ("failed_rounds_total", "Rounds since then that an error ended."),
    "drains": ("drains_total", "Failed nodes that were taken out of service."),
    "replacements": ("replacements_total", "Spares that took the place of a failed node."),
    "spares": ("spares", "Nodes that are spares now."),
    "ready": ("spares_ready", "Spares that could go into service at once."),
    "oldest": ("oldest_result_seconds", "Age of the oldest of the nodes' newest health results."),
    "stale": ("stale_nodes", "Nodes whose newest health result is too old to count."),
}
_HELD = "1 for each kind of trouble that lasts, as named in docs/watch.md."
_INCIDENTS = "Nodes out of service, by the next step of their incident."


def families(row: Mapping[str, Any]) -> list[Family]:
    """Return the metrics of a heartbeat."""
    values = {"at": row["at"], **row.get("counts", {})}
    steps = values.get("incidents", {})
    return [
        *(
            Family(
                f"gpuprov_watch_{name}",
                "counter" if name.endswith("_total") else "gauge",
                about,
                (Sample(values[key]),) if key in values else (),
            )
            for key, (name, about) in _METRICS.items()
        ),
        _by("gpuprov_watch_held", _HELD, "kind", dict.fromkeys(row["held"], 1)),
        _by("gpuprov_watch_incidents", _INCIDENTS, "step", steps),
    ]


def _by(name: str, about: str, label: str, values: Mapping[str, int]) -> Family:
    return Family(name, "gauge", about, tuple(Sample(count, {label: one}) for one, count in values.items()))


def last(folder: Path) -> dict[str, Any]:
    """Return the latest heartbeat, {} without one."""
    try:
        row = json.loads((folder / "heartbeat.json").read_text("utf-8"))
        held = [str(kind) for kind in row["held"]]
        return {**row, "at": float(row["at"]), "nodes": str(row["nodes"]), "held": held}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def state(row: Mapping[str, Any], now: float, running: bool) -> str:
    """Return the state of the watch; `running`: its process exists.

    `work`; `held`: working, but partly blocked; `follows`: another watch has the nodes, and this one does
    nothing to them; `late`: running, but finishes no round; `stopped`; `never`: has not run here yet."""
    if not running:
        return "stopped" if row else "never"
    if not row or abs(now - row["at"]) > LATE:  # a heartbeat from the future was written by another clock
        return "late"
    return "held" if row["held"] else "follows" if row.get("follows") else "work"


def line(row: Mapping[str, Any], now: float, running: bool) -> str:
    """Return the state as a line for people."""
    which = "" if not row or row["nodes"] == "all" else f" of --nodes {row['nodes']}"
    ago = f"its last round was {spelled(abs(int(now - row['at'])))} ago, at {iso(row['at'])}" if row else ""
    return {
        "never": "! no watch has run here yet",
        "stopped": f"! watch{which}: not running; {ago}",
        "late": f"! watch{which}: it runs, but {ago or 'has finished no round yet'}",
        "follows": f"watch{which}: runs, and follows another one",
        "held": f"! watch{which}: at work, but held up: {', '.join(row.get('held', ()))}",
        "work": f"watch{which}: at work",
    }[state(row, now, running)]


def status(row: Mapping[str, Any], follows: str = "") -> str:
    """Return the state for `systemctl status`. `follows`: watch with the nodes, if this one has none."""
    if follows:
        return f"follows {follows}"
    counts = row["counts"]
    out = many(sum(counts["incidents"].values()), "node")
    held = f"; held up: {', '.join(row['held'])}" if row["held"] else ""
    return (
        f"at work: {out} out of service, {counts['ready']:,} of {many(counts['spares'], 'spare')} ready{held}"
    )
