"""The one flow `plan`, `up` and `drift` share: what is declared, what is observed → what differs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provision import ask_ansible, compatibility, diagnosis, lockfile, resolve, stack
from provision import observe as observer
from provision.compatibility import Refusal
from provision.drift import Drift, drifts
from provision.errors import CompatibilityError
from provision.expectations import Expectation, by_fact, facts_to_ask, of_node, roles_in_order
from provision.inventory import Fleet
from provision.memo import frozen
from provision.node_names import fold
from provision.observe import Observation
from provision.own_limits import MOST
from provision.shared_facts import Pool

Observe = Callable[..., dict[str, Observation]]
_DERIVED = frozenset({"gpu.sku"})  # made here from what the node answered, so not to be asked for


@dataclass(frozen=True)
class Assessment:
    """What is declared and what was found, node by node (all mappings are by node name, in inventory order).

    `declared` is what Ansible is given; `views` is what templates see (never to be stored: it may hold
    secrets). `observations` has every node, `described` (its gpuprov_node) those that answered; `refused`
    those a compatibility rule forbids to touch; `expected` and `drifts` the others.
    """

    fleet: Fleet
    overrides: Mapping[str, Any]
    declared: Mapping[str, Mapping[str, Any]]
    views: Mapping[str, resolve.View]
    secrets: frozenset[str]
    observations: Mapping[str, Observation]
    described: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected: Mapping[str, list[Expectation]] = field(default_factory=dict)
    drifts: Mapping[str, list[Drift]] = field(default_factory=dict)
    refused: Mapping[str, list[Refusal]] = field(default_factory=dict)

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
        return diagnosis.causes(
            {
                name: (said.facts, self.expected.get(name, ()))
                for name, said in self.observations.items()
                if said.error is None
            }
        )

    @property
    def unreachable(self) -> dict[str, str]:
        """Node → why nothing is known about it."""
        return {node: said.error for node, said in self.observations.items() if said.error is not None}

    @property
    def waves(self) -> dict[str, int]:
        """Node → its `gpuprov_wave`, 0 when it has none."""
        return {node: int(declared.get("gpuprov_wave") or 0) for node, declared in self.declared.items()}

    @property
    def roles(self) -> dict[str, tuple[str, ...]]:
        """Node → the roles it takes part in: all, or those of its `gpuprov_roles`."""
        order = roles_in_order()
        chosen = {node: declared.get("gpuprov_roles") for node, declared in self.declared.items()}
        return {
            node: order if names is None else tuple(role for role in order if role in names)
            for node, names in chosen.items()
        }

    def hosts(self, chosen: Collection[str]) -> dict[str, dict[str, Any]]:
        """The variables of these nodes for Ansible, `gpuprov_node` among them."""
        return {node: {**self.declared[node], "gpuprov_node": self.described[node]} for node in chosen}


def assess(
    fleet: Fleet,
    overrides: Mapping[str, Any],
    *,
    timeout: float = 60.0,
    connections: int = MOST,
    on_done: Callable[[Observation], None] | None = None,
    say: Callable[[str], None] | None = None,
    observe: Observe | None = None,
    run: ask_ansible.Run | None = None,
    also: Collection[str] = (),
) -> Assessment:
    """Look at the whole fleet, one connection a node.

    Raises StackError and CompatibilityError before any node is touched. Afterwards a node's trouble is its
    own: unreachable or refused, it is named, and the others go on. `say` is given lines for people meanwhile.
    `also`: facts to ask of every node beside those its roles promise. `observe` and `run` stand in for nodes
    in tests.
    """
    stack.check_names(fleet, overrides)
    declared = {name: stack.declared(node, overrides) for name, node in fleet.nodes.items()}
    resolved = resolve.resolve(fleet, declared, run)
    _refuse_impossible(resolved.views)
    start = Assessment(fleet, overrides, declared, resolved.views, resolved.secrets, {})
    seen = look(
        start,
        list(fleet.nodes),
        timeout=timeout,
        connections=connections,
        on_done=on_done,
        say=say,
        observe=observe,
        also=also,
    )
    lockfile.refuse_contradictions(seen.expected)
    return seen


def look(
    known: Assessment,
    chosen: Collection[str],
    *,
    timeout: float = 60.0,
    connections: int = MOST,
    on_done: Callable[[Observation], None] | None = None,
    say: Callable[[str], None] | None = None,
    observe: Observe | None = None,
    also: Collection[str] = (),
) -> Assessment:
    """Observe these nodes (again) and compare: an assessment of them alone, declared as in `known`."""
    beside = diagnosis.FACTS.union(also)  # in the same round trip
    whole = functools.cache(beside.union)  # one set for all that are asked the same
    ask = {name: whole(facts_to_ask(known.views[name])) for name in chosen}
    nodes = [known.fleet.nodes[name] for name in chosen]
    observe = observe or functools.partial(
        observer.observe, vault_password_files=known.fleet.vault_password_files, say=say
    )
    observations = observe(nodes, ask, timeout=timeout, connections=connections, on_done=on_done)
    described, refused, expected = _judge(known, observations)
    missing = _missing(expected, observations)
    if missing:
        again = [known.fleet.nodes[name] for name in missing]
        late = observe(again, missing, timeout=timeout, connections=connections, on_done=None)
        observations = {**observations, **{name: _joined(observations[name], late[name]) for name in missing}}
    pool = Pool()
    observations = {name: _with_sku(observations[name], described.get(name), pool) for name in chosen}
    found = {
        name: drifts(expectations, observations[name])
        for name, expectations in expected.items()
        if observations[name].error is None
    }
    return replace(
        known,
        observations=observations,
        described=described,
        expected=expected,
        refused=refused,
        drifts=found,
    )


def _judge(
    known: Assessment, observations: Mapping[str, Observation]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[Refusal]], dict[str, list[Expectation]]]:
    described: dict[str, dict[str, Any]] = {}
    refused: dict[str, list[Refusal]] = {}
    expected: dict[str, list[Expectation]] = {}
    machines: dict[Hashable, dict[str, Any]] = {}  # most are alike
    for name, observation in observations.items():
        if observation.error is None:
            machine = stack.describe_node(observation.facts)
            described[name] = machines.setdefault(frozen(machine), machine)
            against = compatibility.check_node(known.views[name], described[name], name)
            against = against or lockfile.uncovered(known.views[name], described[name], name)
            if against:
                refused[name] = against
            else:
                expected[name] = of_node(known.views[name], described[name])
    return described, refused, expected


def _refuse_impossible(views: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise CompatibilityError with everything that is impossible on any machine, each thing once."""
    affected: dict[tuple[str, str, str], list[str]] = {}
    for name, view in views.items():
        for refusal in compatibility.check_declared(view, ""):
            affected.setdefault((refusal.what.removeprefix(": "), refusal.fix, refusal.source), []).append(
                name
            )
    if affected:
        whats = [f"{fold(nodes)}: {what} [{source}]" for (what, _, source), nodes in affected.items()]
        fixes = dict.fromkeys(fix for _, fix, _ in affected)
        raise CompatibilityError("\n  ".join(whats), "; ".join(fixes))


def _missing(
    expected: Mapping[str, list[Expectation]], observations: Mapping[str, Observation]
) -> dict[str, frozenset[str]]:
    """Facts whose names depend on what the node turned out to be, and which it was not asked for."""
    missing = {}
    for name, expectations in expected.items():
        facts, problems = observations[name].facts, observations[name].problems
        unasked = [
            fact for fact in by_fact(expectations) - facts.keys() - _DERIVED if not _excused(fact, problems)
        ]
        if unasked:
            missing[name] = frozenset(unasked)
    return missing


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
    facts = {**observation.facts, "gpu.sku": described["gpu"]["sku"]}
    return replace(observation, facts=pool.of(facts))
