"""Schedulers: who hands nodes out to jobs, behind one small interface.

`gpuprov_scheduler` of a node says which one it has: `slurm`, `kubernetes`, `hooks` (programs of the site,
which can drain and return, and nothing else), or `none`. A scheduler answers for every node it was given and
raises for none: what went wrong with a node is a line beside its name.

**Whose drain it is.** Each reason that we give begins with `gpuprov: `. A node that a person or another
program took out of service is theirs: it is neither drained again (their reason would be lost) nor resumed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from provision.remote.schedulers.lease import Lease

PREFIX = "gpuprov: "  # begins each reason of ours, in every scheduler
REASON = 200  # characters of one that are kept


class Holder(enum.StrEnum):
    """Who keeps jobs away from a node."""

    NOBODY = "nobody"  # it takes jobs, or would if it were well
    US = "gpuprov"
    OTHERS = "others"


@dataclass(frozen=True)
class Job:
    """A job on a node: `id` and `user` as the scheduler writes them; `seconds` it has run for, if known."""

    id: str
    user: str = ""
    seconds: int | None = None


@dataclass(frozen=True)
class Scheduled:
    """What a scheduler says of one node.

    `name`: what it calls the node. `state`: in its own words (`IDLE+DRAIN`). `reason`: why the node was taken
    out of service, whole, with who and when where it says so. `holder`: whose doing that is. `takes_jobs`: it
    may start a job there now. `down`: the scheduler itself has lost it (Slurm: DOWN or NOT_RESPONDING;
    Kubernetes: not Ready). `pools`: Slurm's partitions, the labels of Kubernetes that pods select by
    (`key=value`), those included that it left (`Pools.leave`). `lease`: which watch has it (`Leases`).
    `error`: why nothing is known; then the rest says nothing.
    """

    name: str
    state: str = ""
    reason: str = ""
    holder: Holder = Holder.NOBODY
    takes_jobs: bool = False
    down: bool = False
    pools: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = ()
    error: str = ""
    lease: Lease | None = None


class Scheduler(Protocol):
    """One scheduler, and the nodes that it has. Names of nodes are the inventory's.

    Each call asks for all its nodes together, where the scheduler can, and ends within its own deadline.
    """

    kind: str  # slurm, kubernetes, hooks

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Each node's state and the jobs on it."""

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Let no new job onto these nodes (node → why, without PREFIX); jobs that run go on. Node → why that
        failed, for those where it did. Idempotent; a node that others hold is left to them, and that is no
        failure."""

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Give nodes that we took out of service back. Node → why that failed. Idempotent; a node that others
        hold stays as it is, and that is no failure."""

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Replace the reason of nodes that we hold already (without PREFIX). Node → why that failed; that
        somebody else holds it, or nobody, is a failure."""

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:
        """Put `node` into these pools of `like`, whose place it takes; why that failed, or "". Idempotent."""


class BreakerError(Exception):
    """Why the breaker cannot be read or changed: one line. Nothing may be drained for a fault then."""


@runtime_checkable
class Breaks(Protocol):
    """A scheduler that keeps the breaker of all drains for a fault, for everything of ours that drains in it.
    All methods raise BreakerError."""

    def breaker(self) -> str | None:
        """Why it is open, so that nothing may be drained for a fault; None while it is closed."""

    def permit(self, node: str, share: float, least: int) -> str:
        """Count one drain of this node for a fault, of `share` percent of each of its pools, and `least`
        nodes at least, within an hour. Why it may not be drained, or ""; at the limit the breaker opens."""

    def open_breaker(self, why: str) -> None:
        """Have nothing drained for a fault until a person closes it. Idempotent."""

    def close_breaker(self) -> None:
        """What a person does: drains go on, and begin to be counted anew. Idempotent."""


@runtime_checkable
class Evicts(Protocol):
    """A scheduler whose jobs need not end by themselves: it can start them elsewhere."""

    def evict(self, nodes: Sequence[str], deadline: float) -> dict[str, str]:
        """Have what runs on these nodes, which we hold, started elsewhere, within `deadline` seconds. Node →
        what still runs there and why."""


@runtime_checkable
class Pools(Protocol):
    """A scheduler in which a node out of service still counts as one of its pool, until it leaves that. (In
    Slurm a drained node is no burden to its partition, and slurm.conf would put it back.)"""

    def leave(self, node: str) -> str:
        """Take a node that we hold out of its pools, and keep with the scheduler which they were; why that
        failed, or "". Idempotent; a node that others hold stays as it is, and that is no failure."""

    def rejoin(self, node: str) -> str:
        """Put a node back into the pools that it left; why that failed, or "". Idempotent."""


@runtime_checkable
class Leases(Scheduler, Protocol):
    """A scheduler that keeps a lease beside each node, through restarts of its own; `look` returns it.

    `settle`: seconds after a write until two that wrote at the same time see which of them was the last; 0
    where the scheduler refuses the second one.
    """

    settle: float

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        """Write the lease of each of these nodes, or remove it (None), where it still is the one in `before`.
        Node → why that failed."""
