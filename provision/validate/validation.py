"""One validate run: observes the nodes, takes each through its checks, stores and judges the results.

Each node's output is stored on arrival, before it is judged: an interrupted run loses only the programs that
were running, and `--resume` continues after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from provision import paths, text
from provision.checks import health
from provision.checks.check import Raw
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import NodeFacts, for_checks, node_facts_of
from provision.desired import stack
from provision.errors import ExitCode, RunFolderError, StackError
from provision.events import (
    Began,
    CheckBegan,
    CheckEnded,
    Ended,
    NodeLeftOut,
    Note,
    OnEvent,
    Step,
    ignore,
)
from provision.fleet import Fleet
from provision.remote.ansible.runner import Event, Outcome
from provision.remote.reach.observe import Observation, Reach, observe
from provision.remote.schedulers import chosen
from provision.remote.schedulers.chosen import Schedulers
from provision.runs import fingerprint, node_history, store
from provision.runs.earlier_counters import earlier_counters
from provision.runs.fingerprint import Fingerprint
from provision.runs.store import RunFolder, runs_home
from provision.validate import campaign
from provision.validate.campaign import FEW
from provision.validate.pairs import pair_campaign
from provision.validate.plays import node_commands
from provision.validate.plays.node_commands import Programs
from provision.validate.plays.node_commands import Settings as Settings


def to_go_on_with(resume: str) -> RunFolder:
    """Open the run a user names: a path, a name below the runs folder, or "" for the last run."""
    if not resume:
        return store.latest("validate")
    path = Path(resume) if Path(resume).is_dir() else runs_home() / resume
    folder = RunFolder.open(path)
    if folder.meta().get("verb") != "validate":
        raise RunFolderError(f"{path} is not a validate run", "give the folder of a gpuprov validate")
    return folder


def open_folder(
    before: RunFolder | None,
    fleet: Fleet,
    asked: Sequence[str],
    settings: Settings,
    arguments: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Create a new run folder, or reuse `before` to continue it."""
    kept = {**(arguments or {}), **settings.options, "nodes": list(fleet.nodes)}
    folder = before or RunFolder.create("validate", kept)
    folder.note(inventory=fleet.place, pattern=fleet.pattern, asked=list(asked), interrupted=False)
    return folder


@dataclass
class _Run:
    """Data collected so far, by node."""

    folder: RunFolder
    asked: Sequence[str]
    settings: Settings
    variables: Mapping[str, Mapping[str, Any]]
    seen: dict[str, NodeFacts] = field(default_factory=dict)
    results: dict[str, dict[str, CheckResult]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    known: dict[str, Fingerprint] = field(default_factory=dict)

    def take(self, raw: Raw, *, keep: bool = True) -> CheckResult:
        """Store and judge the raw output of one check on one node."""
        if keep:
            store.keep_raw(self.folder, raw)
        node = self.seen[raw.node]
        result = node_judge.judge_check(node, raw, node.limits(self.settings.override))
        kept = health.compressed_check(result) if len(self.seen) > FEW else result
        self.results.setdefault(raw.node, {})[raw.check] = kept
        if raw.unreachable:
            self.lost.add(raw.node)
        if keep and not raw.error and raw.node in self.known:
            node_history.note_result(self.folder, raw.node, raw.check, self.known[raw.node], text.now())
        if keep:
            keys = {"node": raw.node, "check": raw.check}
            self.folder.append_all("measurements", [{**keys, **asdict(row)} for row in result.measurements])
        return result

    def health(self, *, interrupted: bool) -> FleetHealth:
        self.folder.note(interrupted=interrupted, measured_until=text.now())
        node_history.recall(self.folder, self.seen)
        fleet = campaign.fleet_health(self.folder, self._judged(), self.seen, interrupted=interrupted)
        self.folder.write("findings.jsonl", health.finding_lines(fleet))
        return fleet

    def _judged(self) -> Iterator[NodeHealth]:
        """Judge each node on its own."""
        for name, node in self.seen.items():
            results = self.results.pop(name, {})
            yield node_judge.judge_node(node, results, self.asked, lost=name in self.lost)


def validate(
    folder: RunFolder,
    fleet: Fleet,
    overrides: Mapping[str, Any],
    asked: Sequence[str],
    settings: Settings,
    over: Reach,
    on_event: OnEvent = ignore,
) -> tuple[FleetHealth, ExitCode]:
    """Run the missing checks, then judge all results, even if interrupted.

    `over`: connections to the nodes, closed before a check puts load on them."""
    variables = plain_variables(fleet, overrides)
    pair_campaign.check_inventory(registry.of_pairs(asked), variables)
    run = _Run(folder, asked, settings, variables)
    interrupted = False
    on_event(Began("validate", len(fleet.nodes) * len(asked)))
    try:
        _look(run, fleet, on_event, over)
        _measure(run, on_event)
        for check in registry.of_pairs(asked):
            pair_campaign.measure(check, folder, _able(run), variables, settings, on_event)
    except KeyboardInterrupt:
        interrupted = True
        on_event(Note("interrupted; what this run started on nodes is being ended"))
        for name in fleet.nodes:
            run.seen.setdefault(name, NodeFacts(name, {}, {}, {}, "interrupted before it was observed"))
    finally:
        on_event(Ended())
    judged = run.health(interrupted=interrupted)
    verdicts = {(node.node, one.check): one.verdict.value for node in judged.nodes for one in node.checks}
    node_history.record(folder, verdicts, judged)
    return judged, exit_code(judged)


def _able(run: _Run) -> dict[str, NodeFacts]:
    """Return the nodes that answered all of their own checks."""
    return {name: node for name, node in run.seen.items() if not node.error and name not in run.lost}


def plain_variables(fleet: Fleet, overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each node's declared variables, with templates in tool paths rendered. Raises StackError."""
    declared = {name: stack.declared(node, overrides) for name, node in fleet.nodes.items()}
    if not any(_is_template(key, value) for found in declared.values() for key, value in found.items()):
        return declared
    from provision.desired import resolve, role
    from provision.desired.templating import BadTemplateError, NotPlainError, Renderer

    views = resolve.resolve(fleet, declared).views
    for name, found in declared.items():
        renderer = Renderer([views[name], role.all_defaults()])
        for key in [key for key, value in found.items() if _is_template(key, value)]:
            try:
                found[key] = renderer.variable(key)
            except (BadTemplateError, NotPlainError) as trouble:
                raise StackError(f"{name}: {key}: {trouble}", "correct it in the inventory") from None
    return declared


def _is_template(key: str, value: Any) -> bool:
    return for_checks(key) and isinstance(value, str) and ("{{" in value or "{%" in value)


def exit_code(fleet: FleetHealth) -> ExitCode:
    """Return 130 if interrupted, else 3 if a node failed, 5 if something was not measured, or 0.

    Warnings do not count."""
    verdicts = {node.verdict for node in fleet.nodes}
    verdicts |= {finding.verdict for finding in fleet.fabric}
    if fleet.interrupted:
        return ExitCode.INTERRUPTED
    if Verdict.FAIL in verdicts:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if Verdict.ERROR in verdicts else ExitCode.OK


def _look(run: _Run, fleet: Fleet, on_event: OnEvent, over: Reach) -> None:
    """Observe every node; leave out silent nodes, and nodes without a GPU unless that was declared."""
    on_event(Step(f"looking at {text.many(len(fleet.nodes), 'node')}"))
    found = observe(
        fleet.nodes.values(),
        dict.fromkeys(fleet.nodes, fingerprint.FACTS | registry.facts_for(run.asked)),
        over=over,
    )
    found |= of_vendors(fleet, run.asked, found, over=over)
    loads = bool(set(run.asked) - set(registry.select("quick")))
    if loads:  # checks take minutes or hours, in which open connections would only disturb
        over.close()
    busy = with_jobs(run.settings.schedulers, list(fleet.nodes)) if loads else {}
    earlier = earlier_counters(run.folder, {name: one.facts for name, one in found.items()})
    for name in fleet.nodes:
        if name in earlier:
            found[name] = replace(found[name], facts={**found[name].facts, "hca.earlier": earlier[name]})
        node = left_out(seen_of(found[name], run.variables[name]), busy)
        run.seen[name] = node
        run.folder.append("facts", asdict(node))
        if not node.error:
            run.known[name] = fingerprint.of(found[name].facts, found[name].problems)
            node_history.note_look(run.folder, name, run.known[name])
        if node.error:
            on_event(NodeLeftOut(name, node.trouble, len(run.asked)))


def of_vendors(
    fleet: Fleet,
    checks: Sequence[str],
    found: Mapping[str, Observation],
    **how: Any,
) -> dict[str, Observation]:
    """Observe, in a second round trip, the facts that these checks need only for one vendor's GPUs.

    Returns these nodes with the facts of both round trips. `how`: arguments of `observe`."""
    asked = {}
    for name, first in found.items():
        if first.error is not None:
            continue
        described = stack.describe_node(first.facts)
        vendor = described["gpu"].get("vendor")
        if facts := registry.facts_of_vendor(checks, vendor) - first.facts.keys():
            asked[name] = facts
    if not asked:
        return {}
    late = observe(
        [fleet.nodes[name] for name in asked],
        asked,
        **how,
    )
    return {
        name: replace(
            found[name],
            facts={**found[name].facts, **late[name].facts},
            problems={**found[name].problems, **late[name].problems, **_unanswered(late[name], asked[name])},
        )
        for name in asked
    }


def _unanswered(late: Observation, asked: Collection[str]) -> dict[str, str]:
    return dict.fromkeys(asked, late.trouble) if late.error is not None else {}


def seen_of(observation: Observation, variables: Mapping[str, Any]) -> NodeFacts:
    """Convert an observation to the facts checks may use; `error` is the reason if they cannot run."""
    name, facts = observation.node, observation.facts
    if observation.error:
        silent = observation.unreachable  # reports add that word themselves
        return NodeFacts(name, {}, {}, {}, observation.error if silent else observation.trouble, silent)
    if not isinstance(facts.get("gpu.count"), int):
        why = observation.problems.get("gpu") or observation.problems.get("gpu.count") or "no answer"
        return NodeFacts(name, dict(facts), {}, {}, f"unreadable: its PCI devices could not be read: {why}")
    return node_facts_of(name, dict(facts), dict(observation.problems), stack.describe_node(facts), variables)


def with_jobs(schedulers: Schedulers | None, nodes: Sequence[str]) -> dict[str, str]:
    """Return the owner of the job, or why jobs are unknown, of each node that must not be loaded."""
    return chosen.loaded(schedulers, nodes) if schedulers is not None else {}


def left_out(node: NodeFacts, busy: Mapping[str, str]) -> NodeFacts:
    """Return the node, with an error that excludes it from checks if a job runs on it."""
    if node.error or node.node not in busy:
        return node
    return replace(node, error=f"not measured: {busy[node.node]} → --with-jobs loads it all the same")


class _Lists:
    """The remaining checks of each node, with programs or None (measured before, or decided by facts)."""

    def __init__(self, run: _Run, on_event: OnEvent) -> None:
        self._run, self._on_event = run, on_event
        self._alike: dict[str, Programs] = {}  # most nodes of a fleet run the same programs
        self._stopped: set[str] = set()  # nodes that did not answer in this play
        self._before: dict[str, int] = {}  # number of remaining checks when the play began
        self.left = {
            node.node: {check: self._programs(node, check) for check in registry.of_nodes(run.asked)}
            for node in run.seen.values()
            if not node.error
        }
        for node in self.left:
            self._settle(node)

    def _programs(self, node: NodeFacts, check: str) -> Programs | None:
        if node.without_gpus or self._measured(node.node, check):
            return None
        commands = node_judge.commands_for(check, node.check_node, self._run.settings.options)
        programs = node_commands.programs(commands)
        return self._alike.setdefault(programs.packed, programs) if commands else None

    def _measured(self, node: str, check: str) -> Raw | None:
        """Return the stored answer to a check if an earlier part of this run measured it."""
        stored = store.read_raw(self._run.folder, node, check)
        return None if stored is None or stored.error else stored

    def _settle(self, node: str) -> None:
        """Judge the next checks of a node up to the first one that runs programs."""
        left = self.left[node]
        while left and left[check := next(iter(left))] is None:
            del left[check]
            if stored := self._measured(node, check):
                verdict = self._run.take(stored, keep=False).verdict
                self._on_event(CheckEnded(node, check, verdict, "measured before"))
            else:
                boot_id = self._boot_id(node)
                result = self._run.take(Raw(node, check, boot_id=boot_id, boot_id_before=boot_id))
                self._on_event(CheckEnded(node, check, result.verdict))

    def _boot_id(self, node: str) -> str:
        return str(self._run.seen[node].facts.get("boot.id") or "")

    def hear(self, event: Event) -> None:
        """Handle one Ansible event. Events from workers that name no node are ignored."""
        check = next(iter(self.left.get(event.node, ())), None)
        if check is None:
            return
        if event.kind == "started":
            self._on_event(CheckBegan(event.node, check))
        elif event.kind in ("ok", "changed") and event.result.get("item") == check:
            self._answered(event.node, check, event.result.get("gpuprov"))
        elif event.message:
            self.silent(event.node, event.message, lost=event.kind == "unreachable")

    def _answered(self, node: str, check: str, answer: Any) -> None:
        programs = self.left[node].pop(check)
        names = programs.names if programs else ()
        raw = node_judge.raw_from_answer(node, check, answer, self._boot_id(node), names)
        self._on_event(CheckEnded(node, check, self._run.take(raw).verdict))
        self._settle(node)
        for following in list(self.left[node])[:1]:
            self._on_event(CheckBegan(node, following))

    def silent(self, node: str, message: str, *, lost: bool) -> None:
        """Record that a node did not answer its current check; a `lost` node runs no more checks."""
        check = next(iter(self.left[node]))
        del self.left[node][check]
        why = message.removeprefix(f"{check}: ")  # Ansible prefixes the loop item
        raw = Raw(node, check, error=why, unreachable=lost)
        self._on_event(CheckEnded(node, check, self._run.take(raw).verdict, why))
        if lost:
            for check in self.left[node]:
                self._on_event(CheckEnded(node, check, "", "not run, the node stopped answering"))
            self.left[node].clear()
        self._stopped.add(node)
        self._settle(node)

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Return the variables of nodes with programs left, for playbooks/checks.yml."""
        self._stopped.clear()
        self._before = {node: len(left) for node, left in self.left.items() if left}
        return {
            node: {**self._run.variables[node], "gpuprov_checks": node_commands.checks(self.left[node])}
            for node in self._before
        }

    def ended(self, outcomes: Mapping[str, Outcome]) -> None:
        """Fail the current check of each node that Ansible stopped without an event."""
        for node, outcome in outcomes.items():
            stuck = outcome.status != "ok" or len(self.left[node]) == self._before[node]
            if self.left[node] and stuck and node not in self._stopped:
                self.silent(node, outcome.message, lost=outcome.status == "unreachable")


def _measure(run: _Run, on_event: OnEvent) -> None:
    """Run each node's own checks, independently of others, `forks` nodes at a time.

    A node that missed a check but is still reachable continues after all other nodes are done."""
    lists, forks = _Lists(run, on_event), run.settings.forks
    while hosts := lists.hosts():
        longest = max(
            sum(one["seconds"] for one in host["gpuprov_checks"].values()) for host in hosts.values()
        )
        ended = node_commands.played(
            paths.PLAYBOOKS / "checks.yml",
            hosts,
            lists.hear,
            forks=forks,
            timeout=math.ceil(len(hosts) / forks) * (longest + 60) + 60,
            vault_password_files=run.settings.vault_password_files,
        )
        lists.ended(ended)
