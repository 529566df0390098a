"""The actions of gpuprov burnin: start, status, attach, stop, collect, and --resume."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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
from provision.errors import ExitCode, RunFolderError, UsageError
from provision.events import OnEvent
from provision.fleet import Fleet
from provision.remote import node_program
from provision.runs.store import RunFolder
from provision.terminal import printable
from provision.text import many
from provision.up import hooks
from provision.validate import validation

_EVERY = 20.0  # seconds between two looks of `attach`


class Alone(Protocol):
    """Locks `nodes` for this run; a lock held by the burn-in of that name does not count."""

    def __call__(self, nodes: Collection[str], burnin: str = "") -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class BurninOptions:
    """The options of the actions. `every_node`: no --nodes was given."""

    forks: int = 50
    every_node: bool = True
    detach: bool = False
    json: bool = False
    thresholds: Path | None = None
    output: Path | None = None
    remove: bool = False


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
) -> ExitCode:
    """Begin a burn-in; unless detached, stay and watch. Raises LockedError when another run has a node."""
    hooks.load(fleet, overrides)  # one that cannot be called is refused before a node is loaded
    arguments = {"profile": profile.name, "minutes": profile.minutes, "nodes": list(fleet.nodes)}
    with alone([part.node for part in planned.parts]):
        run, given = campaign.new(
            fleet, profile, looked, planned, unable, forks=options.forks, arguments=arguments
        )
        _say(orders.lines(profile, planned, unable, looked.able))
        refused = run.begin(given, node_program.burnin_program())
    for name, why in refused.items():
        sys.stderr.write(f"{name}: the burn-in did not start: {why}\n")
    begun = [name for name in given if name not in refused]
    if not begun:
        run.folder.finish(ExitCode.INCOMPLETE)
        raise RunFolderError(
            f"the burn-in started on no node: {next(iter(refused.values()))}", "gpuprov burnin status latest"
        )
    sys.stdout.write(f"\n{run.name}: {len(begun)} of {many(len(fleet.nodes), 'node')} burning in\n")
    if options.detach:
        sys.stdout.write(f"  → gpuprov burnin status {run.name}\n  → gpuprov burnin collect {run.name}\n")
        if any(segment.kind == "fleet" for segment in profile.segments) and len(begun) > 1:
            sys.stdout.write(f"  → gpuprov burnin attach {run.name} (for the checks between nodes)\n")
        return ExitCode.INCOMPLETE if refused or unable else ExitCode.OK
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
) -> ExitCode:
    """One of status, attach, stop, collect and resume, of the burn-in in `folder`, or of that name on the
    nodes."""
    run, fleet = _found(named, folder, fleet, overrides, options)
    if action == "status":
        return _status(run, options)
    if action == "stop":
        return _stop(run)
    if action == "resume":
        _resume(run, alone)
    if action in ("attach", "resume"):
        return _attach(run, fleet, overrides, options, on_event)
    return _collect(run, fleet, overrides, options)


def _found(
    named: str,
    folder: RunFolder | None,
    fleet: Fleet,
    overrides: Mapping[str, Any],
    options: BurninOptions,
) -> tuple[Campaign, Fleet]:
    """The burn-in, and its nodes: of this machine's run folders, else what the nodes have."""
    if folder is not None and not folder.meta().get("adopted"):
        wanted = [str(name) for name in folder.meta().get("nodes", ())]
        missing = [name for name in wanted if name not in fleet.nodes]
        if missing and options.every_node:
            raise UsageError(
                f"{missing[0]} is part of the burn-in, but not in {fleet.source}",
                "give the inventory that the burn-in was started with",
            )
        fleet = replace(fleet, nodes={name: fleet.nodes[name] for name in wanted if name in fleet.nodes})
        variables = validation.plain_variables(fleet, overrides)
        return Campaign(folder, variables, options.forks, fleet.vault_password_files), fleet
    variables = validation.plain_variables(fleet, overrides)
    name = named if folder is None else folder.path.name
    known, _ = campaign.ask_nodes(name, variables, fleet, options.forks)
    there = known.folder.meta()["nodes"]
    return known, replace(fleet, nodes={name: fleet.nodes[name] for name in there})


def _burning(run: Campaign) -> list[str]:
    """The nodes that were begun, as far as they are in the inventory."""
    unable = run.folder.meta().get("not_burned_in") or {}
    return [name for name in run.folder.meta()["nodes"] if name in run.variables and name not in unable]


def _asked(run: Campaign) -> list[Status]:
    refused = {str(row.get("node")): str(row.get("refused") or "") for row in run.folder.read("begun")}
    answers = run.ask("status", _burning(run))
    return [status(answers[name], run.name, refused.get(name, "")) for name in _burning(run)]


def _status(run: Campaign, options: BurninOptions) -> ExitCode:
    found = _asked(run)
    if options.json:
        document = {"format": 1, "burnin": run.name, "nodes": [one.record() for one in found]}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        _say([run.name, *_table(found)])
    if any(one.error for one in found) or not all(one.over for one in found):
        return ExitCode.INCOMPLETE
    return ExitCode.OK


def _table(found: list[Status]) -> list[str]:
    width = max((len(one.node) for one in found), default=0)
    return [f"  {one.node:<{width}}  {one.words}" for one in found]


def _stop(run: Campaign) -> ExitCode:
    answers = run.ask("stop", _burning(run))
    bad = False
    for name, answer in answers.items():
        left = answer.said.get("left")
        if answer.error:
            said = answer.trouble
        elif left:
            said = f"not stopped: {', '.join(map(str, left))[:300]}" if isinstance(left, list) else "?"
        elif answer.true("stopped"):
            said = "stopped" if answer.campaign else "has no burn-in"
        else:
            said = "did not stop"
        bad = bad or said not in ("stopped", "has no burn-in")
        _say([f"  {name}  {said}"])
    _say([f"  → gpuprov burnin collect {run.name}"])
    return ExitCode.INCOMPLETE if bad else ExitCode.OK


def _resume(run: Campaign, alone: Alone) -> None:
    """Give their order once more to the nodes that do not burn."""
    orders = {str(row["node"]): row["order"] for row in run.folder.read("orders")}
    for name in _burning(run):
        orders.setdefault(name, Spool(run.folder, name).order())
    idle = [one.node for one in _asked(run) if one.over and not one.done]
    given = {name: orders[name] for name in idle if orders.get(name)}
    if not given:
        _say(["every reachable node is burning in or done"])
        return
    with alone(given, run.name):
        refused = run.begin(given, node_program.burnin_program())
    for name in given:
        _say([f"{name}: {refused.get(name) or 'continues'}"])


def _attach(
    run: Campaign, fleet: Fleet, overrides: Mapping[str, Any], options: BurninOptions, on_event: OnEvent
) -> ExitCode:
    """Watch until nothing more comes; an interrupt ends the watching only."""
    last: dict[str, str] = {}
    try:
        while True:
            found = _asked(run)
            for one in found:
                if last.get(one.node) != one.words:
                    _say([f"{time.strftime('%H:%M:%S')}  {one.node}  {one.words}"])
                    last[one.node] = one.words
            if all(one.over for one in found):
                break
            if _between(run, found, options, on_event):
                continue
            if _too_many(run, found):
                _say(["too many nodes have failed: the limit failing_share ends the burn-in on all nodes"])
                _stop(run)
                break
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        sys.stderr.write(f"\ngpuprov: the burn-in continues\n  → gpuprov burnin attach {run.name}\n")
        return ExitCode.INTERRUPTED
    return _collect(run, fleet, overrides, options)


def _between(run: Campaign, found: list[Status], options: BurninOptions, on_event: OnEvent) -> bool:
    """Measure the segments between nodes that nodes wait in; whether there were any."""
    meta = run.folder.meta()
    wanted = between.segments(meta.get("profile"))
    if not wanted and any(one.holding for one in found):
        run.fetch([one.node for one in found if one.holding], _complain)  # begun elsewhere: the order says it
    seen = results.looked(run)
    wanted = wanted or results.segments_between(run)
    turns = {
        str(row["node"]): int(row["order"]["about"]["part"]["turn"]) for row in run.folder.read("orders")
    }
    waiting = between.ready(found, turns, wanted)
    for segment, nodes in waiting.items():
        able = {name: seen[name] for name in nodes if not seen[name].error}
        between.measure(run, segment, wanted[segment].checks, able, on_event, options.forks)
    return bool(waiting)


def _too_many(run: Campaign, found: list[Status]) -> bool:
    """Whether the share of nodes in trouble is above what the profile allows."""
    profile = run.folder.meta().get("profile") or {}
    share = float((profile.get("abort") or {}).get("failing_share") or 0.0)
    return share > 0 and sum(one.bad for one in found) > share * len(found)


def _collect(run: Campaign, fleet: Fleet, overrides: Mapping[str, Any], options: BurninOptions) -> ExitCode:
    """Fetch, judge, write the record, drain what failed."""
    names = _burning(run)
    run.fetch(names, _complain)
    found = results.results(run, options.thresholds)
    files = acceptance.write(run, found)
    results.publish(run, found)
    troubles = acceptance.drain(run, found, fleet, overrides)
    drained = sorted(
        {str(n) for row in run.folder.read("hooks") for n in row.get("nodes") or ()} - set(troubles)
    )
    for name, why in troubles.items():
        sys.stderr.write(f"{name}: {why}\n")
    code = _code(found)
    if found.over:
        run.folder.note(counts={verdict.value: count for verdict, count in found.health.counts.items()})
        run.folder.finish(code)
    if options.output:
        _copy(files, options.output)
    if options.json:
        sys.stdout.write((run.folder.path / acceptance.RECORD).read_text("utf-8"))
    else:
        _say([*acceptance.summary(run, found, drained), "", f"record      {files['record']}"])
    if options.remove and found.over:
        run.ask("remove", [name for name in names if not run.silence.get(name)])
    return code


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


def _complain(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")


def _say(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    sys.stdout.flush()
