"""RDMA ports in a tree modelled on /sys/class/infiniband."""

from __future__ import annotations

from collections.abc import Sequence

from tests.node.machine import Tree

ZERO_GID = ":".join(["0000"] * 8)
LINK_LOCAL_GID = "fe80:0000:0000:0000:bace:f6ff:fe12:3456"
IPV4_GID = "0000:0000:0000:0000:0000:ffff:0a00:0107"


def port(tree: Tree, device: str, *, roce: bool, pkeys: Sequence[str]) -> None:
    """Create the first port of a card, in state ACTIVE."""
    tree.lines(device, board_id="MT_0000000838")
    tree.lines(f"{device}/ports/1", state="4: ACTIVE", phys_state="5: LinkUp")
    if roce:
        kind = {"link_layer": "Ethernet", "rate": "200 Gb/sec (4X HDR)", "lid": "0x0", "sm_lid": "0x0"}
    else:
        kind = {"link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "lid": "0x2a", "sm_lid": "0x1"}
    tree.lines(f"{device}/ports/1", **kind)
    tree.lines(f"{device}/ports/1/pkeys", **{str(index): key for index, key in enumerate(pkeys)})
