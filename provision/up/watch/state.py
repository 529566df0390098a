"""The past and present work of the watch, for people and for programs (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import __version__
from provision.desired import inventory
from provision.fleet import Fleet
from provision.node_names import fold
from provision.text import iso, spelled
from provision.up.watch import breaker
from provision.up.watch.incidents import FORMAT, Incident, Step
from provision.up.watch.roles import Role, roles


def document(
    fleet: Fleet, incidents: Sequence[Incident], validated: Mapping[str, Mapping[str, Any]], at: float
) -> dict[str, Any]:
    """Return the state as plain values; times are ISO 8601 UTC, ages seconds."""
    role = roles(fleet, incidents)
    return {
        "format": FORMAT,
        "gpuprov": __version__,
        "at": iso(at),
        "service": [name for name, one in role.items() if one is Role.SERVICE],
        "spares": [
            {"node": name, "validated": _age(validated.get(name), at), **_verdict(validated.get(name))}
            for name, one in role.items()
            if one is Role.SPARE
        ],
        "repair": [name for name, one in role.items() if one is Role.REPAIR],
        "incidents": [_incident(one, next_command(one, incidents, fleet)) for one in incidents],
    }


def next_command(one: Incident, incidents: Sequence[Incident], fleet: Fleet) -> str:
    """Return a person's next command for an incident, or ""; NODE stands for a node to become a spare."""
    if one.step is Step.CHOOSE and one.note:  # it waits for a spare
        repaired = [other for other in incidents if other.step is Step.REPAIR and other.holds_node]
        if not repaired:
            return f"gpuprov watch spare {shlex.quote(str(fleet.source))} --nodes NODE"
        one = repaired[0]
    if one.step is Step.REPAIR and one.holds_node:
        return f"gpuprov return {shlex.quote(one.node)} {inventory.arguments(fleet)}"
    if one.is_open and one.note:
        return f"gpuprov status {inventory.arguments(fleet, [one.spare or one.node])}"
    return ""


def _incident(one: Incident, command: str) -> dict[str, Any]:
    times = {name: getattr(one, name) for name in ("opened", "drained", "placed", "closed", "returned")}
    words = ("id", "node", "cause", "action", "device", "serial", "spare", "note", "was_spare")
    return {
        **{name: getattr(one, name) for name in words},
        "step": one.step.value,
        "open": one.is_open,
        **{name: None if at is None else iso(at) for name, at in times.items()},
        "returning": dict(one.returning),
        "next": command,
    }


def _age(row: Mapping[str, Any] | None, at: float) -> int | None:
    known = row.get("at") if row else None
    return int(at - known) if isinstance(known, int | float) else None


def _verdict(row: Mapping[str, Any] | None) -> dict[str, str]:
    return {
        "verdict": str(row.get("verdict") or "") if row else "",
        "run": str(row.get("run") or "") if row else "",
    }


def text(found: Mapping[str, Any], place: Path, watch: str = "") -> str:
    """Render the state as text, tasks for people first. `watch`: a line about the watch itself."""
    return "".join(f"{line}\n" for line in _lines(found, place, watch))


def _lines(found: Mapping[str, Any], place: Path, watch: str) -> Iterator[str]:
    incidents = found["incidents"]
    waiting = [one for one in incidents if one["open"]]
    repair = [one for one in incidents if one["step"] == "repair" and one["returned"] is None]
    counts = {name: len(found[name]) for name in ("service", "spares", "repair")}
    yield f"in service: {counts['service']:,} · spares: {counts['spares']:,} · repair: {counts['repair']:,}"
    if watch:
        yield watch
    if found.get("follows"):
        yield f"! it follows {found['follows']}, and does nothing"
    yield from _next(found)
    if breaker.KIND in found.get("watch", {}).get("held", ()):
        yield "! the breaker of all drains is open"
    yield from (f"! {why}" for why in found.get("damaged", {}).values())
    for one in waiting:
        spare = f" by {one['spare']}" if one["spare"] else ""
        note = f": {one['note']}" if one["note"] else ""
        yield f"! {one['node']}{spare}  {one['step']}{note}"
        yield f"    since {one['opened']}: {one['cause']} ({one['id']})"
        yield from _next(one)
    for one in repair:
        by = f", {one['spare']} took its place at {one['placed']}" if one["placed"] else ""
        yield f"✗ {one['node']}  {one['cause']} → {one['action']}"
        yield f"    since {one['opened']}{by} ({one['id']})"
        yield from _next(one)
    for spare in found["spares"]:
        age = spare["validated"]
        when = "not validated yet" if age is None else f"validated {spelled(age)} ago ({spare['verdict']})"
        yield f"  {spare['node']}  spare, {when}"
    done = [one for one in incidents if one["returned"] is not None]
    if done:
        yield f"returned: {fold(one['node'] for one in done)}"
    yield f"files: {place}"


def _next(one: Mapping[str, Any]) -> Iterator[str]:
    if one.get("next"):
        yield f"    next: {one['next']}"
