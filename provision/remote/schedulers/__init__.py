"""Interface to the schedulers that assign nodes to jobs.

`gpuprov_scheduler` names the scheduler of a node: `slurm`, `kubernetes`, `hooks` (the site's own programs,
which can only drain and return), or `none`. A scheduler returns an entry for every node it is given and never
raises for a single node: a problem with a node is a line of text next to its name.

**Ownership of a drain.** Every reason that gpuprov sets begins with `gpuprov: `. A node that a person or
another program took out of service is neither drained again (which would overwrite their reason) nor resumed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from provision.remote.schedulers.lease import Lease

PREFIX = "gpuprov: "  # prefix of every reason that gpuprov sets, in every scheduler
REASON = 200  # maximum length of a reason, in characters


class Holder(enum.StrEnum):
    """The party that keeps jobs away from a node."""

    NOBODY = "nobody"  # the node takes jobs, or would if it were healthy
    US = "gpuprov"
    OTHERS = "others"


@dataclass(frozen=True)
class Job:
    """A job on a node: `id` and `user` as the scheduler writes them, `seconds` of run time if known."""

    id: str
    user: str = ""
    seconds: int | None = None


@dataclass(frozen=True)
class Scheduled:
    """The scheduler's view of one node.

    `name`: the scheduler's name for the node. `state`: in the scheduler's own terms (`IDLE+DRAIN`). `reason`:
    full reason why the node was taken out of service, with user and time if reported. `holder`: who took it
    out of service. `takes_jobs`: a job may start there now. `down`: the scheduler has lost contact (Slurm:
    DOWN or NOT_RESPONDING; Kubernetes: not Ready). `pools`: Slurm's partitions, or the Kubernetes labels that
    pods select by (`key=value`), including pools that the node left (`Pools.leave`). `lease`: the lease of
    the watch in charge (`Leases`). `error`: why nothing is known; then other fields mean nothing.
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
    """One scheduler and its nodes, which are named as in the inventory.

    Each call handles all its nodes in one request if the scheduler can, and ends within its own deadline.
    """

    kind: str  # slurm, kubernetes, hooks

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Return the state of each node and the jobs on it."""

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Keep new jobs off these nodes (node → why, without PREFIX) while running jobs continue.
        Returns node → error. Idempotent; skipping a node that others hold is no failure."""

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return nodes that gpuprov took out of service to the scheduler; return node → error.
        Idempotent; skipping a node that others hold is no failure."""

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Replace the reason (without PREFIX) of nodes that gpuprov holds; return node → error.
        A node that others hold, or that is not held at all, is a failure."""

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:
        """Put `node` into these pools of `like`, the node it replaces; return the error or "". Idempotent."""


class BreakerError(Exception):
    """The breaker cannot be read or changed, so no node may be drained for a fault. The text is one line."""


@runtime_checkable
class Breaks(Protocol):
    """A scheduler that stores one breaker for all drains that gpuprov makes because of a fault.
    All methods raise BreakerError."""

    def breaker(self) -> str | None:
        """Return why the breaker is open, which forbids draining for a fault; None while it is closed."""

    def permit(self, node: str, share: float, least: int) -> str:
        """Count one drain of this node for a fault; return why it is not allowed, or "".
        The hourly limit, `share` percent of each pool and at least `least` nodes, opens the breaker."""

    def open_breaker(self, why: str) -> None:
        """Forbid draining for a fault until a person closes the breaker. Idempotent."""

    def close_breaker(self) -> None:
        """Allow drains again and restart their count, on behalf of a person. Idempotent."""


@runtime_checkable
class Evicts(Protocol):
    """A scheduler that can restart running jobs on other nodes, so that a drain need not wait for them."""

    def evict(self, nodes: Sequence[str], deadline: float) -> dict[str, str]:
        """Move the jobs of these nodes, which gpuprov holds, to other nodes within `deadline` seconds.
        Returns node → what still runs there and why."""


@runtime_checkable
class Pools(Protocol):
    """A scheduler that counts a node out of service as a pool member until the node leaves the pool.
    (In Slurm a drained node is no burden to its partition, and slurm.conf would put it back.)"""

    def leave(self, node: str) -> str:
        """Take a node that gpuprov holds out of its pools and record them in the scheduler.
        Returns the error or "". Idempotent; skipping a node that others hold is no failure."""

    def rejoin(self, node: str) -> str:
        """Put a node back into the pools that it left; return the error or "". Idempotent."""


@runtime_checkable
class Leases(Scheduler, Protocol):
    """A scheduler that stores a lease with each node across its own restarts; `look` returns it.

    `settle`: seconds to wait after a write until two concurrent writers see which write came last; 0 if the
    scheduler rejects the second write.
    """

    settle: float

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        """Write each node's lease, or remove it (None), if the stored lease still equals `before`.
        Returns node → error."""
