"""The table of checks with id, scope, stage and module; CONTRIBUTING.md describes how to add one.

Short checks come first and loads last: bandwidth measured right after a burn is low because the GPUs are
hot, not because a link is bad. So the inventory comes first, then cards and pairs, then groups, then the burn
and NVIDIA's diagnostic, which is a load as well. No pause to cool down is needed: a collective of seconds
warms no GPU, and the loads run after everything that they could disturb.

A check's module is imported when the check is used: `drift` of a fleet needs all ids but no module.

A check that is independent of the GPUs has its module here. Otherwise each vendor's package
(provision/checks/vendors) names the module for its GPUs, with the same id, metrics and verdicts. Without one
the check is skipped on these GPUs, with a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from provision.checks.check import Check
    from provision.checks.pairs.judge import CheckBetween

Scope = Literal["node", "pair", "group"]
# The earliest stage that runs the check. Checks of several nodes are in no stage: they run with --pairs, with
# --group, or by name.
Stage = Literal["quick", "standard", "burnin", "pairs", "group", "by name"]
OWN = "gpuprov.checks"  # the entry point group of users' own checks
STAGES: tuple[Stage, ...] = ("quick", "standard", "burnin")


@dataclass(frozen=True)
class Entry:
    """One check. `scope`: what its findings are about.

    `module`: its module below provision.checks; empty if each vendor has its own. For a user's own check:
    `own`, the check itself, and `source`, its distribution (`gpuprov-own-check 1.0`).
    """

    id: str
    scope: Scope
    stage: Stage
    module: str = ""
    own: Check | None = None
    source: str = ""

    def load(self) -> Check | CheckBetween:
        """Load the check for the first vendor that has an implementation."""
        from provision.checks import vendors

        return next(check for name in vendors.ALL if (check := self.load_for(name)) is not None)

    def load_for(self, whose: str | None) -> Check | CheckBetween | None:
        """Load the check for this vendor's GPUs, or None; a user's own check is loaded for any vendor."""
        from provision.checks import vendor, vendors

        location = self.module or vendors.offered(whose).checks.get(self.id, "")
        return self.own or (cast("Check | CheckBetween", vendor.load(location)) if location else None)


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
