"""Measuring pairs of nodes on the nodes: round after round, all pairs of a round at once, until nobody is
left to suspect. Each round is kept before the next is chosen; a run that was ended goes on after it.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provision import campaign, fleet_pairs, node_commands, paths, runner
from provision.checks.check import Command, Output
from provision.errors import GpuprovError, ParseError
from provision.pairs import suspects, write_bw
from provision.pairs.pairing import Pair, Topology, exhaustive, exhaustive_rounds
from provision.pairs.results import Outcome, Result
from provision.pairs.write_bw import ID as ID
from provision.seen import Seen
from provision.store import RunFolder
from provision.terminal import Progress
from provision.wording import many

if TYPE_CHECKING:
    from provision.validation import Settings

_AGAIN = 2  # rounds after every pair was measured, for those that were bad
_ADDRESS = "gpuprov_address"  # the inventory variable


@dataclass
class _Round:
    """One round: who runs what, and what each pair should reach on each rail."""

    pairs: Sequence[Pair]
    number: int
    commands: dict[str, list[Command]] = field(default_factory=dict)
    asked: dict[Pair, list[tuple[str, float]]] = field(default_factory=dict)


def measure(
    folder: RunFolder,
    able: Mapping[str, Seen],
    variables: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    progress: Progress,
) -> None:
    """Measure pairs of these nodes, as far as they have RDMA ports that are up. Raises InventoryError for a
    rack that is none, and KeyboardInterrupt with all rounds but the last kept."""
    members: list[str] = []
    left_out: dict[str, str] = {}
    for name, node in able.items():
        try:
            if write_bw.rails(node.check_node):
                members.append(name)
            else:
                left_out[name] = fleet_pairs.NO_PORT
        except ParseError as error:
            left_out[name] = f"its RDMA ports are not known: {error.what}"
    progress.step(f"{ID}: which ib_write_bw {many(len(members), 'node')} have")
    with_ports = {name: able[name] for name in members}
    versions, without = _versions(folder, with_ports, variables, settings)
    members = [name for name in members if name not in without]
    left_out |= without
    fleet = fleet_pairs.topology(members, able)
    noted = {"nodes": members, "left_out": left_out, "versions": versions}
    folder.note(pairs=noted)
    results = fleet_pairs.kept(folder)
    most = suspects.MOST_ROUNDS
    if settings.every_pair:
        most = exhaustive_rounds(len(members)) + _AGAIN
    while pairs := _next(fleet, results, settings, most):
        began, number = time.monotonic(), _done(results) + 1
        progress.step(f"{ID}: round {number} of {most} at most, {many(len(pairs), 'pair')}")
        found = _measured(folder, _planned(fleet, pairs, number, able, variables), variables, settings)
        folder.note(pairs={**noted, "round_seconds": round(time.monotonic() - began, 1)})
        fleet_pairs.keep(folder, found)
        results += found
    for name in able:
        progress.done(f"{name}: {ID}: {'measured' if name in members else left_out[name]}")


def _done(results: Sequence[Result]) -> int:
    """How many rounds are measured."""
    return max((result.round for result in results), default=0)


def _next(fleet: Topology, results: Sequence[Result], settings: Settings, most: int) -> tuple[Pair, ...]:
    """The pairs of the next round; none when all is known. After every pair come those that were bad once."""
    every = exhaustive(fleet.nodes) if settings.every_pair else iter(())
    planned = next(itertools.islice(every, _done(results), None), None)
    return planned or suspects.next_round(fleet, results, most=most)


def _planned(
    fleet: Topology,
    pairs: Sequence[Pair],
    number: int,
    able: Mapping[str, Seen],
    variables: Mapping[str, Mapping[str, Any]],
) -> _Round:
    planned = _Round(pairs, number)
    for pair in pairs:
        host, guest = pair
        oversubscription = max(_oversubscription(variables[node]) for node in pair)  # both uplinks are used
        server, client = able[host].check_node, able[guest].check_node
        planned.commands[host], planned.commands[guest] = write_bw.commands(
            server, client, _address(host, variables[host])
        )
        planned.asked[pair] = [
            (ports[0].name, write_bw.expected(fleet, pair, ports, oversubscription))
            for ports in write_bw.shared(server, client)
        ]
    return planned


def _address(name: str, variables: Mapping[str, Any]) -> str:
    """Where other nodes reach this one."""
    stated = (variables.get(key) for key in (_ADDRESS, "ansible_host", "ansible_ssh_host"))
    return str(next(filter(None, stated), name))


def _oversubscription(variables: Mapping[str, Any]) -> float:
    stated = variables.get(write_bw.OVERSUBSCRIBED, 1)
    return float(stated) if isinstance(stated, int | float) and stated >= 1 else 1.0


def _measured(
    folder: RunFolder,
    planned: _Round,
    variables: Mapping[str, Mapping[str, Any]],
    settings: Settings,
) -> list[Result]:
    """Run one round: server and client of each pair side by side, so that they start together."""
    todo = {node: planned.commands[node] for pair in planned.pairs for node in pair}
    outputs, silent = _run(folder, f"{ID}.round{planned.number}", todo, variables, settings)
    return [result for pair in planned.pairs for result in _results(planned, pair, outputs, silent)]


def _versions(
    folder: RunFolder,
    able: Mapping[str, Seen],
    variables: Mapping[str, Mapping[str, Any]],
    settings: Settings,
) -> tuple[dict[str, str], dict[str, str]]:
    """The version of each node's program ("" if it does not say), and why a node has none."""
    todo = {name: [write_bw.version_command(node.check_node)] for name, node in able.items()}
    outputs, missing = _run(folder, f"{ID}.version", todo, variables, settings)
    found = {}
    for name, said in outputs.items():
        if name in missing:
            continue
        output = next(iter(said.values()))
        if output.not_started:
            missing[name] = f"{output.not_started}: the role rdma installs it, with perftest"
        else:
            found[name] = write_bw.version(output)
    return found, missing


def _run(
    folder: RunFolder,
    label: str,
    commands: Mapping[str, Sequence[Command]],
    variables: Mapping[str, Mapping[str, Any]],
    settings: Settings,
) -> tuple[dict[str, dict[str, Output]], dict[str, str]]:
    """Run these programs on all nodes at once and keep what comes back as `label`: the outputs by node and
    name, and why a node gave none."""
    todo = {
        node: node_commands.play_variables(variables[node], campaign.within(asked, settings.timeout))
        for node, asked in commands.items()
        if asked
    }
    outputs: dict[str, dict[str, Output]] = {}
    silent: dict[str, str] = {}

    def on_event(event: runner.Event) -> None:
        answer = event.result.get("gpuprov")
        if event.kind in ("ok", "changed") and isinstance(answer, Mapping):
            asked = [command.name for command in commands[event.node]]
            raw = campaign.raw_from_answer(event.node, label, answer, "", asked)
            campaign.keep_raw(folder, raw)
            outputs[event.node] = {output.name: output for output in raw.outputs}
            if raw.error:
                silent[event.node] = raw.error

    if not todo:
        return outputs, silent
    limit = max(one["gpuprov_task_timeout"] for one in todo.values())
    forks = max(2, settings.forks - settings.forks % 2)  # a server never waits for a client in the queue
    try:
        outcomes = runner.run_playbook(
            paths.PLAYBOOKS / "validate.yml",
            todo,
            on_event=on_event,
            forks=forks,
            timeout=math.ceil(len(todo) / forks) * (limit + 60) + 60,
            vault_password_files=settings.vault_password_files,
        )
    except GpuprovError as error:
        outcomes = {name: runner.Outcome(name, "failed", message=error.what) for name in todo}
    for node in todo:
        if node not in outputs:
            silent[node] = outcomes[node].message if node in outcomes else "nothing was run on it"
    return outputs, silent


def _results(
    planned: _Round, pair: Pair, outputs: Mapping[str, dict[str, Output]], silent: Mapping[str, str]
) -> list[Result]:
    asked = planned.asked[pair]
    if not asked:
        return [Result(pair, planned.number, Outcome.NOT_RUN, said="they have no rail in common")]
    mute = [node for node in pair if node in silent]
    if mute:
        end = mute[0] if len(mute) == 1 else ""
        said = "; ".join(f"{node}: {silent[node]}" for node in mute)
        return [
            Result(pair, planned.number, Outcome.ERROR, None, rail, "Gb/s", least, end, said=said)
            for rail, least in asked
        ]
    host, guest = pair
    return write_bw.results(pair, planned.number, asked, outputs.get(host, {}), outputs.get(guest, {}))
