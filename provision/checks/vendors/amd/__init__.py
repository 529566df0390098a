"""Checks for AMD's GPUs."""

from __future__ import annotations

from provision.checks.vendor import Vendor

_HERE = "vendors.amd"
OFFERED = Vendor(
    checks={
        **{
            name: f"{_HERE}.{name}"
            for name in (
                *("gpu_inventory", "versions", "host_health", "rdma_loopback", "memory_bandwidth"),
                *("p2p_bandwidth", "gpu_burn", "amd_acceptance"),
            )
        },
        "nccl_all_reduce": f"{_HERE}.rccl:ALL_REDUCE",
        "nccl_all_gather": f"{_HERE}.rccl:ALL_GATHER",
        "nccl_reduce_scatter": f"{_HERE}.rccl:REDUCE_SCATTER",
        "nccl_alltoall": f"{_HERE}.rccl:ALL_TO_ALL",
        "nccl_network": f"{_HERE}.rccl:OVER_CARDS",
        "nccl_pair": f"{_HERE}.rccl:PAIR",
        "nccl_group": f"{_HERE}.rccl:GROUP",
    },
    parts={
        "answers": f"{_HERE}.gpu_answers",
        "hours": f"{_HERE}.telemetry:judge_hours",
        "held": f"{_HERE}.sensors:HELD",
        "fatal_lines": "kernel.vendors.driver_log:fatal_lines",
        "kept_lines": "kernel.vendors.driver_log:kept_lines",
    },
)
