"""The marker of a running load tool, by which sensors show the load, and simulated time."""

import contextlib
import json
import os
import sys
import time


class Load:
    """Keeps the GPUs busy inside its block: `with Load(node, "gpu_burn", gpus):`."""

    def __init__(self, node, tool: str, gpus: list) -> None:
        self.marker = node.folder / "run" / f"load.{os.getpid()}"
        # The compute driver's entry for AMD: kfd_process.c.
        self.process = node.folder / "sys/class/kfd/kfd/proc" / str(os.getpid())
        self.node, self.since = node, time.time()
        self.text = json.dumps(
            {"tool": tool, "pid": os.getpid(), "since": self.since, "slots": [gpu["slot"] for gpu in gpus]}
        )

    def __enter__(self):
        self.node.loaded_since = self.since
        with contextlib.suppress(OSError):  # without the marker only the sensors miss the load
            self.marker.write_text(self.text)
        with contextlib.suppress(OSError):
            self.process.mkdir()
        return self

    def __exit__(self, *_):
        self.node.loaded_since = None
        if self.marker.exists():
            self.marker.unlink()
        with contextlib.suppress(OSError):
            self.process.rmdir()


def wait(node, seconds: float) -> bool:
    """Let simulated seconds pass; True if a fault struck meanwhile."""
    sys.stdout.flush()
    time.sleep(max(0.0, seconds) / node.speed)
    return strike(node)


def strike(node) -> bool:
    """Activate faults at their onset during the load; True if any. They stay until cleared."""
    if node.loaded_since is None:
        return False
    elapsed = (time.time() - node.loaded_since) * node.speed
    due = [
        one for one in node.faults if one.get("onset") and not one.get("struck") and one["onset"] <= elapsed
    ]
    for one in due:
        one["struck"] = time.time()
    if due:
        import xid

        with contextlib.suppress(OSError):  # a user without write access still sees the faults
            node.save()
            xid.report(node, due)
    return bool(due)


def health_factor(node, slot: int) -> float:
    """Return the remaining fraction of a GPU's computing rate."""
    import telemetry
    from settings import Settings

    values = {"settings": Settings(node).of(node.gpus[slot])}
    telemetry._changed(node, slot, values)
    settings = values["settings"]
    capped = telemetry.capped(node, settings) * _locked(node, settings)
    slow, held = node.factor("gpu_slow", gpu=slot), node.factor("throttle", gpu=slot)
    return slow * held * capped / sharers(node, slot)


def _locked(node, settings: dict) -> float:
    """Return the fraction of the clock that a lock leaves; the rate is proportional to the clock."""
    if not settings["locked"]:
        return 1.0
    return min(1.0, settings["locked"][1] / (node.sku["clock"] * 0.93))


def sharers(node, slot: int) -> int:
    """Return the number of programs that share this GPU, including the current one.
    Contexts take turns (CUDA C++ Programming Guide, "Multi-Process Service": time-sliced without MPS).
    """
    own = (node.folder / "run" / f"load.{os.getpid()}").name
    others = 0
    for marker in (node.folder / "run").glob("load.*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            load = json.loads(marker.read_text())
            alive = os.path.exists("/proc/{}".format(load["pid"]))  # noqa: PTH110
            others += marker.name != own and alive and slot in load["slots"]
    return 1 + others
