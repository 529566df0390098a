"""What copies and collectives of AMD's GPUs reach, as wiring and faults leave it.

Where the numbers come from: TransferBench p2p of eight MI300X and all_reduce_perf of them in AMD's guide to
accepting an MI300X; TransferBench p2p 4M of a node with eight dies of MI200 in AMD's guide to validating a
node, whose pairs without a link differ by the way they take. What a copy within an MI250X die and what a GPU
that reads the host's memory reach nobody has published: plausible, no more.
"""

import bandwidth
import noise

from amd import readings

_DETOUR = 0.5  # of a link's rate, where it is down and another GPU passes the data on: plausible


def host(node, gpu, direction: str) -> float:
    """GB/s between host memory and a GPU that copies itself; `direction` is h2d or d2h."""
    return bandwidth.host(node, gpu, direction)


def local(node, gpu) -> float:
    """GB/s of a copy within one GPU's memory. Eight of one machine differ by a percent (AMD's guide)."""
    rate = node.sku["local"] * node.factor("memory_slow", gpu=gpu["slot"])
    return rate * noise.jitter(node, "local", gpu["slot"], 0.008)


def peer(node, one, other, kind: str) -> float:
    """GB/s between two GPUs; `kind`: read or write."""
    a, b = sorted([one["slot"], other["slot"]])
    wired = readings.wired(node).get((a, b), 0)
    rate = node.sku["d2d"][wired] if wired else node.sku["d2d_far"].get((a, b), node.sku["d2d"][0])
    if wired and node.fault("xgmi_down", a=a, b=b):
        rate *= _DETOUR
    rate *= node.factor("slow_pair", a=a, b=b)
    return rate * noise.jitter(node, f"{kind}{one['slot']}", other["slot"], 0.008)


def two_way(node, one, other) -> float:
    """GB/s of both copies of a pair at once, added up.

    AMD's pairs reach 0.953 of twice one way; a public run of eight MI350X has 79 in place of 109 once.
    """
    a, b = sorted([one["slot"], other["slot"]])
    once = node.fault("two_way_once", a=a, b=b) and one["slot"] == a
    rate = 2 * 0.953 * peer(node, one, other, "write") * node.factor("two_way_slow", a=a, b=b)
    return rate * (0.72 if once else 1.0)


def together(node, one, other) -> float:
    """GB/s of one copy while every GPU copies to all. Those of AMD's healthy MI300X are at 28.6 to 43.7, on
    average at 35.8 of 48.4; those of a public run of eight MI350X at 50.7 to 53.4 of 57.5."""
    usual, apart = (0.74, 0.3) if node.sku["architecture"] == "cdna3" else (0.89, 0.04)
    share = usual + apart * (noise.fraction(node.seed, "together", one["slot"], other["slot"]) - 0.5)
    return peer(node, one, other, "write") * share * node.factor("all_to_all_slow")


def collective(node, gpus: list, name: str) -> float:
    """The bus bandwidth in GB/s that a collective over these GPUs reaches for very large messages."""
    slots = [gpu["slot"] for gpu in gpus]
    # All links of a GPU work at once: with fewer GPUs there are fewer of them.
    share = (len(gpus) - 1) / float(len(node.gpus) - 1)
    rate = node.sku["ring"][name] * share * node.factor("collective_slow")
    rate *= node.factor("alltoall_slow") if name == "alltoall" else 1.0
    slowest = 1.0
    for place, a in enumerate(slots):
        for b in slots[place + 1 :]:
            low, high = min(a, b), max(a, b)
            if not readings.wired(node).get((low, high)):
                continue
            slowest = min(slowest, node.factor("slow_pair", a=low, b=high))
            slowest = min(slowest, _DETOUR if node.fault("xgmi_down", a=low, b=high) else 1.0)
    memory = min(node.factor("memory_slow", gpu=slot) for slot in slots)
    # Everybody waits for the slowest link, but for what the others can pass on in its stead.
    return rate * (1.0 + slowest) / 2.0 * (1.0 if memory > 0.5 else 2 * memory)


def joined(node) -> list:
    """Rows of the links between GPUs, for programs that show them."""
    return [readings.links(node, gpu) for gpu in node.gpus]
