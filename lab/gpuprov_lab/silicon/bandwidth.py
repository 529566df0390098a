"""Rates of copies between devices, as determined by wiring and faults."""

import nics
import noise


def host(node, gpu, direction: str, spread: float = 0.004) -> float:
    """Return GB/s between host memory and a GPU; `direction` is h2d or d2h."""
    rate = node.sku[direction] * noise.jitter(node, direction, gpu["slot"], spread)
    return rate * pcie_factor(node, gpu) * node.factor("h2d_slow", gpu=gpu["slot"])


def pcie_factor(node, gpu) -> float:
    """Return the fraction of a GPU's PCIe rate that its lanes and generation leave (half per generation)."""
    best = node.sku["pcie"]
    lanes = min(node.given("pcie_width", "width", 16, gpu=gpu["slot"]), node.given("pcie_wired", "width", 16))
    behind = max(0, best - node.given("pcie_gen", "gen", best, gpu=gpu["slot"]))
    return lanes / 16.0 * 0.5**behind


def peer(node, one, other, kind: str):
    """Return GB/s between two GPUs, None without a route; `kind`: read, write or bidirectional."""
    a, b = sorted([one["slot"], other["slot"]])
    if node.fault("pair_disabled", a=a, b=b):
        return None
    links = node.linked(a, b)
    healthy = node.sku["links"]
    rate = node.sku["d2d_bidirectional" if kind == "bidirectional" else "d2d"]
    if links:
        rate *= links / healthy
    else:
        far = one["numa"] != other["numa"] or healthy
        rate = node.sku.get("d2d_far", rate) if far else rate
        rate *= min(pcie_factor(node, one), pcie_factor(node, other))
    label = f"{one['slot']}-{other['slot']}"
    return rate * node.factor("slow_pair", a=a, b=b) * noise.jitter(node, kind, label, 0.004)


def local(node, gpu) -> float:
    """Return GB/s of a copy within one GPU's memory."""
    # Eight H100s differ by 0.05 % (The Smol Training Playbook).
    rate = node.sku["local"] * node.factor("memory_slow", gpu=gpu["slot"])
    return rate * noise.jitter(node, "local", gpu["slot"], 0.0005)


def collective(node, gpus: list, name: str, nvls: bool) -> float:
    """Return the bus bandwidth in GB/s of a collective over these GPUs for very large messages."""
    sku, slots = node.sku, [gpu["slot"] for gpu in gpus]
    if name == "all_reduce" and nvls:
        rate = sku["busbw"].get(len(gpus), sku["ring"]["all_reduce"])
    else:
        rate = sku["ring"][name]
    rate *= node.factor("collective_slow")
    rate *= node.factor("alltoall_slow") if name == "alltoall" else 1.0
    if sku["links"]:
        rate *= min(node.active_links(slot) for slot in slots) / float(sku["links"])
    if not sku["links"] or (sku.get("pairs") and len(gpus) > 2):
        rate *= min(pcie_factor(node, gpu) for gpu in gpus)
    for fault in node.faults:
        if fault["id"] in ("slow_pair", "pair_disabled") and fault["a"] in slots and fault["b"] in slots:
            # The ring has other routes, but fewer.
            rate *= (1.0 + fault.get("factor", 0.2)) / 2.0
    return rate


def through_cards(node, gpus: list):
    """Return the bus bandwidth in GB/s of an all-reduce over RDMA cards, None if none is up.

    Each GPU sends through the card next to it; a ring is as fast as its slowest member. Behind PCIe 4.0
    sending and receiving slow each other down (azurehpc-health-checks requires 18 of 25 GB/s of A100 nodes).
    """
    cards = [card for card in nics.working(node) if card["board"] != "storage"]
    up = [card for card in cards if nics.link_of(node, card)[0].startswith("4")]
    if not up:
        return None
    rates = []
    for card in up:
        lanes = node.given("nic_pcie_width", "width", 16, nic=card["number"])
        rate = nics.rate_of(node, card) / 8.0 * (lanes / 16.0)
        rate *= node.factor("nic_slow", nic=card["number"])
        rates.append(rate * node.factor("gpudirect_slow", nic=card["number"]))
    share = 0.94 if node.sku["pcie"] > 4 else 0.80
    slot = node.sku["h2d"] * min(pcie_factor(node, gpu) for gpu in gpus)
    return min(slot, *rates) * share * min(1.0, len(up) / float(len(gpus)))
