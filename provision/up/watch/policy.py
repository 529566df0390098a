"""The operator's limits for the watch, and the rules on which spare may replace which node (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from provision.errors import StackError
from provision.fleet import Fleet, Node
from provision.remote.schedulers.slurm_breaker import LEAST, SHARE, limit

SPARES = "gpuprov_spares"  # group of waiting nodes
_OBJECT = "gpuprov_watch"


@dataclass(frozen=True)
class Policy:
    """The mapping `gpuprov_watch` of the inventory; each value below is its default.

    Limits: `hourly` substitutions in 60 minutes; `share` percent of a pool (a partition), but at least one
    node, that the watch may keep out of service at the same time; if `silent_share` percent of the nodes, and
    at least `silent_nodes`, are silent, the fault is assumed to be here or in the network, and nothing is
    drained. `rack_hourly`: nodes of one rack taken out of service in 60 minutes. All parts of gpuprov
    together drain up to `breaker_share` percent of a pool, but at least `breaker_nodes`, for faults within an
    hour; then none until a person closes the breaker. `down_minutes`: how long a node must be silent here,
    and down in the scheduler, before it counts as failed.

    Spares: SKU and stack must equal the failed node's, as must the variables named in `same`; those in
    `prefer` rank several candidates. A spare was validated within `validated_hours`, or is validated before
    it counts. `verify_seconds`: time limit of its last check before it goes into service. After
    `spares_hourly` spares went to repair within 60 minutes, no other one is checked or put into service.

    `return_hours`: how long a node stays away after its first failure in 30 days; doubled by each further
    one. `metrics`: file in a node exporter's textfile folder for the watch's heartbeat.
    """

    hourly: int = 4
    rack_hourly: int = 2
    share: float = 10.0
    breaker_share: float = SHARE
    breaker_nodes: int = LEAST
    silent_share: float = 10.0
    silent_nodes: int = 3
    down_minutes: float = 5.0
    same: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ("gpuprov_rack",)
    validated_hours: float = 24.0
    verify_seconds: float = 120.0
    spares_hourly: int = 2
    return_hours: float = 1.0
    metrics: str = ""

    def out_of(self, pool: int) -> int:
        """Return how many nodes of a pool of this size the watch may keep out of service."""
        return max(1, int(pool * self.share / 100))

    def common_cause(self, failed: int, pool: int) -> bool:
        """Return whether more nodes of a pool failed at once than the breaker lets be drained."""
        return failed > limit(pool, self.breaker_share, self.breaker_nodes)

    def too_silent(self, silent: int, nodes: int) -> bool:
        """Return whether so many nodes are silent that the fault is probably not theirs."""
        return silent >= self.silent_nodes and silent * 100 >= nodes * self.silent_share


def of(fleet: Fleet, overrides: Mapping[str, Any]) -> Policy:
    """Return the policy of a fleet. Raises StackError for an invalid value, or for two policies."""
    given: dict[str, tuple[Any, str]] = {}
    for node in fleet.nodes.values():
        value = overrides.get(_OBJECT, node.variables.get(_OBJECT))
        given.setdefault(repr(value), (value, node.name))
    if len(given) > 1:
        (_, one), (_, other) = list(given.values())[:2]
        raise StackError(
            f"{_OBJECT} is not the same for {one} and {other}",
            "set it once, for the group all",
        )
    value, name = next(iter(given.values()), (None, ""))
    return policy(value, name)


def policy(value: Any, where: str) -> Policy:
    """Parse a value of `gpuprov_watch`; `where`: the node that has it."""
    if value is None:
        return Policy()
    if not isinstance(value, Mapping):
        raise StackError(
            f"{_OBJECT} ({where}) must be a mapping, not {value!r}", "docs/watch.md has its keys"
        )
    known = {one.name: one.default for one in fields(Policy)}
    if unknown := [str(name) for name in value if name not in known]:
        raise StackError(f"{_OBJECT} ({where}) has no key {unknown[0]!r}", f"it has {', '.join(known)}")
    found: dict[str, Any] = {}
    for name, wanted in value.items():
        allowed, words = _FORMS[name]
        if not allowed(wanted):
            raise StackError(
                f"{_OBJECT}.{name} ({where}) must be {words}, not {wanted!r}", "correct it in the inventory"
            )
        found[name] = tuple(wanted) if isinstance(wanted, list) else wanted
    return Policy(**found)


def _number(low: float, high: float) -> tuple[Callable[[Any], bool], str]:
    return (
        lambda value: type(value) in (int, float) and low <= value <= high
    ), f"a number from {low:g} to {high:g}"


def _whole(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: type(value) is int and low <= value <= high), f"a whole number from {low} to {high}"


_NAMES: tuple[Callable[[Any], bool], str] = (
    lambda value: (
        isinstance(value, list) and all(isinstance(name, str) and name.isidentifier() for name in value)
    ),
    "a list of variables",
)
_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "hourly": _whole(0, 1000),
    "rack_hourly": _whole(0, 1000),
    "share": _number(0, 100),
    "breaker_share": _number(0, 100),
    "breaker_nodes": _whole(1, 10_000),
    "silent_share": _number(1, 100),
    "silent_nodes": _whole(2, 10_000),
    "down_minutes": _number(1, 1440),
    "same": _NAMES,
    "prefer": _NAMES,
    "validated_hours": _number(1, 24 * 365),
    "verify_seconds": _number(5, 3600),
    "spares_hourly": _whole(1, 1000),
    "return_hours": _number(0, 24 * 30),
    "metrics": (
        lambda value: isinstance(value, str) and value.startswith("/") and value.endswith(".prom"),
        "the full path of a .prom file",
    ),
}


def fits(spare: Node, node: Node, policy: Policy) -> bool:
    """Return whether a spare may replace a node."""
    names = ("gpuprov_sku", "gpuprov_stack", "gpuprov_expected_gpus", *policy.same)
    return all(spare.variables.get(name) == node.variables.get(name) for name in names)


def distance(spare: Node, node: Node, policy: Policy) -> int:
    """Count the preferred variables in which two nodes differ; fewer are better."""
    return sum(spare.variables.get(name) != node.variables.get(name) for name in policy.prefer)
