"""A node running a burn-in, its order, and a spool filled by a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.burnin.judge import Burned, judge
from provision.burnin.spool import Spool
from provision.burnin.timeline import Clock, Contact, Timeline, timeline
from provision.burnin.watch import Watch, compare_peers, watch
from provision.checks.judging.node_facts import NodeFacts
from provision.runs.store import RunFolder
from tests.support import spools

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)]
NODE = NodeFacts(
    "gpu-01",
    {"os.id": "debian", "os.version_id": "13", "kernel.release": "6.12", "gpu.count": 8},
    {"gpu": {"count": 8, "sku": "h100-sxm", "architecture": "hopper", "fabric": "nvswitch"}},
    {"gpuprov_pci_addresses": ADDRESSES},
)


def order(repeat: int = 4, **more: Any) -> dict[str, Any]:
    """Return the order of a soak of `repeat` burns."""
    steps = [{"check": "gpu_burn", "commands": [], "load_seconds": 60}]
    heat = {"name": "heat", "kind": "soak", "repeat": repeat, "minutes": None, "steps": steps}
    return {"format": 1, "node": "gpu-01", "sample_seconds": 5, "segments": [heat], "about": {}, **more}


class Made:
    """A spool filled by a test, and the results computed from it."""

    def __init__(self, folder: RunFolder) -> None:
        self.spool = Spool(folder, "gpu-01")
        self.events: list[dict[str, Any]] = []
        self.contacts: list[Contact] = []
        self.node = NODE

    def put(self, file: str, data: bytes, **where: int) -> str:
        return self.spool.take([spools.part(file, data, **where)])

    def steps(
        self, raws: Mapping[int, dict[str, Any] | None], start: float = 10.0, each: float = 70.0
    ) -> None:
        """Add consecutive burns, each with its output, from `start` seconds after the boot."""
        self.events += [spools.event(start - 5, "started"), spools.event(start - 1, "segment", name="heat")]
        for number, document in raws.items():
            begin = start + (number - 1) * each
            about = {"check": "gpu_burn", "segment": "heat", "round": number - 1, "n": number}
            self.events.append(spools.event(begin, "step", **about))
            if document is not None:
                name = f"raw/{number:06}-gpu_burn.json.gz"
                assert self.put(name, spools.raw(document)) == ""
                self.events.append(spools.event(begin + 62, "step_end", raw=name, load_seconds=60.0, **about))
        self.now = start + len(raws) * each

    def finish(self, ended: str = "done") -> None:
        self.events += [
            spools.event(self.now, "segment_end", name="heat", outcome="done"),
            spools.event(self.now + 1, "finished", ended=ended, sampler_cpu_seconds=1.0, wall_seconds=300.0),
        ]

    def telemetry(self, until: float, change: Any = None, every: float = 5.0) -> None:
        """Add samples of eight loaded GPUs; `change(up, gpu)` gives differing values, None for no sample."""
        rows = []
        up = 5.0
        while up <= until:
            for gpu in range(8):
                usual = {"temperature_c": 60, "power_w": 650.0, "sm_mhz": 1800, "util_pct": 99,
                         "throttle": "0x0", "pcie_width": 16, "ecc_ue": 0}  # fmt: skip
                differs = change(up, gpu) if change else {}
                if differs is not None:
                    rows.append(spools.sample(up, gpu, **{**usual, **differs}))
            up += every
        assert self.put(f"telemetry/{spools.BOOT}.csv", "".join(rows).encode()) == ""

    def soak(self, raws: Mapping[int, dict[str, Any] | None], *events: Any, change: Any = None) -> Made:
        """Build a complete burn-in: these burns, events during it, and telemetry to the end."""
        self.steps(raws)
        self.events = sorted([*self.events, *events], key=lambda one: one["up"])
        self.finish()
        self.telemetry(self.now, change)
        return self

    def sampled(self) -> Watch:
        watched = self.reported()[1]
        assert watched is not None
        return watched

    def reported(self) -> tuple[Timeline, Watch | None, Clock]:
        assert self.put("events.jsonl", spools.jsonl(self.events)) == ""
        events = self.spool.events()
        clock = Clock(self.contacts, events)
        found = timeline(events, clock)
        sampled = None
        if self.spool.boots() and found.began is not None:
            rows = (row for boot in self.spool.boots() for row in self.spool.rows(boot))
            sampled = watch(rows, clock.at, found.began, found.finished or found.last or 0.0, 5.0)
            compare_peers(sampled)
        return found, sampled, clock

    def judged(self, repeat: int = 4, *, over: bool = True, silence: str = "") -> Burned:
        found, sampled, clock = self.reported()
        return judge(
            self.node, order(repeat), found, sampled, clock, self.spool.raw,
            over=over, silence=silence, damaged=self.spool.damaged,
        )  # fmt: skip
