"""The checks by id, in the order they run. Adding one: see CONTRIBUTING.md.

Quick before long, and heat last: bandwidth measured right after a burn is low because the GPUs are hot, not
because a link is bad. So the inventory comes first, then cards and pairs, then the groups, then the burn and
NVIDIA's diagnostic, which is heat too. No wait to cool down is needed: a collective of seconds warms no GPU,
and what heats stands behind all that it could disturb.
"""

from __future__ import annotations

from provision.checks.modules import Modules, Place
from provision.checks.registry import Checks

QUICK, STANDARD = "quick", "standard"
_STAGES = {
    "gpu_inventory": QUICK,
    "versions": QUICK,
    "host_health": QUICK,
    "network_ports": QUICK,
    "rdma_loopback": STANDARD,
    "memory_bandwidth": STANDARD,
    "p2p_bandwidth": STANDARD,
    "nccl_all_reduce": STANDARD,
    "nccl_all_gather": STANDARD,
    "nccl_reduce_scatter": STANDARD,
    "nccl_alltoall": STANDARD,
    "nccl_network": STANDARD,
    "disk_speed": STANDARD,
    "ddp_scaling": STANDARD,
    "gpu_burn": STANDARD,
    "dcgm_diag": STANDARD,
}

SHIPPED = Modules({name: Place(f"{__name__}.{name}", stage) for name, stage in _STAGES.items()})
CHECKS = Checks(SHIPPED)
