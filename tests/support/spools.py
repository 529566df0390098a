"""A node's spool, made by tests as a node writes it: events, samples, and outputs of real checks."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BOOT = "0a1b2c3d-0000-4000-8000-000000000001"
AGAIN = "0a1b2c3d-0000-4000-8000-000000000002"
T0 = 1_795_000_000.0  # time of the first boot, by a correct clock
FIXTURES = Path(__file__).parents[1] / "fixtures"


def event(up: float, name: str, boot: str = BOOT, zero: float = T0, /, **fields: Any) -> dict[str, Any]:
    """Return an event `up` seconds after a boot that was at `zero` on the node's clock."""
    return {"t": zero + up, "up": up, "boot": boot, "event": name, **fields}


def jsonl(events: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in events).encode()


def part(file: str, data: bytes, offset: int = 0, size: int | None = None) -> dict[str, Any]:
    """Return a piece of a file as the module sends it."""
    packed = base64.b64encode(zlib.compress(data)).decode()
    spaced = " ".join(packed[at : at + 2] for at in range(0, len(packed), 2))
    whole = offset + len(data) if size is None else size
    return {"file": file, "offset": offset, "size": whole, "data": spaced}


def sample(up: float, gpu: int, zero: float = T0, /, **values: Any) -> str:
    told = ";".join(f"{name}={value}" for name, value in values.items())
    return f"{zero + up:.1f},{up:.1f},gpu,gpu{gpu},{told}\n"


def burned(sample: str = "healthy", seconds: float = 60.0, **changes: Any) -> dict[str, Any]:
    """Return a step of gpu_burn on 8 GPUs as the node stores it, with the real output of that name."""
    text = (FIXTURES / "gpu_burn" / f"{sample}.txt").read_text()
    return answer("gpu_burn", ["/usr/bin/gpu_burn", "-tc", "60"], text, seconds, **changes)


def answer(name: str, argv: list[str], stdout: str, seconds: float, **changes: Any) -> dict[str, Any]:
    plain = {
        "rc": 0, "stderr": "", "timed_out": False, "truncated": False, "not_started": "", "beside": "",
    }  # fmt: skip
    outputs = [
        {"name": name, "argv": argv, "stdout": stdout, "seconds": seconds, **plain},
        {"name": "kernel_log_delta", "argv": ["dmesg"], "stdout": "", "seconds": 0.1, **plain},
    ]
    return {"outputs": outputs, "boot_id": BOOT, "boot_id_before": BOOT, **changes}


def raw(document: Mapping[str, Any]) -> bytes:
    return gzip.compress(json.dumps(document).encode())
