"""The checks by id, in the order they run. Adding one: see CONTRIBUTING.md.

Quick before long, and heat last: bandwidth measured right after a burn is low because the GPUs are hot, not
because a link is bad. So the inventory comes first, then cards and pairs, then the groups, then the burn and
NVIDIA's diagnostic, which is heat too. No wait to cool down is needed: a collective of seconds warms no GPU,
and what heats stands behind all that it could disturb.
"""

from __future__ import annotations

from provision.checks import (
    dcgm_diag,
    ddp_scaling,
    disk_speed,
    gpu_burn,
    gpu_inventory,
    host_health,
    memory_bandwidth,
    nccl_all_gather,
    nccl_all_reduce,
    nccl_alltoall,
    nccl_network,
    nccl_reduce_scatter,
    network_ports,
    p2p_bandwidth,
    rdma_loopback,
    versions,
)
from provision.checks.check import Check
from provision.checks.registry import Checks

CHECKS: dict[str, Check] = Checks(
    {
        "gpu_inventory": gpu_inventory,
        "versions": versions,
        "host_health": host_health,
        "network_ports": network_ports,
        "rdma_loopback": rdma_loopback,
        "memory_bandwidth": memory_bandwidth,
        "p2p_bandwidth": p2p_bandwidth,
        "nccl_all_reduce": nccl_all_reduce,
        "nccl_all_gather": nccl_all_gather,
        "nccl_reduce_scatter": nccl_reduce_scatter,
        "nccl_alltoall": nccl_alltoall,
        "nccl_network": nccl_network,
        "disk_speed": disk_speed,
        "ddp_scaling": ddp_scaling,
        "gpu_burn": gpu_burn,
        "dcgm_diag": dcgm_diag,
    }
)
