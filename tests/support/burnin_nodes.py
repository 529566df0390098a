"""Fake nodes that answer the burn-in controller as the module does."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Mapping
from typing import Any

from tests.support.burnin import NODE, order
from tests.support.spools import BOOT, T0, burned, event, jsonl, part, raw, sample

NAME = "20261118T120000.000Z-burnin"


class FakeNode:
    """The files of one node, served as provision/node/modules/gpuprov_burnin.py serves them."""

    def __init__(self, name: str, files: Mapping[str, bytes], **more: Any) -> None:
        self.name, self.files, self.more = name, dict(files), more
        self.asked: list[Mapping[str, Any]] = []

    def answer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(given)
        clocks = {"now": time.time(), "up": time.time() - T0, "boot": BOOT}
        common = {"campaign": NAME, "alive": False, "finished": True, **clocks, **self.more}
        state = given["gpuprov_burnin_state"]
        if state == "start":
            return {"started": True, **common}
        if state != "collect":
            return {"events": [], "state": {"finished": "done"}, **common}
        offsets = json.loads(zlib.decompress(base64.b64decode(given["gpuprov_burnin_offsets"])))
        parts, left, more = [], int(given["gpuprov_burnin_limit"]), False
        for file, data in self.files.items():
            begin = offsets.get(file, 0)
            piece = data[begin : begin + max(left, 0)]
            left -= len(piece)
            more = more or begin + len(piece) < len(data)
            if piece:
                parts.append(part(file, piece, begin, len(data)))
        return {"parts": parts, "more": more, **common}


def files(**changes: bytes) -> dict[str, bytes]:
    """Return the files of a complete burn-in with one healthy step."""
    about = {"check": "gpu_burn", "segment": "heat", "round": 0, "n": 1}
    name = "raw/000001-gpu_burn.json.gz"
    events = [
        event(1, "started"), event(2, "segment", **{"name": "heat"}), event(3, "step", **about),
        event(65, "step_end", raw=name, load_seconds=60.0, **about),
        event(66, "segment_end", **{"name": "heat"}, outcome="done"), event(67, "finished", ended="done"),
    ]  # fmt: skip
    usual = {"temperature_c": 60, "power_w": 600, "sm_mhz": 1800, "util_pct": 99, "throttle": "0x0"}
    samples = "".join(sample(up, gpu, **usual) for up in range(1, 67, 5) for gpu in range(8))
    about_seen = {"node": "gpu-01", "facts": dict(NODE.facts), "gpuprov_node": NODE.gpuprov_node,
                  "variables": NODE.variables}  # fmt: skip
    given = order(1, about={"seen": about_seen, "fingerprint": {"values": {}, "unknown": {}}})
    return {
        "order.json": json.dumps(given).encode(),
        "events.jsonl": jsonl(events),
        name: raw(burned()),
        f"telemetry/{BOOT}.csv": samples.encode(),
        **changes,
    }
