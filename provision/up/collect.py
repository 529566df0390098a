"""Events of workers of a killed controller, collected into that run's journal on resume.

A unit that still runs is waited for, because its nodes must not be touched before it ends. Nodes are then
observed as in every run, so nothing that already holds is repeated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.ansible.events import Tally
from provision.remote.reach import fleet_lock
from provision.remote.reach.fleet_lock import FleetLock, LockedError
from provision.remote.workers import leftovers, mesh, register, sealed, units
from provision.remote.workers.control import Control, ControlError, labelled
from provision.remote.workers.register import Record
from provision.runs.store import RunFolder, runs_home
from provision.secrets_mask import secrets_of
from provision.text import many
from provision.up.executor import Journal

_OF_UP = ("up.yml", "remove.yml", "reboot.yml")  # their events are journaled; others are run again


@dataclass
class Collected:
    """One unit of an earlier run, with its events until they are in that run's journal."""

    run: RunFolder
    record: Record
    events: list[Mapping[str, Any]] = field(default_factory=list)


def folder_of(run: RunFolder) -> Path:
    return run.path / register.FOLDER


def gather(runs: Sequence[RunFolder], say: Callable[[str], None]) -> list[Collected]:
    """Wait for the units of these ended runs and read their events; end units no longer needed."""
    collected: list[Collected] = []
    for run in runs:
        for record, _ in register.records(folder_of(run)):
            if record.what in _OF_UP:
                collected += _gathered(run, record, say)
            else:
                leftovers.remove(folder_of(run), record)
        register.clear(folder_of(run))
    return collected


def _gathered(run: RunFolder, record: Record, say: Callable[[str], None]) -> Iterator[Collected]:
    where = f"worker {record.worker}, {fold(record.nodes)}"
    one = Collected(run, record)
    control = Control(record.socket)
    try:
        unit = record.unit or labelled(control.units(), record.label)
        state = control.unit(unit) if unit else None
        if unit is None or state is None:  # it was never started
            leftovers.remove(folder_of(run), record)
            return
        if state.get("StateName") == "Running":
            say(f"{where}: {record.what} of the earlier run still goes on there; waiting for it")
        stream = units.reader(record, sealed.kept(record.label), one.events.append)
        route = mesh.Mesh(record.socket, "").has_route
        route_to_unit = units.Way(control, "", "", record.worker, "", route=lambda: route(record.worker))
        started = Record(**{**vars(record), "unit": unit})
        ended = units.Unit(route_to_unit, None, started, stream, lambda: False).follow()
    except sealed.MissingKeyError:
        say(f"{where}: what it did cannot be read: this machine was started anew; its work is ended")
        leftovers.remove(folder_of(run), record)
        return
    except ControlError as error:
        say(f"{where}: what it did cannot be collected: {error.what}")
        return
    if ended.end is units.End.LEFT and ended.error is not None:
        say(f"{where}: {ended.error.what}")
        return
    how = "it came to its end" if ended.error is None else ended.error.what
    count = many(len(one.events), "event")
    say(f"{where}: collected what the earlier run's {record.what} did: {count} ({how})")
    yield one


def keep(
    collected: Sequence[Collected], fleet: Fleet, vaulted: frozenset[str], secrets: tuple[str, ...]
) -> None:
    """Append the collected events to the journals of their runs without duplicates; remove the units."""
    for one in collected:
        _journal(one, fleet, vaulted, Journal(one.run, secrets))
        leftovers.remove(folder_of(one.run), one.record)
        register.clear(folder_of(one.run))


def _journal(one: Collected, fleet: Fleet, vaulted: frozenset[str], journal: Journal) -> None:
    label = one.record.label
    known = [str(row.get("unit", "")).rpartition(":") for row in one.run.read("events")]
    last = max((int(number) for name, _, number in known if name == label and number.isdigit()), default=0)
    vault = {"secret": sorted(vaulted)}
    hosts = {name: fleet.nodes[name].variables if name in fleet.nodes else {} for name in one.record.nodes}
    tally = Tally({name: secrets_of(variables, vault) for name, variables in hosts.items()})
    for raw in one.events:
        event = tally.take(raw)
        if event is not None and raw["counter"] > last:
            journal.event(event)


def unlock(collected: Sequence[Collected], fleet: Fleet, busy: Collection[str], lock: FleetLock) -> None:
    """Release the killed run's locks on nodes of its units that need no more work.

    They would last for half an hour. Locks of `busy` nodes are taken over with their wave."""
    done = [node for one in collected for node in one.record.nodes]
    nodes = [node for node in done if node in fleet.nodes and node not in busy]
    if nodes:
        with contextlib.suppress(LockedError), fleet_lock.held(lock, nodes, say=lambda _: None):
            """Taken over, hence released at the end."""


def remove_overdue(besides: Sequence[RunFolder]) -> None:
    """Remove the units of killed runs that were never resumed, once their deadline has passed."""
    spared = {run.path.resolve() for run in besides}
    for folder in runs_home().glob(f"*/{register.FOLDER}"):
        if folder.parent.resolve() in spared:
            continue
        for record, alive in register.records(folder):
            if not alive and time.time() > record.deadline:
                leftovers.remove(folder, record)
        register.clear(folder)
