"""Builder of a node's order: what it runs by itself, from the profile and its observed hardware (pure).

The order says every program with its arguments and deadlines: the node needs nothing of ours to go on. What
another controller needs to judge what comes of it (`about`) travels with it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from provision import yamlfile
from provision.burnin.plan import Part
from provision.burnin.power import cost
from provision.burnin.profile import LOADS, Profile, Segment, about, steps_of_soak
from provision.checks import selection
from provision.checks.check import Command
from provision.paths import DATA
from provision.runs.fingerprint import Fingerprint
from provision.runs.node_facts import NodeFacts
from provision.validate import campaign, node_commands

FORMAT = 1
# Seconds in which a node looks who holds its GPUs, before each round. Without them its last step does not fit
# before the end of its turn, and is not begun.
_LOOK = 40.0
_NEEDS_RESET = frozenset({"reset GPU", "reboot", "power-cycle", "replace part"})


@dataclass(frozen=True)
class Step:
    """One check of a segment: its programs, about how long they take and at most how long."""

    check: str
    commands: tuple[Command, ...]
    about: float
    longest: float


def steps(segment: Segment, node: NodeFacts, options: Mapping[str, Any]) -> list[Step]:
    """The steps of one round of a segment; a check that has nothing to run on this node has none."""
    found = []
    if segment.kind == "soak":
        options = {**options, "burn_seconds": steps_of_soak(segment)[1]}
    for check in segment.checks if segment.kind in LOADS else ():
        commands = campaign.commands_for(check, node.check_node, options)
        if commands:
            load = sum(command.load for command in commands if not command.beside)
            longest = node_commands.longest(commands)
            seconds = load + 30 if load else min(cost(check), longest)
            found.append(Step(check, tuple(commands), seconds, longest))
    return found


def not_applying(profile: Profile, node: NodeFacts) -> dict[str, str]:
    """The checks of the profile that have nothing to run on this node, each with the segment that asks."""
    found: dict[str, str] = {}
    for segment in profile.segments:
        if segment.kind in LOADS:
            there = {step.check for step in steps(segment, node, {})}
            found |= {check: segment.name for check in segment.checks if check not in there}
    return found


def seconds(profile: Profile, node: NodeFacts) -> tuple[float, float]:
    """(about how many seconds the profile takes on this node, at most how many)."""
    nearly = most = 0.0
    for segment in profile.segments:
        mine = steps(segment, node, {})
        rounds = rounds_of(segment)
        if rounds is None:
            minutes = (segment.minutes or 0.0) * 60
            nearly += minutes
            # A step begun in the last second runs to its end.
            most += minutes + max((step.longest for step in mine), default=0.0) + _LOOK
        else:
            nearly += rounds * sum(step.about for step in mine)
            most += rounds * (sum(step.longest for step in mine) + _LOOK)
    return nearly, most


def rounds_of(segment: Segment) -> int | None:
    """How often its checks are run; None when its minutes say how long it is."""
    if segment.kind == "soak":
        return steps_of_soak(segment)[0]
    return segment.repeat


def order(
    campaign_id: str,
    profile: Profile,
    node: NodeFacts,
    part: Part,
    known: Fingerprint | None,
    about_run: Mapping[str, Any],
    *,
    alone: bool = False,
) -> dict[str, Any]:
    """What the node is given, as order.json. `alone`: no other node burns in its turn."""
    segments: list[dict[str, Any]] = []
    for segment in profile.segments:
        mine = steps(segment, node, {})
        if segment.kind in LOADS and not mine:
            continue  # nothing of it applies to this node
        if segment.kind == "fleet" and alone:
            continue
        rounds = rounds_of(segment)
        segments.append(
            {
                "name": segment.name,
                "kind": segment.kind,
                "repeat": rounds,
                "minutes": segment.minutes if rounds is None else None,
                "start_after_s": None if segments else part.start,
                "steps": [_plain(step) for step in mine],
            }
        )
    return {
        "format": FORMAT,
        "campaign": campaign_id,
        "node": node.node,
        "sample_seconds": profile.sample_seconds,
        "sampler": {},
        "abort": {
            "gpu_celsius": profile.abort.gpu_celsius,
            "xids": _xids(profile.abort.xids),
            "failed_steps": profile.abort.failed_steps,
        },
        "space_mib": profile.space_mib,
        "end_by_s": part.end_by,
        "segments": segments,
        "about": {
            **about_run,
            "profile": described(profile),
            "seen": _slim(node),
            "fingerprint": known.record() if known else None,
            "part": asdict(part),
        },
    }


def _plain(step: Step) -> dict[str, Any]:
    return {
        "check": step.check,
        "commands": [node_commands.plain(command) for command in step.commands],
        "load_seconds": sum(command.load for command in step.commands if not command.beside),
        "deadline": step.longest,
    }


def _xids(rule: Sequence[int] | str | None) -> list[int] | None:
    """The codes that end a node's burn-in; `fatal`: those after which a GPU is of no use until its reset."""
    if rule == "fatal":
        return list(fatal_xids())
    return None if rule is None else [int(code) for code in rule]


@functools.cache
def fatal_xids() -> tuple[int, ...]:
    """The Xids of provision/data/xid.yml that fail a GPU until it is reset, the node rebooted, or worse."""
    rows = yamlfile.load(DATA / "xid.yml")
    return tuple(
        sorted(code for code, row in rows.items() if row["level"] == "fail" and row["action"] in _NEEDS_RESET)
    )


def described(profile: Profile) -> dict[str, Any]:
    """The profile as JSON."""
    return {**asdict(profile), "source": str(profile.source)}


def _slim(node: NodeFacts) -> dict[str, Any]:
    """What was seen of the node, as far as its checks read it: the order must not grow with a node's
    packages."""
    facts = {
        name: value
        for name, value in node.facts.items()
        if name in selection.facts_for(selection.table()) or not name.startswith("package.")
    }
    return asdict(NodeFacts(node.node, facts, node.gpuprov_node, node.variables, problems=node.problems))


def plan_seconds(segment: Segment) -> float:
    """About how many seconds a segment takes on any node."""
    return about(segment, cost) * 60
