"""Health results as a node's health program writes them, and the output of the reader on the node."""

from __future__ import annotations

import binascii
import json
import zlib
from typing import Any

from provision import __version__

BOOT = "6f1c4f6e-9a3e-4b59-8d2c-1f0d3c2b4a59"
GPU = {
    "index": 3,
    "name": "NVIDIA H100 80GB HBM3",
    "serial": "1650923004321",
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "pci_address": "00000000:18:00.0",
}


def finding(**changes: Any) -> dict[str, Any]:
    """Return an active finding: a GPU with Xid 79."""
    return {
        "check": "gpu_inventory",
        "verdict": "fail",
        "device": "gpu3",
        "message": "gpu3 has fallen off the bus (Xid 79)",
        "metric": "xid",
        "value": 79,
        "unit": "",
        "limit": "",
        "source": "NVIDIA Xid catalogue",
        "action": "power-cycle",
        "evidence": ["NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."],
        "state": "active",
        "since": "2026-11-25T09:58:00Z",
        "seen": 1,
        "of": 5,
        "needs": 1,
        "clean": 0,
        "clear_after": 3,
        **changes,
    }


def result(**changes: Any) -> dict[str, Any]:
    """Return a healthy node's result, written at an uptime of 86,400 s."""
    return {
        "format": 1,
        "gpuprov": __version__,
        "node": "gpu-01",
        "boot_id": BOOT,
        "uptime": 86400.0,
        "started": "2026-11-25T10:00:00Z",
        "finished": "2026-11-25T10:00:02Z",
        "seconds": 1.9,
        "interval": 60,
        "verdict": "pass",
        "measured": "pass",
        "error": "",
        "gpus": [GPU],
        "facts": {"os": "debian 13", "driver": "580.126.09", "sku": "h100-sxm", "gpus": 8},
        "checks": [{"check": "gpu_inventory", "verdict": "pass", "seconds": 1.2}],
        "findings": [],
        **changes,
    }


def failed(**changes: Any) -> dict[str, Any]:
    return result(verdict="fail", measured="fail", findings=[finding()], **changes)


def printed(document: Any = None, **changes: Any) -> bytes:
    """Return the reader's output on the node for `document`, 30 s after it was written.
    `document` may be a result, or bytes, which need not be a result."""
    if not isinstance(document, bytes):
        document = json.dumps(result() if document is None else document).encode()
    fields = {
        "uid": 0,
        "problem": "",
        "detail": "",
        "health": binascii.b2a_base64(zlib.compress(document), newline=False).decode(),
        "written": 1764064802.0,
        "boot_id": BOOT,
        "uptime": 86430.0,
        "slurm": None,
        **changes,
    }
    body = json.dumps(fields).encode()
    return b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end\n" % (len(body), body)
