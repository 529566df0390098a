"""A worker of the Receptor stand-in that greets correctly and then sends scripted messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from provision.remote.workers import sealed, worker_stream

HOSTS: dict[str, dict[str, Any]] = {"gpu-01": {}, "gpu-02": {}}


class Script:
    """A worker that greets correctly, then sends a scripted text from its unit.
    `units`: the input of each unit."""

    def __init__(self, said: bytes, noise: bytes = b"", **hello: Any) -> None:
        self.said = said
        self.noise = noise
        self.hello = hello
        self.units: list[bytes] = []

    def __call__(self, given: bytes) -> bytes:
        if b'{"hello"' in given:
            said = {**worker_stream.versions(), "key": sealed.worker_public_key(), **self.hello}
            return b"Welcome to rack-1!\n\n" + f"{worker_stream.HELLO}{json.dumps(said)}\n".encode()
        self.units.append(given)
        about = json.loads(sealed.opened(given)[1].partition(b"\n")[0])
        sealer = sealed.Sealer(base64.b64decode(about["answer_key"]))
        half = len(self.said) // 2
        frames = [sealer.frame(part) for part in (self.said[:half], self.said[half:]) if part]
        return self.noise + b"".join(frames)


def lines(*said: Any) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in said)


def event(name: str, number: int, **data: Any) -> dict[str, Any]:
    return {"event": name, "counter": number, "uuid": f"u-{number}", "stdout": "", "event_data": data}


def whole(*between: Mapping[str, Any], **stats: Any) -> tuple[Any, ...]:
    """Return a run on both hosts from its first event to its last."""
    started = [event("runner_on_start", 2 + n, host=host, task="T") for n, host in enumerate(HOSTS)]
    done = [event("runner_on_ok", 4 + n, host=host, task="T", res={"rc": 0}) for n, host in enumerate(HOSTS)]
    ended = {"dark": {}, "failures": {}, "processed": dict.fromkeys(HOSTS, 1), **stats}
    said = [
        event("playbook_on_play_start", 1),
        *started,
        *between,
        *done,
        event("playbook_on_stats", 9, **ended),
    ]
    return (*said, {"status": "successful", "gpuprov_events": len(said)}, {"eof": True})
