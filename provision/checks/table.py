"""The table of checks: each one's id, scope, stage and module. Adding one: see CONTRIBUTING.md.

Quick before long, and heat last: bandwidth measured right after a burn is low because the GPUs are hot, not
because a link is bad. So the inventory comes first, then cards and pairs, then the groups, then the burn and
NVIDIA's diagnostic, which is heat too. No wait to cool down is needed: a collective of seconds warms no GPU,
and what heats stands behind all that it could disturb.

A check's module is imported when the check is used: a drift of a fleet needs the ids of all, and no module.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from provision import pairs

Scope = Literal["node", "pair", "group"]
# The earliest stage that runs it; checks of several nodes are in none: they run for --pairs, for --group, or
# for their name.
Stage = Literal["quick", "standard", "burnin", "pairs", "group", "by name"]
STAGES: tuple[Stage, ...] = ("quick", "standard", "burnin")


@dataclass(frozen=True)
class Entry:
    """One check. `scope`: what its findings are about. `module`: by default the module here of its id.
    Of a user's own check `own` is the check itself, and `source` its distribution, `gpuprov-own-check 1.0`.
    """

    id: str
    scope: Scope
    stage: Stage
    module: str = ""
    own: Any = None
    source: str = ""

    def load(self) -> Any:
        """The check."""
        return self.own or importlib.import_module(self.module or f"{__package__}.{self.id}")


BUILT_IN = (
    Entry("gpu_inventory", "node", "quick"),
    Entry("versions", "node", "quick"),
    Entry("host_health", "node", "quick"),
    Entry("network_ports", "node", "quick"),
    Entry("rdma_loopback", "node", "standard"),
    Entry("memory_bandwidth", "node", "standard"),
    Entry("p2p_bandwidth", "pair", "standard"),
    Entry("nccl_all_reduce", "group", "standard"),
    Entry("nccl_all_gather", "group", "standard"),
    Entry("nccl_reduce_scatter", "group", "standard"),
    Entry("nccl_alltoall", "group", "standard"),
    Entry("nccl_network", "group", "standard"),
    Entry("disk_speed", "node", "standard"),
    Entry("ddp_scaling", "node", "standard"),
    Entry("gpu_burn", "node", "standard"),
    Entry("dcgm_diag", "node", "standard"),
    Entry("pair_bandwidth", "pair", "pairs", f"{pairs.__name__}.write_bw"),
    Entry("pair_latency", "pair", "pairs", f"{pairs.__name__}.write_lat"),
    Entry("nccl_pair", "pair", "by name", f"{pairs.__name__}.nccl_pair"),
    Entry("nccl_group", "group", "group", f"{pairs.__name__}.nccl_group"),
)
