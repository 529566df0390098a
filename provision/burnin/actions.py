"""The actions of a burn-in: start, status, attach, stop, collect and resume."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from provision.burnin import acceptance, campaign, orders, results
from provision.burnin import fleet as between
from provision.burnin.campaign import Campaign, Looked
from provision.burnin.node_talk import Status, status
from provision.burnin.plan import Plan
from provision.burnin.profile import Profile
from provision.burnin.record import overall
from provision.burnin.results import Results
from provision.burnin.spool import Spool
from provision.checks.judge import Verdict
from provision.checks.on_node import packed_program
from provision.errors import ExitCode, RunFolderError, UsageError
from provision.events import BurninBegan, BurninPlanned, NodeBurns, NodeStopped, Note, OnEvent
from provision.fleet import Fleet
from provision.runs.store import RunFolder
from provision.up import hooks
from provision.validate import validation

_EVERY = 20.0  # seconds between two polls of `attach`


class Alone(Protocol):
    """Callable that locks `nodes` for this run; a lock of the burn-in `burnin` does not count."""

    def __call__(self, nodes: Collection[str], burnin: str = "") -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class BurninOptions:
    """Options of the actions. `every_node`: no --nodes was given."""

    forks: int = 50
    every_node: bool = True
    detach: bool = False
    thresholds: Path | None = None
    output: Path | None = None
    remove: bool = False


@dataclass(frozen=True)
class Outcome:
    """Outcome of an action."""

    run: str  # the burn-in's name
    code: ExitCode
    nodes: Sequence[Status] | None = None  # their state, if requested
    record: Path | None = None  # the record of acceptance, if collected
    summary: Sequence[str] = field(default=(), repr=False)  # its lines for the terminal


def start(
    fleet: Fleet,
    overrides: Mapping[str, Any],
    profile: Profile,
    looked: Looked,
    planned: Plan,
    unable: Mapping[str, str],
    alone: Alone,
    options: BurninOptions,
    on_event: OnEvent,
) -> Outcome:
    """Start a burn-in and, unless detached, attach. Raises LockedError if another run has a node."""
    hooks.load(fleet, overrides)  # refuses an unusable hook before any node is loaded
    arguments = {"profile": profile.name, "minutes": profile.minutes, "nodes": list(fleet.nodes)}
    with alone([part.node for part in planned.parts]):
        run, given = campaign.new(
            fleet, profile, looked, planned, unable, forks=options.forks, arguments=arguments
        )
        on_event(BurninPlanned(tuple(orders.lines(profile, planned, unable, looked.able))))
        refused = run.begin(given, packed_program.build("burnin"))
    for name, why in refused.items():
        on_event(Note(f"{name}: the burn-in did not start: {why}"))
    begun = [name for name in given if name not in refused]
    if not begun:
        run.folder.finish(ExitCode.INCOMPLETE)
        raise RunFolderError(
            f"the burn-in started on no node: {next(iter(refused.values()))}", "gpuprov burnin status latest"
        )
    between = any(segment.kind == "fleet" for segment in profile.segments) and len(begun) > 1
    on_event(BurninBegan(run.name, tuple(begun), len(fleet.nodes), between))
    if options.detach:
        return Outcome(run.name, ExitCode.INCOMPLETE if refused or unable else ExitCode.OK)
    return _attach(run, fleet, overrides, options, on_event)


def run(
    action: str,
    named: str,
    folder: RunFolder | None,
    fleet: Fleet,
    overrides: Mapping[str, Any],
    alone: Alone,
    options: BurninOptions,
    on_event: OnEvent,
) -> Outcome:
    """Run status, attach, stop, collect or resume for the burn-in in `folder`, or `named` on the nodes."""
    run, fleet = _found(named, folder, fleet, overrides, options)
    if action == "status":
        return _status(run)
    if action == "stop":
        return Outcome(run.name, _stop(run, on_event))
    if action == "resume":
        _resume(run, alone, on_event)
    if action in ("attach", "resume"):
        return _attach(run, fleet, overrides, options, on_event)
    return _collect(run, fleet, overrides, options, on_event)


def _found(
    named: str,
    folder: RunFolder | None,
    fleet: Fleet,
    overrides: Mapping[str, Any],
    options: BurninOptions,
) -> tuple[Campaign, Fleet]:
    """Return the burn-in and its nodes, from this machine's run folders or else from the nodes."""
    if folder is not None and not folder.meta().get("adopted"):
        names = [str(name) for name in folder.meta().get("nodes", ())]
        missing = [name for name in names if name not in fleet.nodes]
        if missing and options.every_node:
            raise UsageError(
                f"{missing[0]} is part of the burn-in, but not in {fleet.source}",
                "give the inventory that the burn-in was started with",
            )
        fleet = replace(fleet, nodes={name: fleet.nodes[name] for name in names if name in fleet.nodes})
        variables = validation.plain_variables(fleet, overrides)
        return Campaign(folder, variables, options.forks, fleet.vault_password_files), fleet
    variables = validation.plain_variables(fleet, overrides)
    name = named if folder is None else folder.path.name
    adopted, _ = campaign.ask_nodes(name, variables, fleet, options.forks)
    members = adopted.folder.meta()["nodes"]
    return adopted, replace(fleet, nodes={name: fleet.nodes[name] for name in members})


def _burning(run: Campaign) -> list[str]:
    """Return the nodes that were started and are still in the inventory."""
    unable = run.folder.meta().get("not_burned_in") or {}
    return [name for name in run.folder.meta()["nodes"] if name in run.variables and name not in unable]


def _asked(run: Campaign) -> list[Status]:
    refused = {str(row.get("node")): str(row.get("refused") or "") for row in run.folder.read("begun")}
    answers = run.ask("status", _burning(run))
    return [status(answers[name], run.name, refused.get(name, "")) for name in _burning(run)]


def _status(run: Campaign) -> Outcome:
    statuses = _asked(run)
    over = all(one.over and not one.error for one in statuses)
    return Outcome(run.name, ExitCode.OK if over else ExitCode.INCOMPLETE, statuses)


def _stop(run: Campaign, on_event: OnEvent) -> ExitCode:
    answers = run.ask("stop", _burning(run))
    bad = False
    for name, answer in answers.items():
        left = answer.said.get("left")
        if answer.error:
            outcome = answer.trouble
        elif left:
            outcome = f"not stopped: {', '.join(map(str, left))[:300]}" if isinstance(left, list) else "?"
        elif answer.true("stopped"):
            outcome = "stopped" if answer.campaign else "has no burn-in"
        else:
            outcome = "did not stop"
        bad = bad or outcome not in ("stopped", "has no burn-in")
        on_event(NodeStopped(name, outcome))
    return ExitCode.INCOMPLETE if bad else ExitCode.OK


def _resume(run: Campaign, alone: Alone, on_event: OnEvent) -> None:
    """Send the order again to nodes that stopped early."""
    orders = {str(row["node"]): row["order"] for row in run.folder.read("orders")}
    for name in _burning(run):
        orders.setdefault(name, Spool(run.folder, name).order())
    idle = [one.node for one in _asked(run) if one.over and not one.done]
    given = {name: orders[name] for name in idle if orders.get(name)}
    if not given:
        on_event(Note("every reachable node is burning in or done"))
        return
    with alone(given, run.name):
        refused = run.begin(given, packed_program.build("burnin"))
    for name in given:
        on_event(Note(f"{name}: {refused.get(name) or 'continues'}"))


def _attach(
    run: Campaign, fleet: Fleet, overrides: Mapping[str, Any], options: BurninOptions, on_event: OnEvent
) -> Outcome:
    """Watch until every node is done; an interrupt only ends the watching."""
    last: dict[str, str] = {}
    try:
        while True:
            statuses = _asked(run)
            for one in statuses:
                if last.get(one.node) != one.words:
                    on_event(NodeBurns(one.node, one.words))
                    last[one.node] = one.words
            if all(one.over for one in statuses):
                break
            if _between(run, statuses, options, on_event):
                continue
            if _too_many(run, statuses):
                why = "the limit failing_share ends the burn-in on all nodes"
                on_event(Note(f"too many nodes have failed: {why}"))
                _stop(run, on_event)
                break
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        on_event(Note(f"\ngpuprov: the burn-in continues\n  → gpuprov burnin attach {run.name}"))
        return Outcome(run.name, ExitCode.INTERRUPTED)
    return _collect(run, fleet, overrides, options, on_event)


def _between(run: Campaign, found: list[Status], options: BurninOptions, on_event: OnEvent) -> bool:
    """Measure the segments between nodes in which nodes wait; return whether there were any."""
    meta = run.folder.meta()
    expected = between.segments(meta.get("profile"))
    if not expected and any(one.holding for one in found):
        # It was started elsewhere; the order has the segments.
        run.fetch([one.node for one in found if one.holding], lambda line: on_event(Note(line)))
    seen = results.looked(run)
    expected = expected or results.segments_between(run)
    turns = {
        str(row["node"]): int(row["order"]["about"]["part"]["turn"]) for row in run.folder.read("orders")
    }
    waiting = between.ready(found, turns, expected)
    for segment, nodes in waiting.items():
        able = {name: seen[name] for name in nodes if not seen[name].error}
        between.measure(run, segment, expected[segment].checks, able, on_event, options.forks)
    return bool(waiting)


def _too_many(run: Campaign, found: list[Status]) -> bool:
    """Return whether the share of failing nodes exceeds the profile's limit."""
    profile = run.folder.meta().get("profile") or {}
    limit = float((profile.get("abort") or {}).get("failing_share") or 0.0)
    return limit > 0 and sum(one.bad for one in found) > limit * len(found)


def _collect(
    run: Campaign, fleet: Fleet, overrides: Mapping[str, Any], options: BurninOptions, on_event: OnEvent
) -> Outcome:
    """Fetch, judge, write the record, and drain failed nodes."""
    names = _burning(run)
    run.fetch(names, lambda line: on_event(Note(line)))
    collected = results.results(run, options.thresholds)
    files = acceptance.write(run, collected)
    results.publish(run, collected)
    troubles = acceptance.drain(run, collected, fleet, overrides)
    drained = sorted(
        {str(n) for row in run.folder.read("hooks") for n in row.get("nodes") or ()} - set(troubles)
    )
    for name, why in troubles.items():
        on_event(Note(f"{name}: {why}"))
    code = _code(collected)
    if collected.over:
        run.folder.note(counts={verdict.value: count for verdict, count in collected.health.counts.items()})
        run.folder.finish(code)
    if options.output:
        _copy(files, options.output)
    if options.remove and collected.over:
        run.ask("remove", [name for name in names if not run.silence.get(name)])
    summary = [*acceptance.summary(run, collected, drained), "", f"record      {files['record']}"]
    return Outcome(run.name, code, record=run.folder.path / acceptance.RECORD, summary=summary)


def _code(found: Results) -> ExitCode:
    worst = overall(found)
    if worst is Verdict.FAIL:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if worst is Verdict.ERROR or not found.over else ExitCode.OK


def _copy(files: Mapping[str, Path], target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        for file in {files["record"], files["record"].with_suffix(".json")}:
            shutil.copyfile(file, target / file.name)
    except OSError as error:
        raise RunFolderError(
            f"{target} cannot be written: {error.strerror}", "name another --output"
        ) from None
