"""Detection of one machine under two inventory names, before both are changed at the same time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from provision.desired.inventory import ansible_inventory
from provision.errors import InventoryError
from provision.fleet import Fleet
from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError
from provision.remote.ssh.connection import ansible_defaults, route_of

_SHOWN = 5  # machines that are named; one mistake in a template makes hundreds


def refuse(fleet: Fleet) -> None:
    """Raise InventoryError with the names and their places when two nodes are reached at one address.

    The same address behind another jump host, or at another port, is another machine. What only Ansible can
    reach is not compared here: the lock on the node finds it (fleet_lock.py)."""
    configs, defaults = ConfigFiles(), ansible_defaults()
    found: dict[tuple[Any, ...], list[str]] = {}
    for node in fleet.nodes.values():
        try:
            route = route_of(node, configs, defaults)
        except NotUnderstoodError:
            continue
        target = route.target
        jumps = tuple((hop.host, hop.port) for hop in route.jumps)
        key = (target.host.lower(), target.port, jumps, target.proxy_command)
        found.setdefault(key, []).append(node.name)
    twice = {key: names for key, names in found.items() if len(names) > 1}
    if twice:
        told = [
            f"{' and '.join(_placed(name, fleet.source) for name in names)} are "
            f"{'all' if len(names) > 2 else 'both'} at {key[0]}"
            for key, names in list(twice.items())[:_SHOWN]
        ]
        more = f"\n  and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
        raise InventoryError(
            "the inventory lists one machine under two names: " + "\n  ".join(told) + more,
            "take one of them out, or correct its ansible_host",
        )


def _placed(name: str, source: Path) -> str:
    """`gpu-01 (fleet.yml:12)`, where the name can be found in the inventory's files."""
    place = ansible_inventory.place_of(rf"""\s*["']?{re.escape(name)}["']?\s*(?::|\s|$)""", source)
    return f"{name} ({place})" if place else name
