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

# Receives a node's observation, its drifts, and the secrets to mask before storing either.
OnJudged = Callable[[Observation, Sequence[Drift], Collection[str]], None]
Item = TypeVar("Item")
_DERIVED = frozenset({"gpu.sku"})  # computed on the controller from a node's answer, so never requested


def _health_program() -> ModuleType:
    """Import the packer of the health program on demand: its modules lie in layers above `desired`."""
    from provision.checks.on_node import packed_program

    return packed_program


# Globals available to expect.yml in addition to variables.
GIVEN = {"gpuprov_node_health_sha256": lambda: _health_program().sha256()}


class Observe(Protocol):
    """Reader of nodes' facts; remote.reach.observe.observe is the real one."""

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
    """Options for observing nodes."""

    timeout: float  # timeout for each node's answer, in seconds
    connections: int
    on_done: Callable[[Observation], None] | None
    say: Callable[[str], None] | None  # receives messages for people meanwhile
    observe: Observe | None
    also: Collection[str]  # facts to observe on every node in addition to those its roles promise
    also_of: Mapping[str, Collection[str]]  # additional facts for nodes with one vendor's GPUs, by vendor
    on_judged: OnJudged | None  # receives each node once its drifts are known, before others have answered
    remove: tuple[str, ...]  # roles to remove from the nodes; only these are compared (removal.py)


@dataclass(frozen=True)
class Assessment:
    """The declared and the observed state of each node; mappings are by node name, in inventory order.

    `declared`: the inventory's variables; `views`: variables as templates read them (never store them, they
    may hold secrets; `vaulted` has the vaulted ones). `observations` has every node, `described` (its
    gpuprov_node) those that answered; `refused` those that a compatibility rule forbids to touch; `expected`
    and `drifts` the others. With `remove`, they only cover what these roles left behind.
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
        """Secrets to mask in all output: vaulted values, and variables named like secrets."""
        return secrets_of({"secret": sorted(self.vaulted)}, *self.declared.values())

    def secrets_of(self, node: str) -> tuple[str, ...]:
        """Return the secrets that data of this node could contain."""
        return secrets_of({"secret": sorted(self.vaulted)}, self.declared[node])

    @property
    def expectations(self) -> int:
        """Number of compared expectations."""
        return sum(len(expected) for expected in self.expected.values())

    @property
    def as_declared(self) -> tuple[str, ...]:
        """The nodes on which every expectation holds."""
        return tuple(node for node, drifts in self.drifts.items() if not drifts)

    def causes(self) -> dict[diagnosis.Diagnosis, list[str]]:
        """Return each cause of trouble in the driver stack with its nodes; `diagnosis.lines` words them."""
        if self.remove:
            return {}
        return diagnosis.causes(
            {
                name: (seen.facts, self.expected.get(name, ()))
                for name, seen in self.observations.items()
                if seen.error is None
            }
        )

    def arguments(self, nodes: Iterable[str] | None = None) -> str:
        """Return these nodes, or all selected ones, as command-line arguments."""
        return inventory.arguments(self.fleet, nodes)

    @property
    def unreachable(self) -> dict[str, str]:
        """Node → reason why its state is unknown."""
        return {node: seen.error for node, seen in self.observations.items() if seen.error is not None}

    @property
    def troubles(self) -> dict[str, str]:
        """The same reasons for people, each beginning with the node's state."""
        return {node: seen.trouble for node, seen in self.observations.items() if seen.trouble}

    @property
    def host_only(self) -> dict[str, str]:
        """Node → description of its GPUs, if no role provisions them and only its host is compared."""
        return {
            name: vendors.cannot(machine, "provision")
            for name, machine in self.described.items()
            if name in self.drifts and vendors.not_provisioned(machine)
        }

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Node → its roles, or those to remove."""
        if self.remove:
            return dict.fromkeys(self.declared, self.remove)
        return {
            node: tuple(role.name for role in roles_of(declared, self.described.get(node)))
            for node, declared in self.declared.items()
        }

    def hosts(self, described: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the Ansible variables of these nodes (node → its gpuprov_node), with the expected values."""
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
        """Return local paths of the gpuprov programs that the node's roles install."""
        installed = self.declared[node].get("node_health_enabled") and "node_health" in self.roles[node]
        return {"node_health_program": str(_health_program().file())} if installed and not self.remove else {}


def assess(fleet: Fleet, overrides: Mapping[str, Any], **options: Unpack[LookOptions]) -> Assessment:
    """Observe the whole fleet over one connection per node, and compare it with its declaration.

    Raises StackError and CompatibilityError before any node is touched. Later, an unreachable or refused node
    is recorded and the others continue. `observe` replaces the nodes in tests."""
    remove = options.get("remove", ())
    declaration = declare(fleet, overrides, options.get("say") or (lambda _line: None), remove=remove)
    seen = look(declaration, list(fleet.nodes), **options)
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
    """Build an assessment from the inventory alone, without contacting nodes.

    Raises StackError and CompatibilityError."""
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
    """Run `assess` and report its progress, including each node in trouble as it answers."""
    with work(title, len(fleet.nodes), on_event):
        options.setdefault("say", lambda line: on_event(Note(line)))
        options["on_done"] = lambda said: on_event(
            PartEnded(f"{said.node}: {said.trouble}" if said.trouble else "")
        )
        return assess(fleet, overrides, **options)


def look(known: Assessment, chosen: Collection[str], **options: Unpack[LookOptions]) -> Assessment:
    """Observe these nodes (again) and return an assessment of them alone, declared as in `known`."""
    beside = diagnosis.FACTS.union(options.get("also", ()))  # read in the same round trip
    whole = functools.cache(beside.union)  # nodes with equal requests share one set
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
    """Judge of single nodes, which compares each one as it answers while others are still being observed."""

    def __init__(
        self, known: Assessment, on_judged: OnJudged | None, also_of: Mapping[str, Collection[str]]
    ) -> None:
        self.missing: dict[str, frozenset[str]] = {}  # node → facts still to be observed
        self._known = known
        self._on_judged = on_judged
        self._also_of = also_of
        self._first: dict[str, Observation] = {}  # nodes to be observed again
        self._machines: dict[Hashable, dict[str, Any]] = {}  # most are equal
        self._pool = Pool()
        self._compared = FleetDrifts()
        self._observations: dict[str, Observation] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._refused: dict[str, list[Refusal]] = {}
        self._expected: dict[str, list[Expectation]] = {}
        self._drifts: dict[str, list[Drift]] = {}

    def take(self, observation: Observation) -> None:
        """Record and compare a node's first answer; later ones are ignored."""
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
        """Add a node's answer to the request for its missing facts."""
        self._finish(_joined(self._first[late.node], late))

    def _finish(self, observation: Observation) -> None:
        name = observation.node
        observation = _with_sku(observation, self._described.get(name), self._pool)
        self._observations[name] = observation
        drifts: list[Drift] = []
        if name in self._expected and observation.error is None:
            drifts = self._drifts[name] = self._compared.of(self._expected[name], observation)
        if self._on_judged is not None:
            self._on_judged(observation, drifts, self._known.secrets_of(name))

    def assessment(self, chosen: Collection[str]) -> Assessment:
        """Return the complete assessment, in the order of `chosen`."""
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
    """Return unobserved facts that expectations need, now that the kind of node is known."""
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
