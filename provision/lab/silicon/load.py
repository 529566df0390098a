"""The mark a load tool leaves while it runs, so that sensors show the load; and simulated time."""

import contextlib
import json
import os
import sys
import time


class Load:
    """`with Load(node, "gpu_burn", gpus):` the GPUs are busy inside."""

    def __init__(self, node, tool: str, gpus: list) -> None:
        self.marker = node.folder / "run" / f"load.{os.getpid()}"
        self.text = json.dumps(
            {"tool": tool, "pid": os.getpid(), "since": time.time(), "slots": [gpu["slot"] for gpu in gpus]}
        )

    def __enter__(self):
        with contextlib.suppress(OSError):  # the sensors will not know, the tool works all the same
            self.marker.write_text(self.text)
        return self

    def __exit__(self, *_):
        if self.marker.exists():
            self.marker.unlink()


def wait(node, seconds: float) -> None:
    """Let simulated seconds pass."""
    sys.stdout.flush()
    time.sleep(max(0.0, seconds) / node.speed)


def health_factor(node, slot: int) -> float:
    """What remains of a GPU's computing rate."""
    slow, held = node.fault("gpu_slow", gpu=slot), node.fault("throttle", gpu=slot)
    return (slow["factor"] if slow else 1.0) * (held["factor"] if held else 1.0)
