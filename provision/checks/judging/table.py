"""The table of checks: each one's id, scope, stage and module. Adding one: see CONTRIBUTING.md.

Quick before long, and heat last: bandwidth measured right after a burn is low because the GPUs are hot, not
because a link is bad. So the inventory comes first, then cards and pairs, then the groups, then the burn and
NVIDIA's diagnostic, which is heat too. No wait to cool down is needed: a collective of seconds warms no GPU,
and what heats stands behind all that it could disturb.

A check's module is imported when the check is used: a drift of a fleet needs the ids of all, and no module.

A check that looks at no GPU has its module here; how another is done on a vendor's GPUs, under the same id
and with the same metrics and verdicts, that vendor's package says (provision/checks/vendors). Where it says
nothing, nothing was built for these GPUs: that is a skip, with a line that says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from provision.checks.check import Check
    from provision.checks.pairs.judge import CheckBetween

Scope = Literal["node", "pair", "group"]
# The earliest stage that runs it; checks of several nodes are in none: they run for --pairs, for --group, or
# for their name.
Stage = Literal["quick", "standard", "burnin", "pairs", "group", "by name"]
OWN = "gpuprov.checks"  # the entry point group of users' own checks
STAGES: tuple[Stage, ...] = ("quick", "standard", "burnin")


@dataclass(frozen=True)
class Entry:
    """One check. `scope`: what its findings are about. `module`: where it is below provision.checks, whosever
    the GPUs are; empty where each vendor has its own. Of a user's own check `own` is the check itself, and
    `source` its distribution, `gpuprov-own-check 1.0`.
    """

    id: str
    scope: Scope
    stage: Stage
    module: str = ""
    own: Check | None = None
    source: str = ""

    def load(self) -> Check | CheckBetween:
        """The check, as the first vendor's GPUs take it for which it was built."""
        from provision.checks import vendors

        return next(found for name in vendors.ALL if (found := self.load_for(name)) is not None)

    def load_for(self, whose: str | None) -> Check | CheckBetween | None:
        """The check as nodes with this vendor's GPUs take it; None where nothing was built for them. Whether
        a user's own check fits is its author's to know."""
        from provision.checks import vendor, vendors

        place = self.module or vendors.offered(whose).checks.get(self.id, "")
        return self.own or (cast("Check | CheckBetween", vendor.load(place)) if place else None)


BUILT_IN = (
    Entry("gpu_inventory", "node", "quick"),
    Entry("versions", "node", "quick"),
    Entry("host_health", "node", "quick"),
    Entry("network_ports", "node", "quick", "network.network_ports"),
    Entry("rdma_loopback", "node", "standard"),
    Entry("memory_bandwidth", "node", "standard"),
    Entry("p2p_bandwidth", "pair", "standard"),
    Entry("nccl_all_reduce", "group", "standard"),
    Entry("nccl_all_gather", "group", "standard"),
    Entry("nccl_reduce_scatter", "group", "standard"),
    Entry("nccl_alltoall", "group", "standard"),
    Entry("nccl_network", "group", "standard"),
    Entry("disk_speed", "node", "standard", "host.disk_speed"),
    Entry("ddp_scaling", "node", "standard"),
    Entry("gpu_burn", "node", "standard"),
    Entry("dcgm_diag", "node", "standard"),
    Entry("amd_acceptance", "node", "burnin"),
    Entry("pair_bandwidth", "pair", "pairs", "pairs.write_bw"),
    Entry("pair_latency", "pair", "pairs", "pairs.write_lat"),
    Entry("nccl_pair", "pair", "by name"),
    Entry("nccl_group", "group", "group"),
)
