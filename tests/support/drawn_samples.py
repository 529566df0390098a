"""Output of nvidia-smi and amd-smi for drawn GPUs (drawn_gpus.py), during a check and in a burn-in.
Also the findings of the product's own readers and judges for that output."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.burnin import own_findings
from provision.burnin.spool import Event, Spool
from provision.burnin.timeline import Clock, Timeline, timeline
from provision.burnin.watch import compare_peers, watch
from provision.checks.check import CheckNode, Measurement, Output
from provision.checks.gpu import telemetry, telemetry_rows, telemetry_rules
from provision.checks.judge import Finding
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.vendors.amd import telemetry as amd_telemetry
from provision.node.burnin import sampler
from provision.node.burnin.amd_gpus import AMD_METRIC, AMD_VIOLATIONS, AmdGpus
from provision.node.burnin.sampler import SELDOM, Telemetry
from provision.node.burnin.tool_output import GPU_FIELDS, ReplayRows, gpu_row
from provision.runs.store import RunFolder
from tests.support.drawn_gpus import HELD, Cell, Node
from tests.support.spools import BOOT, T0

ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)]
GPUS = {address.rpartition(".")[0]: f"gpu{number}" for number, address in enumerate(ADDRESSES)}
POWER_CAP = 0x4


# --- what the tools print. `order`: of the GPUs in a round; `times`: how often each sample stands there


@dataclass(frozen=True)
class Told:
    """How a node's samples are written."""

    draw: random.Random | None = None  # order of the GPUs in each round; None: by number
    times: int = 1

    def order(self, count: int) -> list[int]:
        gpus = list(range(count))
        if self.draw is not None:
            self.draw.shuffle(gpus)
        return gpus


def _cells(gpu: int, one: Cell, names: Iterable[str], stamp: str = "") -> list[str]:
    """Return the cells of nvidia-smi's CSV for these field names."""
    bits = POWER_CAP
    for name in one["held"]:
        bits |= HELD[name][0]
    error, unread = one["error"], one["unread"]
    known = {
        **{"timestamp": stamp, "index": str(gpu), "pci.bus_id": f"0000{ADDRESSES[gpu].upper()}"},
        **{"name": "NVIDIA H100 80GB HBM3", "uuid": f"GPU-{gpu:08x}", "serial": f"165092{gpu:07}"},
        **{
            "utilization.gpu": error or str(one["util"]),
            "temperature.gpu": error or unread or str(one["heat"]),
        },
        **{"temperature.memory": error or str(one["heat"] + 9), "power.draw": error or f"{one['watts']:.2f}"},
        **{"clocks.current.sm": error or str(one["mhz"]), "clocks.current.memory": error or "2619"},
        **{"clocks_event_reasons.active": error or f"0x{bits:016X}", "memory.used": "73412"},
        "ecc.errors.corrected.volatile.total": error or "0",
        "ecc.errors.uncorrected.volatile.total": error or str(one["ue"]),
        **{"pcie.link.gen.current": str(one["gen"]), "pcie.link.gen.max": "5"},
        **{"pcie.link.width.current": str(one["width"]), "pcie.link.width.max": "16"},
    }
    return [known[name] for name in names]


def _dmon(node: Node, told: Told) -> Iterator[list[str]]:
    for cells in node.rounds:
        lines = []
        for gpu in told.order(len(cells)):
            if (one := cells[gpu]) is not None:
                counts = ("0", one["ue"], one["replays"]) if not one["error"] else ("-", "-", "-")
                lines += [f"{gpu:5}" + "".join(f"{count:>7}" for count in counts)] * told.times
        yield lines


DMON_HEAD = ["# gpu  sbecc  dbecc    pci", "# Idx   errs   errs   errs"]


def _metric(number: int, one: Cell) -> dict[str, Any]:
    """Return the entry of one GPU in `amd-smi metric --json`."""
    held = {f"{name}_violation_status": "NOT ACTIVE" for name, _ in AMD_VIOLATIONS}
    held |= {f"{HELD[name][1]}_violation_status": "ACTIVE" for name in one["held"]}
    speed = {1: 2.5, 3: 8, 5: 32}[one["gen"]]
    return {
        "gpu": number,
        "usage": {"gfx_activity": {"value": one["util"], "unit": "%"}},
        "power": {"socket_power": {"value": one["watts"], "unit": "W"}},
        "clock": {"gfx_0": {"clk": {"value": one["mhz"], "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": one["heat"], "unit": "C"}},
        "pcie": {
            "width": one["width"],
            "speed": {"value": speed, "unit": "GT/s"},
            "replay_count": one["replays"],
        },
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": one["ue"]},
        "throttle": {**held, "ppt_violation_status": "ACTIVE"},
    }


def _listed(cells: Sequence[Cell | None]) -> list[int]:
    """Return the GPUs that amd-smi lists: a lost GPU leaves the list, and those after it move up."""
    return [gpu for gpu, one in enumerate(cells) if one is not None and not one["error"]]


def _documents(cells: Sequence[Cell | None], order: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Return the `list` and `metric` documents of amd-smi for these cells."""
    here = _listed(cells)
    by_place = sorted(range(len(here)), key=lambda place: order.index(here[place]))
    listed = [{"gpu": at, "bdf": ADDRESSES[here[at]], "uuid": f"{here[at]:08x}"} for at in by_place]
    return listed, [_metric(at, cells[here[at]] or {}) for at in by_place]


# --- the readers and judges: a node's samples → the findings


Surface = Callable[[Node, Told], list[Finding]]


def nvidia_check(node: Node, told: Told) -> list[Finding]:
    """Judge nvidia-smi's and dmon's samples taken during a load."""
    names = [*telemetry_rows.FIELDS, telemetry_rows.BUS, telemetry_rows.MODEL]
    lines = [", ".join(names)]
    for at, cells in zip(node.moments, node.rounds, strict=True):
        second = 2 * at
        stamp = f"2026/05/04 06:{int(second) // 60:02}:{int(second) % 60:02}.250"
        for gpu in told.order(len(cells)):
            if (one := cells[gpu]) is not None:
                lines += [", ".join(_cells(gpu, one, names, stamp))] * told.times
    seconds = 2.0 * len(node.rounds)
    argv = telemetry.command("gpu_burn", 60, 150).argv
    output = Output(telemetry.NAME, argv, -15, "\n".join(lines) + "\n", "", seconds, beside="gpu_burn")
    counts = "\n".join([*DMON_HEAD, *itertools.chain(*_dmon(node, told))]) + "\n"
    dmon = telemetry.counters_command("gpu_burn", 60, 150)
    counted = Output(telemetry.COUNTERS, dmon.argv, -15, counts, "", seconds, beside="gpu_burn")
    found = [*telemetry.measure(output, GPUS), *telemetry.measure_counters(counted)]
    by_gpu, values = _grouped(found, seconds)
    return telemetry_rules.judge("gpu_burn", by_gpu, values, {})


def _grouped(
    found: Iterable[Measurement], seconds: float
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    by_gpu: dict[str, dict[str, Any]] = {}
    for one in found:
        by_gpu.setdefault(one.device, {})[one.metric] = one.value
    return by_gpu, {**by_gpu.pop("node", {}), "ran": seconds}


def amd_check(node: Node, told: Told) -> list[Finding]:
    """Judge amd-smi's samples taken during a load, and its lists before and after."""
    count = len(node.rounds[0])
    bus = {"max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}}

    def static(gpus: Sequence[int]) -> str:
        rows = [{"gpu": at, "bus": {"bdf": ADDRESSES[gpu], **bus}} for at, gpu in enumerate(gpus)]
        return json.dumps({"gpu_data": rows})

    lines = []
    for at, cells in zip(node.moments, node.rounds, strict=True):
        document = json.dumps({"gpu_data": _documents(cells, told.order(count))[1]})
        lines += [f"{1732600000 + int(4 * at)} {document}\n"] * told.times
    seconds = 4.0 * len(node.rounds)
    texts = {
        amd_telemetry.BEFORE: static(range(count)),
        amd_telemetry.NAME: "".join(lines),
        amd_telemetry.AFTER: static(_listed(node.rounds[-1])),
    }
    outputs = {
        name: Output(name, ("amd-smi", "static"), 0, text, "", seconds) for name, text in texts.items()
    }
    gpu = {"count": count, "sku": None}
    machine = CheckNode("n", {"gpu": gpu}, {"gpuprov_pci_addresses": ADDRESSES[:count]})
    by_gpu, values = _grouped(amd_telemetry.measure(machine, outputs), seconds)
    return amd_telemetry.judge("gpu_burn", machine, by_gpu, values, {})


class BurnIn:
    """The node's writer of samples and the controller's reader of them, over one file."""

    EVERY = 5.0

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.now = 0.0
        self.spool = Spool(RunFolder(folder), "gpu-01")
        self.file = self.spool.path / "telemetry" / f"{BOOT}.csv"
        self.file.parent.mkdir(parents=True)
        monkeypatch.setattr(sampler, "since_boot", lambda: self.now)

    def telemetry(self) -> bool:
        """Report that there is room."""
        return True

    def nvidia(self, node: Node, told: Told) -> list[Finding]:
        """Judge samples of one nvidia-smi per GPU, and one dmon for all."""
        names, fields = [name for name, _ in GPU_FIELDS], [names[0] for _, names in GPU_FIELDS]
        counts = ReplayRows()
        for line in DMON_HEAD:
            counts.row(line)

        def add(kept: Telemetry, cells: Sequence[Cell | None], dmon: Sequence[str]) -> None:
            for gpu in told.order(len(cells)):
                for _ in range(told.times if cells[gpu] is not None else 0):
                    found = gpu_row(", ".join(_cells(gpu, cells[gpu] or {}, fields)), names, gpu)
                    assert found is not None
                    kept.add("gpu", f"gpu{found[0]}", found[1])
            for row in filter(None, map(counts.row, dmon)):
                kept.add("errors", f"gpu{row[0]}", row[1], seldom=SELDOM)

        dmon = _dmon(node, told)
        return self._judged(node, "nvidia", lambda kept, cells: add(kept, cells, next(dmon)))

    def amd(self, node: Node, told: Told) -> list[Finding]:
        """Judge samples of one amd-smi for all GPUs."""
        reader = AmdGpus(GPUS)

        def add(kept: Telemetry, cells: Sequence[Cell | None]) -> None:
            listed, metric = _documents(cells, told.order(len(cells)))
            for _ in range(told.times):
                text = json.dumps({"gpu_data": metric})
                if reader.argv() is not AMD_METRIC:
                    text = f"{json.dumps(listed)}\n{text}"
                for device, metrics in reader.rows(text) or ():
                    kept.add("gpu", device, metrics)

        return self._judged(node, "amd", add)

    def _judged(
        self, node: Node, vendor: str, add: Callable[[Telemetry, Sequence[Cell | None]], None]
    ) -> list[Finding]:
        self.file.unlink(missing_ok=True)
        kept = Telemetry(str(self.file), self, lambda _stopped: None)
        for at, cells in zip(node.moments, node.rounds, strict=True):
            self.now = 10.0 + self.EVERY * at
            add(kept, cells)
        os.close(kept.handle)
        end = 12.0 + self.EVERY * node.moments[-1]
        happened, clock = _timeline(end)
        sampled = watch(self.spool.rows(BOOT), lambda _boot, _t, up: T0 + up, T0 + 8.0, T0 + end, self.EVERY)
        compare_peers(sampled)
        count = len(node.rounds[0])
        gpu = {"count": count, "sku": None, "vendor": vendor}
        seen = NodeFacts("gpu-01", {}, {"gpu": gpu}, {"gpuprov_pci_addresses": ADDRESSES[:count]})
        found = own_findings.of(
            seen, happened, sampled, clock, [], [], over=True, silence="", damaged=self.spool.damaged
        )
        return [one.finding for one in found]


def _timeline(end: float) -> tuple[Timeline, Clock]:
    events = [
        Event(T0 + 8.0, 8.0, BOOT, "started"),
        Event(T0 + end, end, BOOT, "finished", {"ended": "done"}),
    ]
    clock = Clock([], events)
    return timeline(events, clock), clock
