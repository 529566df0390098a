"""Health results as the health program of a node with eight GPUs writes them (docs/health.md); 6 KB."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from provision import __version__

FILE = "health.json"
FOLDER = "/run/gpuprov"
GPUS = 8
_CHECKS = 18


def healthy(node: str = "gpu-01", interval: int = 86400) -> dict[str, Any]:
    """With a finding that does not count yet. `interval`: seconds until the next one is due."""
    finding = {
        **dict.fromkeys(("unit", "limit", "source"), ""),
        **{
            "check": "network_ports",
            "verdict": "warn",
            "device": "mlx5_3",
            "metric": "link_downed",
            "value": 1,
        },
        **{
            "message": "mlx5_3 went down once in the last hour",
            "action": "watch",
            "evidence": ["link_downed 1"],
        },
        **{"state": "pending", "since": "2026-11-25T09:58:00Z", "seen": 1, "of": 5, "needs": 2},
        **{"clean": 0, "clear_after": 3},
    }
    gpus = [
        {
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "serial": f"165092300432{index}",
            "uuid": f"GPU-{index:08x}-2222-3333-4444-555555555555",
            "pci_address": f"00000000:{0x18 + index:02X}:00.0",
        }
        for index in range(GPUS)
    ]
    return {
        **{"format": 1, "gpuprov": __version__, "node": node, "error": ""},
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
        **{"started": "2026-11-25T10:00:00Z", "finished": "2026-11-25T10:00:02Z", "seconds": 1.9},
        **{"interval": interval, "verdict": "pass", "measured": "warn", "gpus": gpus},
        "facts": {
            "os": "debian 13",
            "kernel": "6.12.57",
            "driver": "580.126.09",
            "sku": "h100-sxm",
            "gpus": GPUS,
        },
        "checks": [
            {"check": f"check_number_{number}", "verdict": "pass", "seconds": 0.1}
            for number in range(_CHECKS)
        ],
        "findings": [finding] * 4,
    }


def lost(gpu: int, node: str = "gpu-01", interval: int = 86400) -> dict[str, Any]:
    """The same node after a GPU has fallen off the bus (Xid 79)."""
    before = healthy(node, interval)
    finding = {
        **before["findings"][0],
        "check": "gpu_inventory",
        "verdict": "fail",
        "device": f"gpu{gpu}",
        "metric": "xid",
        "value": 79,
        "message": f"gpu{gpu} has fallen off the bus (Xid 79)",
        "action": "power-cycle",
        "evidence": ["NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."],
        "state": "active",
        "needs": 1,
    }
    return {**before, "verdict": "fail", "measured": "fail", "findings": [finding, *before["findings"]]}
