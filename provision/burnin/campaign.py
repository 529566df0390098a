"""One burn-in of a fleet, as run by the controller: observe nodes, start, status, stop, fetch.

Everything needed to judge it is also on the nodes: a controller without its run folder learns from them which
burn-in they have, and continues from there.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from provision.burnin import node_talk, orders
from provision.burnin.node_talk import Answer
from provision.burnin.plan import MARGIN, Plan
from provision.burnin.profile import Profile
from provision.burnin.spool import Spool
from provision.burnin.timeline import Contact
from provision.checks.judging import registry
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import GpuprovError, IncompleteError, RunFolderError
from provision.events import OnEvent, PartEnded, Step, ignore, work
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.reach.fleet_lock import me
from provision.remote.reach.observe import observe
from provision.remote.schedulers.chosen import Schedulers
from provision.runs import fingerprint, node_history
from provision.runs.fingerprint import Fingerprint
from provision.runs.store import RunFolder, latest, runs_home
from provision.secrets_mask import secrets_of
from provision.text import many, now
from provision.validate import validation
from provision.validate.plays import node_commands

VERB = "burnin"
NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-burnin")
_ROUNDS = 5000  # responses in which one node's files may arrive, at most


@dataclass
class Campaign:
    """A burn-in: its run folder, and how its nodes are reached (`variables`: node → what Ansible needs)."""

    folder: RunFolder
    variables: Mapping[str, Mapping[str, Any]]
    forks: int = 50
    vault_password_files: Sequence[Path] = ()
    over: dict[str, bool] = field(default_factory=dict)  # node → it will produce nothing more
    silence: dict[str, str] = field(default_factory=dict)  # node → why it could not be contacted

    @property
    def name(self) -> str:
        return self.folder.path.name

    def ask(
        self,
        state: str,
        nodes: Collection[str],
        heard: Callable[[Answer], None] | None = None,
        **more: Any,
    ) -> dict[str, Answer]:
        """Send one command to these nodes, and record the clock readings in their answers."""

        def note(answer: Answer) -> None:
            if not answer.error:
                contact = Contact(answer.at, answer.now, answer.up, answer.boot)
                self.folder.append("contacts", {"node": answer.node, **asdict(contact)})
            if heard is not None:
                heard(answer)

        return node_talk.ask(
            state,
            self.name,
            {name: self.variables[name] for name in nodes},
            forks=self.forks,
            vault_password_files=self.vault_password_files,
            heard=note,
            **more,
        )

    def contacts(self) -> dict[str, list[Contact]]:
        """Return each node's clock readings, one for each answer."""
        by_node: dict[str, list[Contact]] = {}
        for record in self.folder.read("contacts"):
            try:
                contact = Contact(
                    float(record["at"]), float(record["now"]), float(record["up"]), str(record["boot"])
                )
                by_node.setdefault(str(record["node"]), []).append(contact)
            except (KeyError, TypeError, ValueError):
                continue
        return by_node

    # --- begin

    def begin(self, given: Mapping[str, Mapping[str, Any]], program: bytes) -> dict[str, str]:
        """Send each node its order; return node → why it did not start, for failed starts."""
        began = time.monotonic()
        each = {name: {"order": node_commands.packed(_json(order))} for name, order in given.items()}
        answers = self.ask("start", list(given), each=each, shared={"runner": node_commands.packed(program)})
        refused = {}
        for name, answer in answers.items():
            if answer.error:
                refused[name] = answer.trouble
            elif not answer.true("started"):
                other = str(answer.said.get("running") or "")[:100]
                why = str(answer.said.get("refused") or "it gave no reason")[:300]
                refused[name] = f"{why} ({other})" if other and other not in why else why
        for name in given:
            self.folder.append("begun", {"node": name, "refused": refused.get(name, "")})
        late = time.monotonic() - began
        waited_for = any(order.get("end_by_s") is not None for order in given.values())
        if waited_for and late > MARGIN:
            self.ask("stop", [name for name in given if name not in refused])
            raise GpuprovError(
                f"it took {late:.0f} s until all nodes had their order: the limits allow {MARGIN:.0f} s",
                "all were stopped; raise --forks, or burn fewer nodes at a time",
            )
        return refused

    # --- fetch

    def fetch(self, nodes: Collection[str], say: Callable[[str], None]) -> None:
        """Fetch new data from the nodes; a node that cannot be contacted is noted, not waited for."""
        pending = list(nodes)
        for _ in range(_ROUNDS):
            if not pending:
                return
            each = {name: {"offsets": node_talk.offsets(_known(self._spool(name)))} for name in pending}
            more: dict[str, bool] = {}
            self.ask(
                "collect",
                pending,
                heard=lambda answer: more.update({answer.node: self._take(answer, say)}),  # noqa: B023
                each=each,
            )
            pending = [name for name in pending if more.get(name)]

    def _spool(self, node: str) -> Spool:
        return Spool(self.folder, node)

    def _take(self, answer: Answer, say: Callable[[str], None]) -> bool:
        """Store the data of one answer; return whether there is more."""
        name, spool = answer.node, self._spool(answer.node)
        self.silence.pop(name, None)
        before = _known(spool)
        secrets = secrets_of(self.variables[name])
        if problem := self._problem(answer) or spool.take(answer.said.get("parts"), secrets):
            self.silence[name] = problem
            say(f"{name}: {problem}")
            return False
        self.over[name] = answer.true("finished") or not answer.true("alive")
        return answer.true("more") and _known(spool) != before

    def _problem(self, answer: Answer) -> str:
        if answer.error:
            return answer.trouble
        if answer.campaign != self.name:
            has = f"the burn-in {answer.campaign}" if answer.campaign else "no burn-in"
            return f"it has {has}, not {self.name}"
        return ""


def _known(spool: Spool) -> dict[str, int]:
    """Return the size of each file here; the state is always fetched again."""
    return {file: size for file, size in spool.have().items() if file != "state.json"}


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, default=str)


def new(
    fleet: Fleet,
    profile: Profile,
    looked: Looked,
    planned: Plan,
    unable: Mapping[str, str],
    *,
    forks: int,
    arguments: Mapping[str, Any],
) -> tuple[Campaign, dict[str, dict[str, Any]]]:
    """Create a burn-in with everything needed to judge it; return it and the order of each node."""
    folder = RunFolder.create(VERB, arguments)
    folder.note(
        inventory=fleet.place,
        nodes=list(fleet.nodes),
        asked=[*profile.checks, VERB],
        profile=orders.described(profile),
        not_burned_in=dict(unable),
    )
    folder.write_json("plan.json", orders.document(profile, planned, unable, looked.able))
    about = {"inventory": fleet.place, "asked": [*profile.checks, VERB]}
    about |= {"who": me(), "since": now("seconds")}  # for a person who finds the nodes in use
    given: dict[str, dict[str, Any]] = {}
    for node in looked.seen.values():
        folder.append("facts", asdict(node))
    turns = Counter(part.turn for part in planned.parts)
    for part in planned.parts:
        node = looked.seen[part.node]
        identity = looked.known.get(part.node)
        if identity is not None:
            node_history.note_look(folder, part.node, identity)
        alone = turns[part.turn] == 1
        given[part.node] = orders.order(folder.path.name, profile, node, part, identity, about, alone=alone)
        folder.append("orders", {"node": part.node, "order": given[part.node]})
    return Campaign(folder, looked.variables, forks, fleet.vault_password_files), given


def known_here(named: str) -> RunFolder | None:
    """Find a burn-in by path, name or `latest`, or return None. Raises RunFolderError for other runs."""
    if named == "latest":
        try:
            return latest(VERB)
        except RunFolderError:
            return None
    path = Path(named) if Path(named).is_dir() else runs_home() / named
    if not path.is_dir():
        return None
    folder = RunFolder.open(path)
    if folder.meta().get("verb") != VERB:
        raise RunFolderError(f"{path} is not a burn-in", "give the name of a gpuprov burnin")
    return folder


def ask_nodes(
    named: str, variables: Mapping[str, Mapping[str, Any]], fleet: Fleet, forks: int
) -> tuple[Campaign, dict[str, Answer]]:
    """Return the burn-in that the nodes have, if this machine has no record of it.

    Raises RunFolderError if no node has it, IncompleteError if some nodes did not answer."""
    requested = "" if named == "latest" else named
    answers = node_talk.ask(
        "status", requested, variables, forks=forks, vault_password_files=fleet.vault_password_files
    )
    there: dict[str, list[str]] = {}
    for answer in answers.values():
        if NAME.fullmatch(answer.campaign):
            there.setdefault(answer.campaign, []).append(answer.node)
    name = max(there, default="") if not requested else (requested if requested in there else "")
    if not name:
        other = f"they have {', '.join(sorted(there)[-3:])}" if there else "gpuprov burnin starts one"
        what = f"the burn-in {requested}" if requested else "a burn-in"
        if any(answer.error for answer in answers.values()):
            raise IncompleteError(_not_known(what, answers), other if there else "")
        raise RunFolderError(f"no node has {what}", other)
    folder = RunFolder.adopt(name, VERB, {})
    moment = f"{name[:4]}-{name[4:6]}-{name[6:8]}T{name[9:11]}:{name[11:13]}:{name[13:19]}Z"
    folder.note(
        inventory=fleet.place,
        # A node that did not answer may take part, so it is listed until its answer shows otherwise.
        nodes=[node for node in variables if node in there[name] or answers[node].error],
        asked=folder.meta().get("asked") or [VERB],
        started=moment,
        adopted=True,
    )
    return Campaign(folder, variables, forks, fleet.vault_password_files), answers


def _not_known(what: str, answers: Mapping[str, Answer]) -> str:
    """Return the message that no node has the burn-in, and why other nodes did not answer."""
    silent: dict[str, list[str]] = {}
    for answer in answers.values():
        if answer.error:
            silent.setdefault(answer.trouble.replace(answer.node, "the node"), []).append(answer.node)
    none = len(answers) > sum(map(len, silent.values()))
    summary = f"no node that answered has {what}" if none else f"whether a node has {what} is not known"
    return "\n  ".join([summary, *(f"{fold(nodes)}: {why}" for why, nodes in silent.items())])


# --- observation of the nodes before their burn-in


@dataclass(frozen=True)
class Looked:
    """Observations of all nodes of the fleet. `variables`: node → its declared variables."""

    variables: Mapping[str, Mapping[str, Any]]
    seen: dict[str, NodeFacts] = field(default_factory=dict)
    known: dict[str, Fingerprint] = field(default_factory=dict)

    @property
    def able(self) -> dict[str, NodeFacts]:
        """The nodes that can burn in."""
        return {name: node for name, node in self.seen.items() if not node.error}


def look(
    fleet: Fleet,
    overrides: Mapping[str, Any],
    profile: Profile,
    *,
    timeout: float,
    connections: int,
    schedulers: Schedulers | None = None,
    on_event: OnEvent = ignore,
) -> Looked:
    """Observe every node once; nodes on which `schedulers` report a job are not able.

    Raises StackError for a variable that cannot be resolved."""
    looked = Looked(validation.plain_variables(fleet, overrides))
    with work("burnin", len(fleet.nodes), on_event):
        on_event(Step(f"looking at {many(len(fleet.nodes), 'node')}"))
        observations = observe(
            fleet.nodes.values(),
            dict.fromkeys(fleet.nodes, fingerprint.FACTS | registry.facts_for(profile.checks)),
            timeout=timeout,
            connections=connections,
            vault_password_files=fleet.vault_password_files,
        )
        observations |= validation.of_vendors(
            fleet,
            profile.checks,
            observations,
            timeout=timeout,
            connections=connections,
            vault_password_files=fleet.vault_password_files,
        )
        busy = validation.with_jobs(schedulers, list(fleet.nodes))
        for name in fleet.nodes:
            node = validation.seen_of(observations[name], looked.variables[name])
            node = validation.left_out(node, busy)
            looked.seen[name] = node
            if not node.error:
                looked.known[name] = fingerprint.of(observations[name].facts, observations[name].problems)
            on_event(PartEnded(f"{name}: {node.trouble}" if node.error else ""))
    return looked
