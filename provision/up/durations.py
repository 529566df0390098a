"""Durations of roles and reboots, learnt from the run folders of earlier `up` runs.

The time between two events of a node belongs to the role of the later one. Only nodes that ended well count.
A role takes minutes to install packages and seconds to change a setting, so these are learnt separately. The
median over the nodes of a run, then over recent runs, ignores a slow mirror or a hanging node. Results are
stored next to the events (durations.json), so that history is read only once. Damaged, foreign or newer data
is skipped: it costs accuracy, never the plan."""

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

RUNS = 20  # recent runs that are read
LINES = 200_000  # per file of a run; reading takes about a second
LONGEST = 6 * 3600.0  # seconds; a longer duration means that a clock was set
REBOOT = "reboot"
FORMAT = 1
KEPT = "durations.json"

# (role or REBOOT, kind of machine, whether packages were installed) → seconds
Key = tuple[str, str, bool]


@dataclass(frozen=True)
class Expected:
    """An expected duration in minutes. `runs`: number of runs it was learnt from, 0 for an estimate."""

    minutes: float
    runs: int = 0


@dataclass(frozen=True)
class Minutes:
    """Expected durations: from this inventory's runs, else other runs, else data/minutes.yml."""

    own: Mapping[Key, tuple[float, ...]] = field(default_factory=dict)
    others: Mapping[Key, tuple[float, ...]] = field(default_factory=dict)

    def role(self, role: str, kind: str, packages: bool) -> Expected:
        """Return the time of one role on one node of a kind; `packages`: whether it installs any."""
        table = _table()
        bare = float(table["roles"].get(role, table["other"]))
        return self._learnt((role, kind, packages)) or Expected(
            bare if packages else min(bare, float(table["settings"]))
        )

    def reboot(self, kind: str) -> Expected:
        """Return the time of one reboot, until the node answers again and its services have started."""
        return self._learnt((REBOOT, kind, False)) or Expected(float(_table()["reboot"]))

    def _learnt(self, key: Key) -> Expected | None:
        seconds = self.own.get(key) or self.others.get(key)
        return Expected(median(seconds) / 60, len(seconds)) if seconds else None


@functools.cache
def _table() -> Mapping[str, Any]:
    return yamlfile.load_mapping(paths.DATA / "minutes.yml")


def kind_of(facts: Mapping[str, Any]) -> str:
    """Return the kind of machine that durations depend on, as in `h100-sxm on debian 13`."""
    words = [facts.get("gpu.sku") or "unknown GPU", "on", facts.get("os.id"), facts.get("os.version_id")]
    return " ".join(word for word in words if isinstance(word, str))


def learn(inventory: str = "", runs: Path | None = None) -> Minutes:
    """Learn durations from the latest `up` runs below `runs` (default: the runs folder).

    Never raises for their content."""
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
    """Return seconds by key, as the median over the nodes of one run.

    Empty for a run that is not over, was a dry run (--check) or removed roles."""
    options = meta.get("arguments") or {}
    if meta.get("finished") is None or options.get("check") or options.get("remove"):
        return {}
    kept = _kept(folder)
    if kept is None:
        kept = derive(folder)
        rows = [[*key, round(seconds, 1)] for key, seconds in kept.items()]
        with contextlib.suppress(OSError):  # a folder owned by another user is read again next time
            folder.write_json(KEPT, {"format": FORMAT, "durations": rows})
    return kept


def _kept(folder: RunFolder) -> dict[Key, float] | None:
    """Return the durations stored with this run, or None if there are none this version can read."""
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
    """Derive durations from a run's records: events.jsonl with outcomes, first facts and first drifts.

    Raises RunFolderError if a file is damaged before its end."""
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
    """Return (node, role or REBOOT) → seconds; a node's first event only starts its clock.

    A reboot starts when the run recorded it (`begun`, by node), else after the last role of the wave."""
    spent: dict[tuple[str, str], float] = {}
    before: dict[str, float] = {}
    roles_ended = 0.0
    rebooting: dict[str, float] = {}  # node → start of its reboot

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
