"""Health results in the format of an 8-GPU node's health program (docs/health.md); 6 KB."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support.health_results import GPU, finding, result

FILE = "health.json"
FOLDER = "/run/gpuprov"
GPUS = 8
_CHECKS = 18


def healthy(node: str = "gpu-01", interval: int = 86400) -> dict[str, Any]:
    """Return a healthy result with pending findings. `interval`: seconds until the next result is due."""
    pending = finding(
        **{
            "check": "network_ports",
            "verdict": "warn",
            "device": "mlx5_3",
            "metric": "link_downed",
            "value": 1,
        },
        **{"message": "mlx5_3 went down once in the last hour", "action": "watch", "state": "pending"},
        **{"evidence": ["link_downed 1"], "source": "", "needs": 2},
    )
    gpus = [
        GPU
        | {"index": index, "serial": f"165092300432{index}", "uuid": f"GPU-{index:08x}{GPU['uuid'][12:]}"}  # type: ignore[index]
        | {"pci_address": f"00000000:{0x18 + index:02X}:00.0"}
        for index in range(GPUS)
    ]
    return result(
        node=node,
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
        interval=interval,
        measured="warn",
        gpus=gpus,
        checks=[
            {"check": f"check_number_{number}", "verdict": "pass", "seconds": 0.1}
            for number in range(_CHECKS)
        ],
        findings=[pending] * 4,
    )


def lost(gpu: int, node: str = "gpu-01", interval: int = 86400) -> dict[str, Any]:
    """Return the result of the same node after a GPU has fallen off the bus (Xid 79)."""
    before = healthy(node, interval)
    fallen = finding(device=f"gpu{gpu}", message=f"gpu{gpu} has fallen off the bus (Xid 79)", needs=1)
    return {**before, "verdict": "fail", "measured": "fail", "findings": [fallen, *before["findings"]]}
