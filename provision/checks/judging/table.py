"""The table of checks: each one's id, scope, stage and module. Adding one: see CONTRIBUTING.md.

Quick before long, and heat last: bandwidth measured right after a burn is low because the GPUs are hot, not
because a link is bad. So the inventory comes first, then cards and pairs, then the groups, then the burn and
NVIDIA's diagnostic, which is heat too. No wait to cool down is needed: a collective of seconds warms no GPU,
and what heats stands behind all that it could disturb.

A check's module is imported when the check is used: a drift of a fleet needs the ids of all, and no module.

A module is for NVIDIA's GPUs, and empty for a test of AMD's alone. `amd` names the one for AMD's, with the
same id, metrics and verdicts; it is SAME where no GPU takes part, and empty where nothing was built for them.
A check without a module for a node's GPUs is a skip, with a line that says so.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

Scope = Literal["node", "pair", "group"]
# The earliest stage that runs it; checks of several nodes are in none: they run for --pairs, for --group, or
# for their name.
Stage = Literal["quick", "standard", "burnin", "pairs", "group", "by name"]
STAGES: tuple[Stage, ...] = ("quick", "standard", "burnin")
SAME = "same"  # in place of a module: the check looks at no GPU, whosever they are


@dataclass(frozen=True)
class Entry:
    """One check. `scope`: what its findings are about. `module`: where it is below provision.checks, `amd`:
    where it is for nodes with AMD's GPUs. Of a user's own check `own` is the check itself, and `source` its
    distribution, `gpuprov-own-check 1.0`.
    """

    id: str
    scope: Scope
    stage: Stage
    module: str = ""
    own: Any = None
    source: str = ""
    amd: str = ""

    def load(self) -> Any:
        """The check."""
        return self.own or importlib.import_module(f"provision.checks.{self.module or self.amd}")

    def load_for(self, vendor: str | None) -> Any:
        """The check as nodes with this vendor's GPUs take it; None where nothing was built for them. Whether
        a user's own check fits is its author's to know."""
        if vendor != "amd" or self.own is not None or self.amd == SAME:
            return self.load() if self.module or self.own else None
        return importlib.import_module(f"provision.checks.{self.amd}") if self.amd else None


BUILT_IN = (
    Entry("gpu_inventory", "node", "quick", "gpu.gpu_inventory", amd="vendors.amd.gpu_inventory"),
    Entry("versions", "node", "quick", "host.versions", amd="vendors.amd.versions"),
    Entry("host_health", "node", "quick", "host.host_health", amd="vendors.amd.host_health"),
    Entry("network_ports", "node", "quick", "network.network_ports", amd=SAME),
    Entry("rdma_loopback", "node", "standard", "network.rdma_loopback", amd="vendors.amd.rdma_loopback"),
    Entry("memory_bandwidth", "node", "standard", "gpu.memory_bandwidth", amd="vendors.amd.memory_bandwidth"),
    Entry("p2p_bandwidth", "pair", "standard", "gpu.p2p_bandwidth", amd="vendors.amd.p2p_bandwidth"),
    Entry("nccl_all_reduce", "group", "standard", "nccl.nccl_all_reduce", amd="vendors.amd.nccl_all_reduce"),
    Entry("nccl_all_gather", "group", "standard", "nccl.nccl_all_gather", amd="vendors.amd.nccl_all_gather"),
    Entry(
        "nccl_reduce_scatter",
        "group",
        "standard",
        "nccl.nccl_reduce_scatter",
        amd="vendors.amd.nccl_reduce_scatter",
    ),
    Entry("nccl_alltoall", "group", "standard", "nccl.nccl_alltoall", amd="vendors.amd.nccl_alltoall"),
    Entry("nccl_network", "group", "standard", "nccl.nccl_network", amd="vendors.amd.nccl_network"),
    Entry("disk_speed", "node", "standard", "host.disk_speed", amd=SAME),
    Entry("ddp_scaling", "node", "standard", "nccl.ddp_scaling"),
    Entry("gpu_burn", "node", "standard", "gpu.gpu_burn", amd="vendors.amd.gpu_burn"),
    Entry("dcgm_diag", "node", "standard", "gpu.dcgm_diag"),
    Entry("amd_acceptance", "node", "burnin", amd="vendors.amd.amd_acceptance"),
    Entry("pair_bandwidth", "pair", "pairs", "pairs.write_bw", amd=SAME),
    Entry("pair_latency", "pair", "pairs", "pairs.write_lat", amd=SAME),
    Entry("nccl_pair", "pair", "by name", "pairs.nccl_pair", amd="vendors.amd.nccl_pair"),
    Entry("nccl_group", "group", "group", "pairs.nccl_group", amd="vendors.amd.nccl_group"),
)
