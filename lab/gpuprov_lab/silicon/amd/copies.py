"""Rates of copies and collectives of AMD GPUs, as determined by wiring and faults.

Sources: TransferBench p2p and all_reduce_perf of eight MI300X in AMD's guide to accepting an MI300X;
TransferBench p2p 4M of a node with eight dies of MI200 in AMD's guide to validating a node, where the rate of
pairs without a link depends on the route. The rates of a copy within an MI250X die and of a GPU that reads
host memory are unpublished; the values here are merely plausible.
"""

import bandwidth
import noise

from amd import readings

_DETOUR = 0.5  # of a link's rate, if it is down and another GPU forwards the data: plausible


def host(node, gpu, direction: str) -> float:
    """Return GB/s between host memory and a GPU that copies itself; `direction` is h2d or d2h."""
    return bandwidth.host(node, gpu, direction)


def local(node, gpu) -> float:
    """Return GB/s of a copy within one GPU's memory. Eight in a node differ by a percent (AMD's guide)."""
    rate = node.sku["local"] * node.factor("memory_slow", gpu=gpu["slot"])
    return rate * noise.jitter(node, "local", gpu["slot"], 0.008)


def peer(node, one, other, kind: str) -> float:
    """Return GB/s between two GPUs; `kind`: read or write."""
    a, b = sorted([one["slot"], other["slot"]])
    wired = readings.wired(node).get((a, b), 0)
    rate = node.sku["d2d"][wired] if wired else node.sku["d2d_far"].get((a, b), node.sku["d2d"][0])
    if wired and node.fault("xgmi_down", a=a, b=b):
        rate *= _DETOUR
    rate *= node.factor("slow_pair", a=a, b=b)
    return rate * noise.jitter(node, f"{kind}{one['slot']}", other["slot"], 0.008)


def two_way(node, one, other) -> float:
    """Return the sum of both copies of a pair at once, in GB/s.

    AMD's pairs reach 0.953 of twice one way; a public run of eight MI350X has 79 instead of 109 once.
    """
    a, b = sorted([one["slot"], other["slot"]])
    once = node.fault("two_way_once", a=a, b=b) and one["slot"] == a
    rate = 2 * 0.953 * peer(node, one, other, "write") * node.factor("two_way_slow", a=a, b=b)
    return rate * (0.72 if once else 1.0)


def together(node, one, other) -> float:
    """Return GB/s of one copy while every GPU copies to all others.
    AMD's healthy MI300X: 28.6 to 43.7, mean 35.8 of 48.4; a public run of eight MI350X: 50.7 to 53.4 of 57.5.
    """
    usual, apart = (0.74, 0.3) if node.sku["architecture"] == "cdna3" else (0.89, 0.04)
    share = usual + apart * (noise.fraction(node.seed, "together", one["slot"], other["slot"]) - 0.5)
    return peer(node, one, other, "write") * share * node.factor("all_to_all_slow")


def collective(node, gpus: list, name: str) -> float:
    """Return the bus bandwidth in GB/s of a collective over these GPUs for very large messages."""
    slots = [gpu["slot"] for gpu in gpus]
    # A GPU uses all its links at once, so fewer GPUs use fewer links.
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
    # All GPUs wait for the slowest link, except for the traffic that the others can forward instead.
    return rate * (1.0 + slowest) / 2.0 * (1.0 if memory > 0.5 else 2 * memory)


def joined(node) -> list:
    """Return rows of the links between GPUs, for programs that show them."""
    return [readings.links(node, gpu) for gpu in node.gpus]
