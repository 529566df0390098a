"""Checks for NVIDIA's GPUs."""

from __future__ import annotations

from provision.checks.vendor import Vendor

OFFERED = Vendor(
    checks={
        "gpu_inventory": "gpu.gpu_inventory",
        "versions": "host.versions",
        "host_health": "host.host_health",
        "rdma_loopback": "network.rdma_loopback",
        "memory_bandwidth": "gpu.memory_bandwidth",
        "p2p_bandwidth": "gpu.p2p_bandwidth",
        "nccl_all_reduce": "nccl.collectives:ALL_REDUCE",
        "nccl_all_gather": "nccl.collectives:ALL_GATHER",
        "nccl_reduce_scatter": "nccl.collectives:REDUCE_SCATTER",
        "nccl_alltoall": "nccl.collectives:ALL_TO_ALL",
        "nccl_network": "nccl.nccl_network:OVER_CARDS",
        "ddp_scaling": "nccl.ddp_scaling",
        "gpu_burn": "gpu.gpu_burn",
        "dcgm_diag": "vendors.nvidia.dcgm_diag",
        "nccl_pair": "pairs.nccl_between:NCCL_PAIR",
        "nccl_group": "pairs.nccl_between:NCCL_GROUP",
    },
    parts={
        "answers": "gpu.gpu_answers",
        "hours": "gpu.telemetry_rules:judge",
        "held": "gpu.telemetry:HELD",
        "fatal_lines": "kernel.kernel_meaning:stopping_lines",
        "kept_lines": "kernel.kernel_meaning:kept_lines",
    },
)
