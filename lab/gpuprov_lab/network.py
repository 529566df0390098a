"""The lab's network: a bridge with 10.N.0.0/16 per lab, a network namespace per node, no way out."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path

from gpuprov_lab.command import attempt, call
from provision.errors import LabError

FIRST_OCTET = 78
LAST_OCTET = 127
NAMESPACES = Path("/run/netns")
_ALIAS = "gpuprov lab "


def bridge_name(octet: int) -> str:
    return f"gpulab{octet}"


def bridge_address(octet: int) -> str:
    return f"10.{octet}.0.1"


def node_address(octet: int, index: int) -> str:
    """Return the address of the `index`-th node, counted from 1: 10.N.1.1, 10.N.1.2, …"""
    return f"10.{octet}.{1 + (index - 1) // 250}.{1 + (index - 1) % 250}"


def host_side(octet: int, index: int) -> str:
    """Return the interface at the bridge's end of a node's cable (at most 15 characters)."""
    return f"gl{octet}n{index}"


def free_octet(taken: Iterable[int]) -> int:
    """Return the first N for which no other lab and no route uses 10.N.0.0/16. Raises LabError."""
    routes = [
        r["dst"] for r in json.loads(call("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    ]
    used = set(taken)
    for octet in range(FIRST_OCTET, LAST_OCTET + 1):
        ours = ipaddress.IPv4Network(f"10.{octet}.0.0/16")
        if octet not in used and not any(_overlaps(ours, route) for route in routes):
            return octet
    raise LabError(
        f"no free network between 10.{FIRST_OCTET}.0.0/16 and 10.{LAST_OCTET}.0.0/16",
        "gpuprov lab down --all",
    )


def _overlaps(ours: ipaddress.IPv4Network, route: str) -> bool:
    try:
        there = ipaddress.ip_network(route, strict=False)
    except ValueError:  # "default"
        return False
    # The lab's longer prefix wins over a default route, or a route for all of 10.0.0.0/8.
    return isinstance(there, ipaddress.IPv4Network) and there.prefixlen > 8 and ours.overlaps(there)


def ensure_bridge(octet: int, lab: str) -> None:
    """Create the lab's bridge with its address, and an alias that names the lab if its record is lost."""
    name = bridge_name(octet)
    if not (Path("/sys/class/net") / name).exists():
        call("ip", "link", "add", name, "type", "bridge")
    call("ip", "link", "set", name, "alias", f"{_ALIAS}{lab}")
    addresses = json.loads(call("ip", "-json", "-4", "address", "show", "dev", name))
    if not any(a.get("local") == bridge_address(octet) for link in addresses for a in link["addr_info"]):
        call("ip", "address", "add", f"{bridge_address(octet)}/16", "dev", name)
    call("ip", "link", "set", name, "up")


def ensure_namespace(namespace: str, octet: int, index: int) -> None:
    """Create a node's network namespace with its address on `host0`, connected to the bridge."""
    outside = host_side(octet, index)
    if (NAMESPACES / namespace).exists() and (Path("/sys/class/net") / outside).exists():
        plug(octet, index, True)
        return
    remove_namespace(namespace)
    call("ip", "netns", "add", namespace)
    call("ip", "link", "add", outside, "type", "veth", "peer", "name", "host0", "netns", namespace)
    call("ip", "link", "set", outside, "master", bridge_name(octet), "up")
    inside = f"""\
link set lo up
address add {node_address(octet, index)}/16 dev host0
link set host0 up
"""
    call("ip", "-n", namespace, "-batch", "-", stdin=inside)


def plug(octet: int, index: int, connected: bool) -> None:
    """Plug or pull a node's cable at the bridge: a node without power does not even answer ARP."""
    call("ip", "link", "set", host_side(octet, index), "up" if connected else "down")


def namespaces(prefix: str) -> list[str]:
    """List this host's network namespaces by the prefix of their name."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(path.name for path in NAMESPACES.iterdir() if path.name.startswith(prefix))


def namespace_pids(namespace: str) -> list[int]:
    """List the processes in a network namespace (all of a node's)."""
    return [int(pid) for pid in attempt("ip", "netns", "pids", namespace).stdout.split()]


def remove_namespace(namespace: str) -> None:
    """Remove a namespace with both ends of its cable; a no-op if it is missing."""
    if (NAMESPACES / namespace).exists():
        call("ip", "netns", "delete", namespace)


def bridges(lab: str) -> list[str]:
    """List the bridges made for `lab`, recognised by their alias."""
    return sorted(name for name, owner in _bridge_owners().items() if owner == lab)


def bridge_labs() -> list[str]:
    """List the labs that have a bridge on this host."""
    return sorted(set(_bridge_owners().values()))


def _bridge_owners() -> dict[str, str]:
    links = json.loads(call("ip", "-json", "link", "show", "type", "bridge") or "[]")
    owners = {link["ifname"]: link.get("ifalias", "") for link in links if link}
    return {name: alias.removeprefix(_ALIAS) for name, alias in owners.items() if alias.startswith(_ALIAS)}


def remove_bridge(name: str) -> None:
    call("ip", "link", "delete", name)
