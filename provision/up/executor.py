"""The executor of `up`: Ansible changes nodes, gpuprov observes them, hooks drain and return them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision import paths, text
from provision.desired import removal, variable_types
from provision.desired.expectations import roles_in_order
from provision.desired.role import steps_without_packages
from provision.drift import assess, diagnosis
from provision.drift.assess import Assessment
from provision.node_names import file_name, fold
from provision.remote.ansible import accelerator, handover
from provision.remote.ansible.events import Event, Outcome
from provision.remote.reach import partitions
from provision.remote.reach.observe import Observation
from provision.runs.store import RunFolder
from provision.secrets_mask import masked
from provision.up import hooks
from provision.up.drains import Drains, no_drains
from provision.up.execute import LOST_LOOKS, LOST_PAUSE, Look
from provision.up.options import QUICK, UpOptions
from provision.up.plan import Plan
from provision.up.waves import Wave

_BASE_MINUTES = 60.0  # for one playbook on one node, in addition to the expected time of its roles
_PACKAGES = "packages"  # tag of the tasks that prepare a node's package manager before any role
_ROLES_OWN_LOOK = "node_facts"  # tag of tasks that only plays without gpuprov need
SHARD = 500  # nodes per ansible-playbook, since its data per host, and the time to search it, grows
_KEPT_OUTPUT = 4000  # characters of a failed task's output in events.jsonl


@dataclass
class Journal:
    """Writer of events to the run folder, with secrets masked."""

    folder: RunFolder
    secrets: tuple[str, ...] = ()

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        self.folder.append(name, {"time": text.now(), **masked(record, self.secrets)})

    def looked(self, found: Assessment, when: str) -> None:
        """Record observations and their drifts."""
        for node, observed in found.observations.items():
            facts = {"facts": observed.facts, "problems": observed.problems, "error": observed.error}
            self.write("facts", {"node": node, "when": when, **facts, "unreachable": observed.unreachable})
            for drift in found.drifts.get(node, ()):
                self.write("drifts", {"when": when, **drift.record()})

    def called(self, called: hooks.Called) -> None:
        """Record the outcome of a hook, and its output in a separate file."""
        record: dict[str, Any] = {"hook": called.hook, "nodes": list(called.nodes), "status": called.status}
        record |= {"seconds": round(called.seconds, 1), "problem": called.problem}
        if called.output:
            names = file_name(called.nodes[0] if len(called.nodes) == 1 else f"{len(called.nodes)} nodes")
            path = f"hooks/{text.now().replace(':', '')}-{called.hook}-{names}.txt"
            self.folder.write(path, str(masked(called.output, self.secrets)))
            record["output"] = path
        self.write("hooks", record)

    def event(self, event: Event) -> None:
        """Record the result of a task, without starts and skips; output is stored for failures only."""
        if event.kind in ("started", "skipped", "said"):
            return
        record: dict[str, Any] = {"node": event.node, "role": event.role, "task": event.task}
        record["kind"] = event.kind
        if event.origin:
            record["unit"] = event.origin
        if "item" in event.result:
            record["item"] = event.result["item"]
        if "diff" in event.result:
            record["diff"] = event.result["diff"]
        if event.kind in ("failed", "unreachable"):
            record["ignored"] = event.ignored
            for name in ("msg", "rc", "stdout", "stderr"):
                value = event.result.get(name)
                if isinstance(value, str):
                    record[name] = value[-_KEPT_OUTPUT:]
                elif isinstance(value, int):
                    record[name] = value
        self.write("events", record)


def looks(found: Assessment) -> dict[str, Look]:
    """Convert an assessment to one Look per node."""
    answers = {}
    for node, observed in found.observations.items():
        refused = found.refused.get(node)
        if observed.error is not None:
            answers[node] = Look(node, error=observed.error, unreachable=observed.unreachable)
        elif refused:
            answers[node] = Look(node, error="\n".join(refusal.what for refusal in refused))
        else:
            drifts = tuple(found.drifts.get(node, ()))
            expected = found.expected.get(node, ())
            # With --remove, a drift is something still installed, not a fault of the driver stack.
            why = diagnosis.diagnose(observed.facts, expected) if drifts and not found.remove else ()
            causes = tuple(cause.line([node], found.arguments) for cause in why)
            answers[node] = Look(node, drifts, _boot_reason(observed.facts), causes=causes)
    return answers


def _boot_reason(facts: Mapping[str, Any]) -> str:
    """Return the node's reason for requesting a reboot, or ""."""
    if facts.get("boot.required") is not True:
        return ""
    reason = facts.get("boot.reason")
    words = [str(word) for word in reason] if isinstance(reason, list) else str(reason or "").split()
    return " ".join(words) or "it gave no reason"


@dataclass
class AnsibleExecutor:
    """The executor on real nodes. `health`: the checks behind `--gate quick`.

    `rebooted`: receives nodes back from a reboot; `on_event`: each event of a role its node needs."""

    options: UpOptions
    known: Assessment
    plan: Plan
    journal: Journal
    hooks: hooks.Runner
    health: Callable[[Sequence[str]], Mapping[str, str]]
    rebooted: Callable[[Sequence[str]], None]
    on_event: Callable[[Event], None]
    drains: Drains = field(default_factory=no_drains)
    say: Callable[[str], None] = lambda _text: None
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _described: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _looked: int = 0
    _applied: set[str] = field(default_factory=set)
    _applying: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._boots = {node: _boot(observed) for node, observed in self.known.observations.items()}

    def look(self, nodes: Sequence[str]) -> Mapping[str, Look]:
        """Observe nodes again, and compare them with the declared state."""
        options = self.options
        seen = assess.look(self.known, nodes, timeout=options.timeout, connections=options.connections)
        self._described.update(seen.described)
        self._looked += 1
        self.journal.looked(seen, f"look {self._looked}")
        answers = looks(seen)
        for node, observed in seen.observations.items():
            before, now = self._boots.get(node, ""), _boot(observed)
            if before and now and before != now:
                self.journal.write("boots", {"node": node, "before": before, "after": now})
                answers[node] = replace(answers[node], booted=True)
            self._boots[node] = now or before  # an unread boot id is no evidence of a reboot
        return answers

    def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
        """Run or remove each node's roles, and no others."""
        self._applying = roles
        remove = self.known.remove
        hosts = {
            node: {
                **variables,
                **(self._removal(node, roles[node]) if remove else {"gpuprov_roles": list(roles[node])}),
            }
            for node, variables in self._hosts(list(roles)).items()
        }
        longest = max((self.plan.nodes[node].minutes for node in roles), default=0.0)
        if remove:
            return self._run("remove.yml", hosts, _BASE_MINUTES + 4 * longest)
        # One set of tags serves all nodes, because each node's own roles come from its gpuprov_roles.
        # Without skip tags, a role that no node needs costs Ansible one skip per task and node.
        tags = {tag for node, names in roles.items() for role in names for tag in self._tags(node, role)}
        unneeded = set(roles_in_order()).difference(*roles.values()) | {_ROLES_OWN_LOOK}
        if tags <= steps_without_packages():
            unneeded.add(_PACKAGES)  # nothing will be installed or removed
        if all(map(variable_types.are_right, hosts.values())):
            unneeded.add(handover.ARGUMENT_SPECS)  # Ansible would repeat this validation
        self._applied.update(roles)
        return self._run(
            "up.yml", hosts, _BASE_MINUTES + 4 * longest, tags, unneeded, extra_vars=self._strategy
        )

    def reboot(self, nodes: Sequence[str]) -> Mapping[str, Outcome]:
        """Reboot nodes and wait for them; a node that does not come back has failed."""
        outcomes = self._rebooted(nodes)
        if lost := {node: outcome for node, outcome in outcomes.items() if outcome.lost}:
            outcomes |= self._awaited(lost)
        self.rebooted([node for node, outcome in outcomes.items() if outcome.status == "ok"])
        return outcomes

    def _rebooted(self, nodes: Sequence[str]) -> dict[str, Outcome]:
        for node in nodes:
            self.journal.write("reboots", {"node": node, "boot": self._boots.get(node, "")})
        return dict(self._run("reboot.yml", self._hosts(nodes), self._reboot_minutes(nodes) * 2 + 10))

    def _reboot_minutes(self, nodes: Collection[str]) -> float:
        """Return the minutes these nodes have to come back."""
        chosen = [one.get("gpuprov_reboot_timeout") for one in self._hosts(list(nodes)).values()]
        # 1800 s as in playbooks/reboot.yml. A value that is still a template is left out.
        return max((seconds for seconds in chosen if isinstance(seconds, int)), default=1800) / 60

    def _awaited(self, lost: Mapping[str, Outcome]) -> dict[str, Outcome]:
        """Wait for nodes that were rebooting when their worker was lost, observing through another worker.

        A node that keeps answering without having booted is rebooted once more."""
        minutes = self._reboot_minutes(lost)
        limit = f"{minutes:.0f} min"
        self.say(f"{fold(lost)}: the worker was lost while they rebooted; waiting up to {limit} for them")
        end, answered = self.clock() + minutes * 60, Counter[str]()
        booted_again = {}
        while (waiting := [node for node in lost if node not in booted_again]) and self.clock() < end:
            for node, look in self.look(waiting).items():
                answered[node] = 0 if look.error else answered[node] + 1
                # Still answering on its old boot: the command to reboot was probably lost with the worker.
                if look.booted or answered[node] == LOST_LOOKS:
                    booted_again[node] = look.booted
            self.pause(LOST_PAUSE)
        outcomes = {
            node: Outcome(node, "ok", 1)
            if booted_again.get(node)
            else replace(outcome, message=f"it did not come back within {limit}: {outcome.message}")
            for node, outcome in lost.items()
        }
        same = [node for node, booted in booted_again.items() if not booted]
        return outcomes | (self._rebooted(same) if same else {})

    def drain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        """Drain nodes through hooks or schedulers; no node has both."""
        called = self.hooks.call(hooks.DRAIN, nodes, wave, nodes.kind)
        return {**called, **self.drains.drain(nodes)}

    def undrain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        """Return nodes to service through hooks or schedulers."""
        called = self.hooks.call(hooks.UNDRAIN, nodes, wave, nodes.kind)
        return {**called, **self.drains.undrain(nodes)}

    def gate(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Run the quick checks if `--gate quick` was given."""
        return self.health(nodes) if self.options.gate == QUICK else {}

    @property
    def _strategy(self) -> dict[str, str]:
        free = any(declared.get(accelerator.VARIABLE) for declared in self.known.declared.values())
        return {accelerator.ASKED: accelerator.FREE} if free else {}

    def _tags(self, node: str, role: str) -> set[str]:
        """Return tags of the role's steps that can repair the node, or of the whole role if one is unknown.

        The whole role also runs in check mode, in which a step cannot build on another's changes, and in a
        second pass, since the steps alone did not remove the remaining drifts."""
        options = self.options
        if options.full or options.check_mode or node in self._applied:
            return {role}
        ours = [drift for drift in self.plan.nodes[node].drifts if drift.expectation.role == role]
        steps = {"" if drift.unknown else drift.expectation.step for drift in ours}
        return {role} if not steps or "" in steps else {f"{role}_{step}" for step in steps}

    def _removal(self, node: str, roles: Sequence[str]) -> dict[str, Any]:
        """Return the variables for playbooks/remove.yml."""
        remove = self.known.remove
        keep = removal.kept(self.known.views[node], remove, self.known.described[node])
        enabled = {f"{role}_enabled": True for role in roles}
        return {**enabled, "gpuprov_remove": [role for role in remove if role in roles], "gpuprov_keep": keep}

    def _hosts(self, nodes: Sequence[str]) -> dict[str, dict[str, Any]]:
        described = {**self.known.described, **self._described}
        hosts = self.known.hosts({node: described[node] for node in nodes})
        return {node: {**variables, "gpuprov_run": self.hooks.run} for node, variables in hosts.items()}

    def _run(
        self,
        playbook: str,
        hosts: Mapping[str, Mapping[str, Any]],
        minutes: float,
        tags: Collection[str] = (),
        skip_tags: Collection[str] = (),
        extra_vars: Mapping[str, str] | None = None,
    ) -> Mapping[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        names, forks = list(hosts), self.options.forks
        most = SHARD * max(1, partitions.width(hosts))
        # Equal shards: with one process, 501 nodes run as 251 and 250 rather than as 500 and 1.
        size = math.ceil(len(names) / math.ceil(len(names) / most))
        for start in range(0, len(names), size):
            some = {name: hosts[name] for name in names[start : start + size]}
            outcomes |= partitions.run_sharded(
                paths.PLAYBOOKS / playbook,
                some,
                on_event=self._heard,
                forks=min(forks, len(some)),
                # `minutes` is for one node, and the nodes run in rounds of `forks`.
                timeout=(self.options.wave_minutes or minutes) * 60 * math.ceil(len(some) / forks),
                check_mode=self.options.check_mode,
                diff=self.options.diff,
                verbosity=self.options.verbosity,
                tags=tags,
                skip_tags=skip_tags,
                extra_vars=extra_vars,
                vault_password_files=self.known.fleet.vault_password_files,
                secrets=self.known.vaulted,
            )
        return outcomes

    def _heard(self, event: Event) -> None:
        self.journal.event(event)
        if event.kind == "started" and event.role and event.role not in self._applying.get(event.node, ()):
            return  # this node does not need the role: all its tasks will be skipped
        self.on_event(event)


def _boot(said: Observation) -> str:
    return str(said.facts.get("boot.id") or "")
