"""Drawn samples of a node's GPUs under load: what nvidia-smi and amd-smi would print of them, beside a check
and in a burn-in, and what the product's own readers and judges find in it."""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.burnin import own_findings
from provision.burnin.spool import Event, Spool
from provision.burnin.timeline import Clock, Timeline, timeline
from provision.burnin.watch import compare_peers, watch
from provision.checks.amd import telemetry as amd_telemetry
from provision.checks.check import CheckNode, Measurement, Output
from provision.checks.gpu import telemetry, telemetry_rules
from provision.checks.judge import Finding
from provision.checks.node_facts import NodeFacts
from provision.node.burnin import sampler
from provision.node.burnin.amd_gpus import AMD_METRIC, AMD_VIOLATIONS, AmdGpus
from provision.node.burnin.sampler import SELDOM, Telemetry
from provision.node.burnin.tool_output import GPU_FIELDS, ReplayRows, gpu_row
from provision.runs.store import RunFolder
from tests.support.spools import BOOT, T0

Cell = dict[str, Any]  # one sample of one GPU
ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)]
GPUS = {address.rpartition(".")[0]: f"gpu{number}" for number, address in enumerate(ADDRESSES)}
ERRORS = ("[GPU is lost]", "[GPU requires reset]", "[Unknown Error]", "ERR!")
# What holds the clocks down → the bits of nvml.h, and AMD's name.
HELD = {
    "hard": (0x48, "hbm_thermal"),
    "brake": (0x88, "prochot"),
    "umbrella": (0x8, "vr_thermal"),
    "soft": (0x20, "socket_thermal"),
}
POWER_CAP = 0x4


@dataclass
class Node:
    """Rounds of samples, each a cell for every GPU; None: it is not listed. `late`: the rounds that come half
    an interval after the one before."""

    rounds: list[list[Cell | None]]
    faults: dict[int, set[str]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)

    @property
    def moments(self) -> list[float]:
        """When each round is, in intervals."""
        at, found = -1.0, []
        for number in range(len(self.rounds)):
            at = at + 0.5 if number in self.late else float(int(at) + 1)
            found.append(at)
        return found

    def of(self, gpu: int, begin: int = 0) -> Iterator[Cell]:
        """The samples of a GPU from a round on."""
        yield from filter(None, (cells[gpu] for cells in self.rounds[begin:]))


def cell(draw: random.Random) -> Cell:
    values = {
        "heat": draw.randint(60, 64),
        "watts": 650.0 + draw.randint(-9, 9),
        "mhz": draw.randint(1790, 1810),
    }
    fixed = {"util": 99, "held": (), "width": 16, "gen": 5, "ue": 0, "replays": 7, "error": "", "unread": ""}
    return {**values, **fixed}


def drawn(draw: random.Random) -> Node:
    """A healthy node under load, sampled some 16 times; at first it may still be idle."""
    gpus, idle = draw.randint(5, 6), draw.randrange(2)
    node = Node([[cell(draw) for _ in range(gpus)] for _ in range(draw.randint(15, 17))])
    for cells in node.rounds[:idle]:
        for one in filter(None, cells):
            one.update(util=0, gen=1, heat=40, mhz=345)
    return node


# --- faults, each beyond doubt: fault(node, GPU, draw)


def _lost(node: Node, gpu: int, draw: random.Random) -> None:
    error = draw.choice(ERRORS)
    for one in node.of(gpu, draw.randint(7, len(node.rounds) - 8)):
        one["error"] = one["error"] or error


def _gone(node: Node, gpu: int, draw: random.Random) -> None:
    for cells in node.rounds[draw.randint(7, len(node.rounds) - 8) :]:
        cells[gpu] = None


def _held(name: str) -> Callable[[Node, int, random.Random], None]:
    def hold(node: Node, gpu: int, draw: random.Random) -> None:
        for one in list(node.of(gpu, draw.randint(1, 3)))[: draw.randint(6, 12)]:
            one["held"] = (*one["held"], name)

    return hold


def _brief(node: Node, gpu: int, draw: random.Random) -> None:
    """No fault: what holds the clocks down for one sample."""
    if "brief" not in node.faults.get(gpu, ()):
        for one in list(node.of(gpu, draw.randrange(2, len(node.rounds))))[:1]:
            one["held"] = (*one["held"], draw.choice(list(HELD)))


def _grown(counter: str, most: int) -> Callable[[Node, int, random.Random], None]:
    def grow(node: Node, gpu: int, draw: random.Random) -> None:
        more = draw.randint(most // 2, most)
        for one in node.of(gpu, draw.randrange(2, len(node.rounds) // 2)):
            one[counter] += more

    return grow


def _other(**values: Any) -> Callable[[Node, int, random.Random], None]:
    def change(node: Node, gpu: int, draw: random.Random) -> None:
        del draw
        for one in node.of(gpu):
            one.update(values if one["util"] else {})

    return change


def _slower(node: Node, gpu: int, draw: random.Random) -> None:
    for one in node.of(gpu, len(node.rounds) // 2):
        one["mhz"] -= draw.randint(350, 450)


def _unread(node: Node, gpu: int, draw: random.Random) -> None:
    """One reading that is an error in one sample, while the GPU gives the others."""
    cells = [one for one in node.of(gpu, 2) if not one["error"]]
    if cells:
        draw.choice(cells)["unread"] = draw.choice((ERRORS[2], ERRORS[3], "[Insufficient Permissions]"))


FAULTS: dict[str, Callable[[Node, int, random.Random], None]] = {
    **{name: _held(name) for name in HELD},
    **{
        "brief": _brief,
        "lost": _lost,
        "gone": _gone,
        "hot": _other(heat=90),
        "slower": _slower,
        "unread": _unread,
    },
    **{"uncorrectable": _grown("ue", 4), "replays": _grown("replays", 4000)},
    **{"narrow": _other(width=8), "generation": _other(gen=3)},
}
HIDING = ("lost", "gone")  # nothing else is sampled any more
BY_PEERS = ("hot", "slower", "narrow", "generation")  # what most have alike accuses none


def broken(node: Node, gpu: int, draw: random.Random, fault: str = "") -> str:
    """One fault more, if too many do not have the like already; its name."""
    name = fault or draw.choice((*FAULTS, "lost", "lost"))
    having = sum(name in faults for one, faults in node.faults.items() if one != gpu)
    if name in BY_PEERS and 3 * (having + 1) > len(node.rounds[0]):
        return ""
    FAULTS[name](node, gpu, draw)
    node.faults.setdefault(gpu, set()).add(name)
    return name


def several(draw: random.Random, most: int = 3) -> Node:
    """A node with up to so many faults."""
    node = drawn(draw)
    for _ in range(draw.randrange(most + 1)):
        broken(node, draw.randrange(len(node.rounds[0])), draw)
    return node


# --- what the tools print. `order`: of the GPUs in a round; `times`: how often each sample stands there


@dataclass(frozen=True)
class Told:
    """How a node's samples are written down."""

    draw: random.Random | None = None  # the order of the GPUs in each round; None: by number
    times: int = 1

    def order(self, count: int) -> list[int]:
        gpus = list(range(count))
        if self.draw is not None:
            self.draw.shuffle(gpus)
        return gpus


def _cells(gpu: int, one: Cell, names: Iterable[str], stamp: str = "") -> list[str]:
    """The cells of nvidia-smi's CSV, by the names of its fields."""
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
    """One GPU of `amd-smi metric --json`."""
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
    """The GPUs that amd-smi lists: one that is lost leaves the list, and those behind it move up."""
    return [gpu for gpu, one in enumerate(cells) if one is not None and not one["error"]]


def _documents(cells: Sequence[Cell | None], order: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """(`list`, `metric`) of amd-smi for these cells."""
    here = _listed(cells)
    by_place = sorted(range(len(here)), key=lambda place: order.index(here[place]))
    listed = [{"gpu": at, "bdf": ADDRESSES[here[at]], "uuid": f"{here[at]:08x}"} for at in by_place]
    return listed, [_metric(at, cells[here[at]] or {}) for at in by_place]


# --- the surfaces: a node's samples → the findings


Surface = Callable[[Node, Told], list[Finding]]


def nvidia_check(node: Node, told: Told) -> list[Finding]:
    """nvidia-smi's samples beside a load, and dmon's."""
    names = [*telemetry.FIELDS, telemetry.BUS, telemetry.MODEL]
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
    """amd-smi's samples beside a load, and its lists before and after."""
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
    """The node's own writer of samples and the controller's reader of them, over one file."""

    EVERY = 5.0

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self.now = 0.0
        self.spool = Spool(RunFolder(folder), "gpu-01")
        self.file = self.spool.path / "telemetry" / f"{BOOT}.csv"
        self.file.parent.mkdir(parents=True)
        monkeypatch.setattr(sampler, "since_boot", lambda: self.now)

    def telemetry(self) -> bool:
        """There is room."""
        return True

    def nvidia(self, node: Node, told: Told) -> list[Finding]:
        """One nvidia-smi for each GPU, and dmon for all."""
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
        """One amd-smi for all GPUs."""
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
        gpu = {"count": len(node.rounds[0]), "sku": None, "vendor": vendor}
        seen = NodeFacts("gpu-01", {}, {"gpu": gpu}, {"gpuprov_pci_addresses": ADDRESSES[: gpu["count"]]})
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


def with_a_healthy_sample(node: Node, gpu: int, draw: random.Random, *, amd: bool) -> Node | None:
    """The node sampled once more, when this GPU was healthy; None where it is not listed (a lost one of AMD's)
    and where the sample would end what must last for a few to be a fault."""
    at = draw.choice((len(node.rounds), draw.randrange(1, len(node.rounds))))
    before, after = (node.rounds[number][gpu] for number in (at - 1, min(at, len(node.rounds) - 1)))
    if before is None or after is None or set(before["held"]) & set(after["held"]):
        return None
    if amd and before["error"]:
        return None
    more = copy.deepcopy(node)
    cells = copy.deepcopy(node.rounds[at - 1])
    cells[gpu] = {**cell(draw), "ue": before["ue"], "replays": before["replays"]}
    more.rounds.insert(at, cells)
    more.late = {number + (number >= at) for number in node.late} | {at}
    return more


def named(node: Node) -> Mapping[str, Sequence[str]]:
    """GPU → its faults, to be shown."""
    return {f"gpu{gpu}": sorted(faults) for gpu, faults in sorted(node.faults.items())}
