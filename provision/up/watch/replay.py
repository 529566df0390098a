"""Dry run of the watch: its decisions over a recorded history of health (pure).

The history has no scheduler states, so all nodes are assumed to be in one pool, with the spares drained and
validated; a silent node is not assumed to be down.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.errors import UsageError
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.schedulers import Holder, Scheduled
from provision.text import iso
from provision.up.watch.decide import Telling, View, choose, decide
from provision.up.watch.incidents import Incident, Step, moved
from provision.up.watch.policy import Policy
from provision.up.watch.roles import Role
from provision.up.watch.seen import Seen, recorded

TICK = 60.0  # seconds between two decisions without changes, since limits expire with time
POOL = "the fleet"
_DAY = 86400.0
_BEGIN = '{"at": '  # start of each line (seen.Seen.row)


def history(paths: Sequence[Path]) -> list[Seen]:
    """Return the rows of these files, by time. Raises UsageError naming file and line."""
    rows: list[Seen] = []
    for path in paths:
        try:
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", "name a history.jsonl of gpuprov watch") from None
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
                rows.append(recorded(row if isinstance(row, dict) else {}))
            except ValueError as error:
                if line.startswith(_BEGIN) and isinstance(error, json.JSONDecodeError):
                    continue  # a watch was killed while writing this line, or its disk was full
                raise UsageError(
                    f"{path}, line {number}: not a line of a health history: {error}", "remove it"
                ) from None
    return sorted(rows, key=lambda one: one.since)


def last_day(rows: Sequence[Seen]) -> list[Seen]:
    """Return the rows of the last recorded 24 hours, and the state of each node before them."""
    start = rows[-1].since - _DAY if rows else 0.0
    before = {one.node: replace(one, since=min(one.since, start)) for one in rows if one.since <= start}
    return [*before.values(), *(one for one in rows if one.since > start)]


@dataclass
class Replay:
    """One pass over a history. `lines` yields the simulated actions, one per line."""

    fleet: Fleet
    policy: Policy
    seen: dict[str, Seen] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    telling: Telling = field(default_factory=Telling)
    breaker: str | None = None  # once open it stays open: a replay has no person to close it

    def lines(self, rows: Iterable[Seen]) -> Iterator[str]:
        """Process the rows, which are sorted by time."""
        others = set[str]()
        at = 0.0
        for since, group in itertools.groupby(rows, key=lambda row: row.since):
            while at and at + TICK < since:
                at += TICK
                yield from self._at(at)
            at = since
            for row in group:
                if row.node in self.fleet.nodes:
                    self.seen[row.node] = row
                else:
                    others.add(row.node)
            yield from self._at(at)
        if others:
            yield f"not in the inventory: {fold(others, 200)}"

    def _view(self, at: float) -> View:
        view = View(at, self.fleet, self.seen, {}, self.incidents, dict.fromkeys(self.fleet.nodes, at))
        words = {}
        for name, role in view.roles.items():
            waits = role is not Role.SERVICE
            holder = Holder.US if waits else Holder.NOBODY
            words[name] = Scheduled(name, "", "", holder, takes_jobs=not waits, pools=(POOL,))
        return replace(view, scheduled=words, breaker=self.breaker)

    def _at(self, at: float) -> Iterator[str]:
        decision = decide(self._view(at), self.policy)
        self.breaker = self.breaker or decision.common or None
        for one in self.telling.news(decision.held, at):
            yield f"{iso(at)}  leave    {fold(one.nodes, 200)}: {one.why}"
        for incident in decision.opened:
            yield f"{iso(at)}  drain    {incident.node}: {incident.cause}"
            step = Step.REPAIR if incident.was_spare else Step.CHOOSE
            self.incidents.append(moved(incident, step, drained=at))
        for number, incident in enumerate(self.incidents):
            if incident.step is not Step.CHOOSE:
                continue
            spare, why = choose(incident, self._view(at), self.policy)
            if spare:
                self.incidents[number] = moved(incident, Step.REPAIR, spare=spare, placed=at)
                yield f"{iso(at)}  replace  {incident.node} by {spare}"
            elif not incident.note:
                each = "; ".join(f"{name}: {problem}" for name, problem in why.items())
                self.incidents[number] = replace(incident, note="no spare")
                yield f"{iso(at)}  no spare {incident.node}: {each or 'there is none'}"
