"""Registry of checks: names and stages are known without importing the checks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from provision.checks import vendors
from provision.checks.check import Check
from provision.checks.gpu import gpu_burn, gpu_inventory, memory_bandwidth, p2p_bandwidth
from provision.checks.host import disk_speed, host_health, versions
from provision.checks.judging.registry import CHECKS
from provision.checks.judging.table import BUILT_IN, Entry
from provision.checks.nccl import collectives, ddp_scaling
from provision.checks.nccl.nccl_network import OVER_CARDS
from provision.checks.network import network_ports, rdma_loopback
from provision.checks.pairs import write_bw, write_lat
from provision.checks.pairs.judge import CheckBetween
from provision.checks.pairs.nccl_between import NCCL_GROUP, NCCL_PAIR
from provision.checks.vendors.amd import amd_acceptance, rccl
from provision.checks.vendors.amd import gpu_burn as amd_gpu_burn
from provision.checks.vendors.amd import gpu_inventory as amd_gpu_inventory
from provision.checks.vendors.amd import host_health as amd_host_health
from provision.checks.vendors.amd import memory_bandwidth as amd_memory_bandwidth
from provision.checks.vendors.amd import p2p_bandwidth as amd_p2p_bandwidth
from provision.checks.vendors.amd import rdma_loopback as amd_rdma_loopback
from provision.checks.vendors.amd import versions as amd_versions
from provision.checks.vendors.nvidia import dcgm_diag

# mypy verifies that each built-in check implements the Check protocol.
OURS: list[Check] = [
    *(gpu_inventory, versions, host_health, network_ports, rdma_loopback, memory_bandwidth, p2p_bandwidth),
    *(collectives.ALL_REDUCE, collectives.ALL_GATHER, collectives.REDUCE_SCATTER, collectives.ALL_TO_ALL),
    *(OVER_CARDS, disk_speed, ddp_scaling, gpu_burn, dcgm_diag),
    *(amd_gpu_inventory, amd_versions, amd_host_health, amd_rdma_loopback, amd_memory_bandwidth),
    *(amd_p2p_bandwidth, amd_gpu_burn, amd_acceptance),
    *(rccl.ALL_REDUCE, rccl.ALL_GATHER, rccl.REDUCE_SCATTER, rccl.ALL_TO_ALL, rccl.OVER_CARDS),
]
BETWEEN: list[CheckBetween] = [write_bw, write_lat, NCCL_PAIR, NCCL_GROUP, rccl.PAIR, rccl.GROUP]


def test_every_check_of_the_table_has_the_shape_of_one() -> None:
    used = [one.load_for(vendor) for one in BUILT_IN for vendor in vendors.ALL]
    assert {id(one) for one in used if one is not None} == {id(one) for one in (*OURS, *BETWEEN)}


@pytest.mark.parametrize("entry", BUILT_IN, ids=[one.id for one in BUILT_IN])
def test_a_check_is_what_its_line_says(entry: Entry) -> None:
    found = [entry.load_for(vendor) for vendor in vendors.ALL]
    assert {getattr(one, "ID", None) for one in found if one is not None} == {entry.id}
    assert entry.load() in found
    assert not entry.module or found == [entry.load()] * len(found)
    assert entry.load_for(None) is entry.load_for("mixed") is entry.load_for("nvidia")


def test_a_name_of_no_check_is_no_check() -> None:
    assert "gpu_burns" not in CHECKS
    with pytest.raises(KeyError):
        CHECKS["gpu_burns"]


KINDS = tuple(
    f"provision.checks.{kind}." for kind in ("gpu", "host", "network", "nccl", "pairs", "vendors.amd")
)


def test_a_look_at_a_fleet_imports_no_check() -> None:
    """Importing the checks would take most of the time of a short command."""
    program = (
        "import sys; from provision.drift import assess, drift_report, formats;"
        "from provision.checks.judging import registry;"
        "registry.select('standard'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = [name for name in done.stdout.split() if name.startswith(KINDS)]
    assert imported == []
