"""Durations of roles and reboots, learnt from the run folders of earlier `up`s.

A run's events have times: from one event of a node to its next, the role of the later one was at work. Only
nodes that ended well count. A role that installs packages takes minutes, one that mends a setting seconds, so
the two are kept apart. The median over the nodes of a run, then the median over recent runs, shrugs off a
slow mirror and a node that hung. What is learnt is kept beside the events (durations.json), so that a fleet's
history is read once. Whatever is damaged, foreign or newer in a history is passed over: it costs exactness,
never the plan.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from provision import paths, yamlfile
from provision.errors import GpuprovError
from provision.runs.store import RunFolder, runs_home

RUNS = 20  # recent runs that are looked at
LINES = 200_000  # of one file of a run: as many as a second reads
LONGEST = 6 * 3600.0  # seconds; a role that seems to take longer is a clock that was set
REBOOT = "reboot"
FORMAT = 1
KEPT = "durations.json"

# (role or REBOOT, kind of machine, whether packages were installed) → seconds
Key = tuple[str, str, bool]


@dataclass(frozen=True)
class Expected:
    """Minutes something will take. `runs`: how many runs that was learnt from, 0 for an estimate."""

    minutes: float
    runs: int = 0


@dataclass(frozen=True)
class Minutes:
    """What to expect: as learnt from this inventory's runs, else from others', else estimated
    (data/minutes.yml)."""

    own: Mapping[Key, tuple[float, ...]] = field(default_factory=dict)
    others: Mapping[Key, tuple[float, ...]] = field(default_factory=dict)

    def role(self, role: str, kind: str, packages: bool) -> Expected:
        """One role on one node of a kind; `packages`: whether it has to install any."""
        table = _table()
        bare = float(table["roles"].get(role, table["other"]))
        return self._learnt((role, kind, packages)) or Expected(
            bare if packages else min(bare, float(table["settings"]))
        )

    def reboot(self, kind: str) -> Expected:
        """One reboot, until the node answers again and its services have started."""
        return self._learnt((REBOOT, kind, False)) or Expected(float(_table()["reboot"]))

    def _learnt(self, key: Key) -> Expected | None:
        seconds = self.own.get(key) or self.others.get(key)
        return Expected(median(seconds) / 60, len(seconds)) if seconds else None


@functools.cache
def _table() -> Mapping[str, Any]:
    return yamlfile.load_mapping(paths.DATA / "minutes.yml")


def kind_of(facts: Mapping[str, Any]) -> str:
    """What a duration depends on: SKU and operating system (`h100-sxm on debian 13`)."""
    words = [facts.get("gpu.sku") or "unknown GPU", "on", facts.get("os.id"), facts.get("os.version_id")]
    return " ".join(word for word in words if isinstance(word, str))


def learn(inventory: str = "", runs: Path | None = None) -> Minutes:
    """What the newest runs of `up` below `runs` (default: where runs are kept) teach. Never raises for what
    is in them."""
    own: dict[Key, list[float]] = {}
    others: dict[Key, list[float]] = {}
    for folder in _newest(runs or runs_home()):
        with contextlib.suppress(GpuprovError, OSError, ValueError, TypeError, KeyError, AttributeError):
            meta = folder.meta()
            pool = own if inventory and meta.get("inventory") == inventory else others
            for key, seconds in _durations(folder, meta).items():
                pool.setdefault(key, []).append(seconds)
    return Minutes(*({key: tuple(each) for key, each in pool.items()} for pool in (own, others)))


def _newest(home: Path) -> list[RunFolder]:
    with contextlib.suppress(OSError):
        return [RunFolder(path) for path in sorted(home.glob("*Z-up"), reverse=True)[:RUNS]]
    return []


def _durations(folder: RunFolder, meta: Mapping[str, Any]) -> dict[Key, float]:
    """Seconds by key, the median over the nodes of one run; nothing for a run that is not over, or that
    changed nothing on purpose (--check) or removed roles."""
    asked = meta.get("arguments") or {}
    if meta.get("finished") is None or asked.get("check") or asked.get("remove"):
        return {}
    kept = _kept(folder)
    if kept is None:
        kept = derive(folder)
        rows = [[*key, round(seconds, 1)] for key, seconds in kept.items()]
        with contextlib.suppress(OSError):  # a folder of somebody else's is read again next time
            folder.write_json(KEPT, {"format": FORMAT, "durations": rows})
    return kept


def _kept(folder: RunFolder) -> dict[Key, float] | None:
    """What was learnt of this run before; None when nothing, or nothing this version understands."""
    try:
        document = json.loads((folder.path / KEPT).read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            return None
        return {
            (str(what), str(kind), packages is True): _sane(took)
            for what, kind, packages, took in document["durations"]
        }
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _sane(seconds: Any) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST:
        raise ValueError("not a duration")
    return float(seconds)


def derive(folder: RunFolder) -> dict[Key, float]:
    """The durations a run's own records show: events.jsonl, beside outcomes, first facts and first drifts.

    Raises RunFolderError where a file is damaged in its middle."""
    done = {row.get("node") for row in _rows(folder, "outcomes") if row.get("status") == "done"}
    kinds = {
        row.get("node"): kind_of(row["facts"])
        for row in _rows(folder, "facts")
        if row.get("when") == "before" and isinstance(row.get("facts"), dict)
    }
    installing = {
        (row.get("node"), row.get("role"))
        for row in _rows(folder, "drifts")
        if row.get("when") == "before" and str(row.get("fact")).startswith("package.")
    }
    begun: dict[str, list[float]] = {}
    for row in _rows(folder, "reboots"):
        moment = _moment(row.get("time"))
        if moment is not None:
            begun.setdefault(str(row.get("node")), []).append(moment)
    took: dict[Key, list[float]] = {}
    for (node, what), seconds in _spent(_rows(folder, "events"), begun).items():
        if node in done and node in kinds and 0 <= seconds <= LONGEST:
            took.setdefault((what, kinds[node], (node, what) in installing), []).append(seconds)
    return {key: median(seconds) for key, seconds in took.items()}


def _rows(folder: RunFolder, name: str) -> Iterator[dict[str, Any]]:
    return itertools.islice(folder.read(name), LINES)


def _spent(
    events: Iterable[Mapping[str, Any]], begun: Mapping[str, Sequence[float]]
) -> dict[tuple[str, str], float]:
    """(node, role or REBOOT) → seconds. A node's first event only starts its clock. A reboot starts when the
    run says so (`begun`, by node), else after the last role of the wave."""
    spent: dict[tuple[str, str], float] = {}
    before: dict[str, float] = {}
    roles_ended = 0.0
    rebooting: dict[str, float] = {}  # node → when its reboot began

    def add(node: str, what: str, seconds: float) -> None:
        spent[node, what] = spent.get((node, what), 0.0) + (seconds if seconds >= 0 else LONGEST + 1)

    for event in events:
        node, role, now = str(event.get("node")), str(event.get("role") or ""), _moment(event.get("time"))
        if now is None:
            continue
        if role:
            if node in before:
                add(node, role, now - before[node])
            roles_ended = now
            rebooting.pop(node, None)
        elif "reboot" in str(event.get("task")).lower() and (roles_ended or node in begun):
            rebooting[node] = now
            add(node, REBOOT, now - max([t for t in begun.get(node, ()) if t <= now], default=roles_ended))
        elif node in rebooting and str(event.get("task")).startswith("Wait"):
            add(node, REBOOT, now - rebooting.pop(node))
        before[node] = now
    return spent


def _moment(text: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
