"""The messages between the processes of one collective, and the resulting bus bandwidth.

They form a ring, node after node in the order of their ranks: inside a node over NVLink, between two
neighbours through the RDMA cards of both, all at once. It is as fast as its slowest part. With three or more
nodes a broken link between two of them only matters if those two are neighbours.
"""

import os
import platform
import sys
import time

import bandwidth
import nics
from amd import copies
from perftest import ib_write_bw

PAIRS = 4  # queue pairs: one for each of a card's channels
SHARE = 0.955  # of perftest's rate
STAGED = 0.5  # of that, if the card cannot reach GPU memory and data is staged in host memory
SOCKETS = 2.5  # GB/s over TCP, through the management interface of the nodes


def introduction(node, gpus: list, first: int) -> dict:
    """Describe a process and its GPUs; `first` is the CUDA index of its first GPU."""
    memory = [node.given("memory_small", "mib", node.sku["memory"], gpu=gpu["slot"]) for gpu in gpus]
    return {
        "name": node.name,
        "host": platform.node().split(".")[0],
        "pid": os.getpid(),
        "product": node.sku["name"],
        "memory": min(memory),
        "gpus": [
            {"device": first + place, "slot": gpu["slot"], "address": gpu["address"].rpartition(".")[0]}
            for place, gpu in enumerate(gpus)
        ],
    }


def no_peers() -> bool:
    """Whether NCCL must use neither peer access nor shared memory, so that only the network remains."""
    return all(os.environ.get(name) == "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"))


def has_switch(node) -> bool:
    """Whether the switches between this node's GPUs can reduce data, and NCCL may use that."""
    return os.environ.get("NCCL_NVLS_ENABLE", "1") != "0" and node.sku["architecture"] in (
        "Hopper",
        "Blackwell",
    )


def between_nodes(node, gpus: list):
    """Return GB/s from a node to its neighbours over all cards of these GPUs, None if none works.

    If a card is down, its GPU sends through the others. A slow one delays all, since each has the same share
    of the data.
    """
    if os.environ.get("NCCL_NET", "IB") != "IB" or os.environ.get("NCCL_IB_DISABLE") == "1":
        return None
    working = [card for card in nics.working(node) if card["board"] != "storage" and _wanted(card["name"])]
    up = [card for card in working if nics.link_of(node, card)[0].startswith("4")]
    beside = {gpu["slot"]: gpu for gpu in gpus}
    used = sorted(up, key=lambda card: card["number"] not in beside)[: len(gpus)]
    if not used:
        return None
    options = {"qps": PAIRS}
    gbits = [ib_write_bw.alone(node, options, card, beside.get(card["number"], gpus[0])) for card in used]
    peermem = node.loaded("nvidia_peermem") or node.loaded("amdgpu")  # amdgpu exports GPU memory itself
    reached = peermem or node.driver()[1] == "open"
    staged = 1.0 if reached and not node.fault("gpudirect_off") else STAGED
    return min(gbits) / 8.0 * len(used) * SHARE * staged


def _wanted(name: str) -> bool:
    """Whether NCCL_IB_HCA allows a card: `mlx5` as a prefix, `=mlx5_1,mlx5_3` exactly, `^…` all others."""
    text = os.environ.get("NCCL_IB_HCA", "")
    others = text.startswith("^")
    exact = text[others:].startswith("=")
    words = [word.partition(":")[0] for word in text.lstrip("^=").split(",") if word]
    found = any(name == word if exact else name.startswith(word) for word in words)
    return not words or found != others


def offer(node, gpus: list, collective: str, nodes: int) -> dict:
    """Return a node's rate for its part of a collective (GB/s), and its obstacles to other nodes."""
    inside = bandwidth.through_cards(node, gpus) if no_peers() else None
    switch = has_switch(node) and nodes == 1 and inside is None
    if inside is None:
        inside = (
            copies.collective(node, gpus, collective)
            if node.vendor == "amd"
            else bandwidth.collective(node, gpus, collective, switch or not node.sku["fabric"])
        )
    peers = {fault["peer"]: fault for fault in node.faults if fault["id"] == "link_slow"}
    return {
        "inside": inside,
        "switch": switch,
        "cards": between_nodes(node, gpus) if nodes > 1 else None,
        "every": node.factor("peers_slow"),
        "slow": {peer: fault["factor"] for peer, fault in peers.items()},
        "every_hangs": bool(node.fault("peers_hang")),
        "hangs": [fault["peer"] for fault in node.faults if fault["id"] == "link_hang"],
        "wrong": node.given("wrong_result", "count", 0),
    }


def agreed(order: list, offers: dict) -> dict:
    """Combine the `offers` (node → its offer) of the nodes in this `order`.

    `rate`: bus bandwidth in GB/s; `hangs`: whether some data never arrives; `switch`: whether the switches
    reduce data; `wrong`: wrong values in a result.
    """
    rate, hangs = min(offers[name]["inside"] for name in order), False
    nodes = len(order)
    if nodes > 1 and any(offers[name]["cards"] is None for name in order):
        rate, nodes = min(rate, SOCKETS), 1
    for place in range(nodes if nodes > 1 else 0):
        one, other = order[place - 1], order[place]
        for name, peer in ((one, other), (other, one)):
            own = offers[name]
            rate = min(rate, own["cards"] * own["every"] * own["slow"].get(peer, 1.0))
            hangs = hangs or own["every_hangs"] or peer in own["hangs"]
    return {
        "rate": rate,
        "hangs": hangs,
        "switch": all(offers[name]["switch"] for name in order),
        "wrong": sum(offers[name]["wrong"] for name in order),
    }


class Team:
    """The processes of one run: `met` lists all introductions by rank."""

    def __init__(self, node, world, met: list) -> None:
        self.node, self.world, self.met = node, world, met
        self.order = []
        for one in met:
            if one["name"] not in self.order:
                self.order.append(one["name"])
        self.ranks = sum(len(one["gpus"]) for one in met)
        here = {gpu["slot"] for one in met if one["name"] == node.name for gpu in one["gpus"]}
        self.gpus = [gpu for gpu in node.gpus if gpu["slot"] in here]

    def lacks_cards(self) -> bool:
        """Whether NCCL may only use RDMA cards, needs them, and this node has none up."""
        if os.environ.get("NCCL_NET") != "IB":
            return False
        if len(self.order) > 1:
            return between_nodes(self.node, self.gpus) is None
        return no_peers() and bandwidth.through_cards(self.node, self.gpus) is None

    def agree(self, collective: str) -> dict:
        """Agree with all processes under the current faults; if data never arrives, wait until killed."""
        offers = self.world.gather(offer(self.node, self.gpus, collective, len(self.order)))
        found = agreed(self.order, {one["name"]: offers[rank] for rank, one in enumerate(self.met)})
        if found["hangs"]:
            sys.stdout.flush()
            while True:
                time.sleep(0.5)
        return found
