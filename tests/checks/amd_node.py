"""A simulated MI300X node and the amd-smi documents that describe it; test_amd.py names their sources."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import Output
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.node_facts import NodeFacts, node_facts_of
from provision.checks.kernel.kernel_log import bus_address
from provision.desired import stack
from tests.support.observed import debian

BUSES = ("05", "26", "46", "65", "85", "a6", "c6", "e5")
ADDRESSES = [f"0000:{bus}:00.0" for bus in BUSES]
GPUS = {bus_address(address): f"gpu{index}" for index, address in enumerate(ADDRESSES)}
Said = set[tuple[str, str, str, str]]  # verdict, device, metric, action
LOG = "[    0.000000] Linux version 6.12.0\n"


def facts(count: int = 8) -> dict[str, Any]:
    """Return the facts of a healthy MI300X node."""
    device = {
        **{"driver": "amdgpu", "memory_bytes": 206141652992, "compute_units": 304, "partitions": 1},
        **{"compute_partition": "SPX", "memory_partition": "NPS1", "vbios": "113-M3000100-102"},
        **{"link_speed": "32.0 GT/s PCIe", "link_speed_max": "32.0 GT/s PCIe"},
        **{"link_width": 16, "link_width_max": 16, "xgmi_links": 7, "xgmi_peers": 7},
        **{"uncorrected": 0, "corrected": 0, "deferred": 0, "blocks": "", "unread": ""},
        **{"bad_pages": 0, "bad_pages_in_use": 0},
    }
    here = ADDRESSES[:count]
    devices = [
        {**device, "address": at, "serial": f"69{n}", "unique_id": f"dc9128{n}"} for n, at in enumerate(here)
    ]
    return {
        **debian("13", "trixie", "6.12.0"),
        **{"gpu.count": count, "gpu.pci": [{"address": at, "device_id": "1002:74a1"} for at in here]},
        **{"amdgpu.loaded_version": "6.12.12", "amdgpu.rocm": "6.4.1-83", "amdgpu.devices": devices},
        **{"firmware.bios_version": "1.2", "firmware.system": "A server", "firmware.rdma": []},
    }


def documents(count: int = 8) -> dict[str, Any]:
    """Return the amd-smi documents of a healthy MI300X node, by command."""
    static, metric, links, programs = [], [], [], []
    throttle: dict[str, Any] = {"accumulation_counter": 3808991, "ppt_accumulated": 585613}
    throttle |= {"socket_thermal_accumulated": 2190, "prochot_accumulated": 0}
    for name in ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal"):
        throttle[f"{name}_violation_status"] = "NOT ACTIVE"
    for index in range(count):
        static.append(
            {
                "gpu": index,
                "asic": {"market_name": "AMD Instinct MI300X", "oam_id": index},
                "bus": {"bdf": ADDRESSES[index]},
                "limit": {
                    "max_power": {"value": 750, "unit": "W"},
                    "socket_power": {"value": 750, "unit": "W"},
                },
                "ras": {"bad_page_threshold": 128, "ecc_block_state": {"UMC": "ENABLED"}},
            }
        )
        metric.append(
            {
                "gpu": index,
                "usage": {"gfx_activity": {"value": 0, "unit": "%"}},
                "temperature": {
                    "edge": "N/A",
                    "hotspot": {"value": 37 + index % 3, "unit": "C"},
                    "mem": {"value": 42 + index % 3, "unit": "C"},
                },
                "pcie": {"width": 16, "speed": {"value": 32, "unit": "GT/s"}, "replay_count": 5},
                "throttle": dict(throttle),
            }
        )
        links.append({"gpu": index, "bdf": ADDRESSES[index], "link_status": [*["U"] * (count - 1), "X"]})
        programs.append({"gpu": index, "process_list": [{"process_info": "No running processes detected"}]})
    later = copy.deepcopy(metric)
    return {
        **{"static": {"gpu_data": static}, "metric": {"gpu_data": metric}, "xgmi": {"link_status": links}},
        **{"process": programs, "later": {"gpu_data": later}},
    }


def node_of(
    known: Mapping[str, Any], problems: Mapping[str, str] | None = None, **declared: Any
) -> NodeFacts:
    return node_facts_of("gpu-01", known, problems or {}, stack.describe_node(known), declared)


def output(name: str, stdout: str, rc: int | None = 0, argv: Sequence[str] = (), **more: Any) -> Output:
    return Output(name, tuple(argv) or ("amd-smi", name, "--json"), rc, stdout, "", 0.5, **more)


def said(findings: Sequence[Finding]) -> Said:
    """Return the failures, warnings and errors as (verdict, device, metric, action)."""
    bad = (Verdict.FAIL, Verdict.WARN, Verdict.ERROR)
    return {(f.verdict.value, f.device, f.metric, f.action) for f in findings if f.verdict in bad}
