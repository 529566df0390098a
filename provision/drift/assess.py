"""The flow that `plan`, `up` and `drift` share: compares the declared state with the observed facts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from provision.desired import (
    compatibility,
    inventory,
    lockfile,
    removal,
    resolve,
    stack,
    variables,
    vendors,
)
from provision.desired.compatibility import Refusal
from provision.desired.expectations import Expectation, by_fact, facts_to_ask, of_node
from provision.desired.role import roles_of, vendor_of
from provision.desired.templating.render_cache import frozen
from provision.drift import diagnosis
from provision.drift.drifts import Drift, FleetDrifts
from provision.events import Note, OnEvent, PartEnded, work
from provision.fleet import Fleet, Node
from provision.remote.reach import observe as observer
from provision.remote.reach.observe import Observation
from provision.remote.ssh.fanout import MOST
from provision.secrets_mask import secrets_of
from provision.shared_facts import Pool

# Is given a node's observation, its drifts, and the secrets that are to be masked before either is kept.
OnJudged = Callable[[Observation, Sequence[Drift], Collection[str]], None]
Item = TypeVar("Item")
_DERIVED = frozenset({"gpu.sku"})  # made here from what the node answered, so not to be asked for


def _health_program() -> ModuleType:
    """What packs it, imported only where a node is to have it: it is made of modules above `desired`."""
    from provision.checks.on_node import packed_program

    return packed_program


# What an expect.yml finds beside the variables.
GIVEN = {"gpuprov_node_health_sha256": lambda: _health_program().sha256()}


class Observe(Protocol):
    """Reads facts of nodes, as remote.reach.observe.observe does."""

    def __call__(
        self,
        nodes: Collection[Node],
        ask: Mapping[str, Collection[str]],
        /,
        *,
        timeout: float = ...,
        connections: int = ...,
        on_done: Callable[[Observation], None] | None = None,
    ) -> dict[str, Observation]: ...


class LookOptions(TypedDict, total=False):
    """How nodes are looked at."""

    timeout: float  # seconds a node has to answer
    connections: int
    on_done: Callable[[Observation], None] | None
    say: Callable[[str], None] | None  # is given lines for people meanwhile
    observe: Observe | None
    also: Collection[str]  # facts to ask of every node beside those its roles promise
    also_of: Mapping[str, Collection[str]]  # the same of nodes with one vendor's GPUs, by vendor
    on_judged: OnJudged | None  # is given each node once its drifts are known, while others are still asked
    remove: tuple[str, ...]  # roles to be taken off the nodes: these alone are looked at (removal.py)


@dataclass(frozen=True)
class Assessment:
    """What is declared and what was found, node by node (all mappings are by node name, in inventory order).

    `declared` is what the inventory says; `views` is what templates see (never to be stored: it may hold
    secrets, of which those that were vaulted are in `vaulted`). `observations` has every node, `described`
    (its gpuprov_node) those that answered; `refused` those a compatibility rule forbids to touch; `expected`
    and `drifts` the others. With `remove`, they are about what these roles left, and nothing else.
    """

    fleet: Fleet
    overrides: Mapping[str, Any]
    declared: Mapping[str, Mapping[str, Any]]
    views: Mapping[str, resolve.View]
    vaulted: frozenset[str]
    observations: Mapping[str, Observation]
    described: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected: Mapping[str, list[Expectation]] = field(default_factory=dict)
    drifts: Mapping[str, list[Drift]] = field(default_factory=dict)
    refused: Mapping[str, list[Refusal]] = field(default_factory=dict)
    remove: tuple[str, ...] = ()

    @functools.cached_property
    def secrets(self) -> tuple[str, ...]:
        """What may never be shown: what was vaulted, and what variables hold that are named like secrets."""
        return secrets_of({"secret": sorted(self.vaulted)}, *self.declared.values())

    def secrets_of(self, node: str) -> tuple[str, ...]:
        """Those that anything of this node could hold."""
        return secrets_of({"secret": sorted(self.vaulted)}, self.declared[node])

    @property
    def expectations(self) -> int:
        """How many expectations were compared."""
        return sum(len(expected) for expected in self.expected.values())

    @property
    def as_declared(self) -> tuple[str, ...]:
        """The nodes on which every expectation holds."""
        return tuple(node for node, found in self.drifts.items() if not found)

    def causes(self) -> dict[diagnosis.Diagnosis, list[str]]:
        """What is wrong with the driver stack: each cause with its nodes (`diagnosis.lines` words it)."""
        if self.remove:
            return {}
        return diagnosis.causes(
            {
                name: (said.facts, self.expected.get(name, ()))
                for name, said in self.observations.items()
                if said.error is None
            }
        )

    def arguments(self, nodes: Iterable[str] | None = None) -> str:
        """These nodes, or all that were chosen, as a command takes them."""
        return inventory.arguments(self.fleet, nodes)

    @property
    def unreachable(self) -> dict[str, str]:
        """Node → why nothing is known about it."""
        return {node: said.error for node, said in self.observations.items() if said.error is not None}

    @property
    def troubles(self) -> dict[str, str]:
        """The same in words for people, which begin with the node's state."""
        return {node: said.trouble for node, said in self.observations.items() if said.trouble}

    @property
    def host_only(self) -> dict[str, str]:
        """Node → what its GPUs are, where roles for the host alone are compared: none provisions them."""
        return {
            name: vendors.cannot(machine, "provision")
            for name, machine in self.described.items()
            if name in self.drifts and vendors.not_provisioned(machine)
        }

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Node → the roles it takes part in, or those to be removed."""
        if self.remove:
            return dict.fromkeys(self.declared, self.remove)
        return {
            node: tuple(role.name for role in roles_of(declared, self.described.get(node)))
            for node, declared in self.declared.items()
        }

    def hosts(self, described: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The variables of these nodes (node → its gpuprov_node) for Ansible, with the same values as were
        expected of them."""
        return {
            node: {
                **self.declared[node],
                **resolve.for_ansible(self.views[node], machine),
                **self._programs(node),
                "gpuprov_node": machine,
            }
            for node, machine in described.items()
        }

    def _programs(self, node: str) -> dict[str, str]:
        """The programs of ours that its roles install, as files on this machine."""
        wanted = self.declared[node].get("node_health_enabled") and "node_health" in self.roles[node]
        return {"node_health_program": str(_health_program().file())} if wanted and not self.remove else {}


def assess(fleet: Fleet, overrides: Mapping[str, Any], **options: Unpack[LookOptions]) -> Assessment:
    """Look at the whole fleet, one connection a node.

    Raises StackError and CompatibilityError before any node is touched. Afterwards a node's trouble is its
    own: unreachable or refused, it is named, and the others go on. `observe` stands in for nodes in tests.
    """
    remove = options.get("remove", ())
    known = declare(fleet, overrides, options.get("say") or (lambda _line: None), remove=remove)
    seen = look(known, list(fleet.nodes), **options)
    if not remove:
        lockfile.refuse_contradictions(seen.expected)
    return seen


def declare(
    fleet: Fleet,
    overrides: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    remove: tuple[str, ...] = (),
) -> Assessment:
    """What the inventory says of the fleet, without a look at any node. Raises StackError and
    CompatibilityError."""
    variables.check(fleet, overrides, say)
    declared = {name: stack.declared(node, overrides) for name, node in fleet.nodes.items()}
    resolved = resolve.resolve(fleet, declared, GIVEN)
    if not remove:
        compatibility.refuse_impossible(
            resolved.views,
            lambda name, value: (
                "--set" if name in overrides else variables.written(name, fleet.source, value)
            ),
        )
    return Assessment(fleet, overrides, declared, resolved.views, resolved.secrets, {}, remove=remove)


def with_progress(
    title: str,
    fleet: Fleet,
    overrides: Mapping[str, Any],
    on_event: OnEvent,
    **options: Unpack[LookOptions],
) -> Assessment:
    """`assess` as work that is reported; nodes in trouble are named as they come."""
    with work(title, len(fleet.nodes), on_event):
        options.setdefault("say", lambda line: on_event(Note(line)))
        options["on_done"] = lambda said: on_event(
            PartEnded(f"{said.node}: {said.trouble}" if said.trouble else "")
        )
        return assess(fleet, overrides, **options)


def look(known: Assessment, chosen: Collection[str], **options: Unpack[LookOptions]) -> Assessment:
    """Observe these nodes (again) and compare: an assessment of them alone, declared as in `known`."""
    beside = diagnosis.FACTS.union(options.get("also", ()))  # in the same round trip
    whole = functools.cache(beside.union)  # one set for all that are asked the same
    also_of = options.get("also_of", {})
    remove = known.remove
    ask = {}
    for name in chosen:
        view = known.views[name]
        promised = removal.asked(view, remove) if remove else facts_to_ask(view)
        more = also_of.get(vendor_of(view))
        ask[name] = whole(promised.union(more) if more else promised)
    nodes = [known.fleet.nodes[name] for name in chosen]
    on_done = options.get("on_done")
    ours = functools.partial(
        observer.observe, vault_password_files=known.fleet.vault_password_files, say=options.get("say")
    )
    given: Observe = options.get("observe") or ours
    observe = functools.partial(
        given, timeout=options.get("timeout", 60.0), connections=options.get("connections", MOST)
    )
    judge = _Judge(known, options.get("on_judged"), also_of)

    def done(observation: Observation) -> None:
        judge.take(observation)
        if on_done is not None:
            on_done(observation)

    for observation in observe(nodes, ask, on_done=done).values():
        judge.take(observation)
    if judge.missing:
        again = [known.fleet.nodes[name] for name in judge.missing]
        for observation in observe(again, judge.missing, on_done=None).values():
            judge.join(observation)
    return judge.assessment(chosen)


class _Judge:
    """Says of each node what differs as soon as it has answered, while others are still asked."""

    def __init__(
        self, known: Assessment, on_judged: OnJudged | None, also_of: Mapping[str, Collection[str]]
    ) -> None:
        self.missing: dict[str, frozenset[str]] = {}  # node → facts it has to be asked for yet
        self._known = known
        self._on_judged = on_judged
        self._also_of = also_of
        self._first: dict[str, Observation] = {}  # of the nodes that are to be asked again
        self._machines: dict[Hashable, dict[str, Any]] = {}  # most are alike
        self._pool = Pool()
        self._compared = FleetDrifts()
        self._observations: dict[str, Observation] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, list[Refusal]] = {}
        self._expected: dict[str, list[Expectation]] = {}
        self._drifts: dict[str, list[Drift]] = {}

    def take(self, observation: Observation) -> None:
        """What a node answered first; once for each."""
        name = observation.node
        if name in self._observations or name in self._first:
            return
        if observation.error is None:
            machine = stack.describe_node(observation.facts)
            described = self._described[name] = self._machines.setdefault(frozen(machine), machine)
            view, remove = self._known.views[name], self._known.remove
            if remove:
                against = removal.refusals(view, remove, described, name)
            else:
                against = compatibility.check_node(view, described, name)
                against = against or lockfile.uncovered(view, described, name)
            if against:
                self._refused[name] = against
            else:
                expected = removal.of_view(view, remove, described) if remove else of_node(view, described)
                self._expected[name] = expected
                missing = _missing(expected, observation)
                missing |= _unasked(self._also_of.get(str(described["gpu"].get("vendor")), ()), observation)
                if missing:
                    self.missing[name], self._first[name] = missing, observation
                    return
        self._finish(observation)

    def join(self, late: Observation) -> None:
        """What a node answered when it was asked for what was missing."""
        self._finish(_joined(self._first[late.node], late))

    def _finish(self, observation: Observation) -> None:
        name = observation.node
        observation = _with_sku(observation, self._described.get(name), self._pool)
        self._observations[name] = observation
        found: list[Drift] = []
        if name in self._expected and observation.error is None:
            found = self._drifts[name] = self._compared.of(self._expected[name], observation)
        if self._on_judged is not None:
            self._on_judged(observation, found, self._known.secrets_of(name))

    def assessment(self, chosen: Collection[str]) -> Assessment:
        """All of it, in the order of `chosen`."""
        return replace(
            self._known,
            observations=_ordered(self._observations, chosen),
            described=_ordered(self._described, chosen),
            expected=_ordered(self._expected, chosen),
            refused=_ordered(self._refused, chosen),
            drifts=_ordered(self._drifts, chosen),
        )


def _ordered(found: Mapping[str, Item], order: Collection[str]) -> dict[str, Item]:
    return {name: found[name] for name in order if name in found}


def _missing(expectations: Sequence[Expectation], seen: Observation) -> frozenset[str]:
    """Facts whose names depend on what the node turned out to be, and which it was not asked for."""
    return _unasked(by_fact(expectations) - _DERIVED, seen)


def _unasked(facts: Collection[str], seen: Observation) -> frozenset[str]:
    return frozenset(fact for fact in facts if fact not in seen.facts and not _excused(fact, seen.problems))


def _excused(fact: str, problems: Mapping[str, str]) -> bool:
    return any(key in problems for key in (fact, fact.rpartition(".")[0], fact.partition(".")[0]))


def _joined(first: Observation, late: Observation) -> Observation:
    return replace(
        first,
        facts={**first.facts, **late.facts},
        problems={**first.problems, **late.problems},
        error=late.error,
        unreachable=late.unreachable,
        seconds=first.seconds + late.seconds,
    )


def _with_sku(observation: Observation, described: Mapping[str, Any] | None, pool: Pool) -> Observation:
    if described is None:
        return observation
    return replace(observation, facts=pool.of_with(observation.facts, "gpu.sku", described["gpu"]["sku"]))
