"""Randomly drawn nodes with GPUs under load, sampled several times: healthy, or clearly faulty."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = dict[str, Any]  # one sample of one GPU
ERRORS = ("[GPU is lost]", "[GPU requires reset]", "[Unknown Error]", "ERR!")
# Reason for throttled clocks → its bits in nvml.h, and AMD's name.
HELD = {
    "hard": (0x48, "hbm_thermal"),
    "brake": (0x88, "prochot"),
    "umbrella": (0x8, "vr_thermal"),
    "soft": (0x20, "socket_thermal"),
}


@dataclass
class Node:
    """Rounds of samples, with one cell per GPU, or None for a GPU that is not listed.
    `late`: the rounds that come only half an interval after the previous one."""

    rounds: list[list[Cell | None]]
    faults: dict[int, set[str]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)

    @property
    def moments(self) -> list[float]:
        """Times of the rounds, in intervals."""
        at, found = -1.0, []
        for number in range(len(self.rounds)):
            at = at + 0.5 if number in self.late else float(int(at) + 1)
            found.append(at)
        return found

    def of(self, gpu: int, begin: int = 0) -> Iterator[Cell]:
        """Yield the samples of a GPU from round `begin` on."""
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
    """Draw a healthy node under load with about 16 rounds of samples; it may be idle in the first."""
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
    """Throttle the clocks for one sample, which is no fault."""
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
    """Make one reading of one sample an error, while the GPU reports the others."""
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
HIDING = ("lost", "gone")  # hides every other fault of the GPU
BY_PEERS = ("hot", "slower", "narrow", "generation")  # judged against peers: not reported if most have it


def broken(node: Node, gpu: int, draw: random.Random) -> str:
    """Add one fault and return its name, or "" if too many GPUs already have the same fault."""
    name = draw.choice((*FAULTS, "lost", "lost"))
    having = sum(name in faults for one, faults in node.faults.items() if one != gpu)
    count = len(node.rounds[0])
    gone = sum(not faults.isdisjoint(HIDING) for one, faults in node.faults.items() if one != gpu)
    if name in BY_PEERS and 3 * (having + 1) > count:
        return ""
    # An answer without half of the GPUs is treated as unparseable: an error that blames no GPU.
    if name in HIDING and 2 * (gone + 1) >= count:
        return ""
    FAULTS[name](node, gpu, draw)
    node.faults.setdefault(gpu, set()).add(name)
    return name


def several(draw: random.Random, most: int = 3) -> Node:
    """Draw a node with up to `most` faults."""
    node = drawn(draw)
    for _ in range(draw.randrange(most + 1)):
        broken(node, draw.randrange(len(node.rounds[0])), draw)
    return node


def with_a_healthy_sample(node: Node, gpu: int, draw: random.Random, *, amd: bool) -> Node | None:
    """Add one round of samples in which this GPU was healthy.
    Return None if the GPU is not listed (AMD's lost ones), or if a lasting condition would be interrupted."""
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
    """Return GPU → its faults, for display."""
    return {f"gpu{gpu}": sorted(faults) for gpu, faults in sorted(node.faults.items())}
