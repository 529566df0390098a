"""Archive of the data that a vendor needs about a node, without secrets and other machines' names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provision.api import fleets
from provision.api.source import Source
from provision.checks.health import FleetHealth
from provision.errors import GpuprovError
from provision.fleet import sources
from provision.report import bundle
from provision.report.bundle import Bundle
from provision.runs.store import RunFolder
from provision.secrets_mask import secrets_of


@dataclass(frozen=True)
class Packed:
    """An archive, its contents, and notes about missing parts."""

    node: str
    path: Path
    bundle: Bundle
    notes: tuple[str, ...]


def pack(
    folder: RunFolder, health: FleetHealth, name: str, target: Path, source: Source | None = None
) -> Packed:
    """Pack a run's data about a node into an archive below `target`. Raises GpuprovError.
    `source`: inventory with the node's secrets and other machines' names; by default the run's inventory."""
    node = bundle.find_node(health, name)
    secrets, others, unread = _declared(source, health.inventory, node.node)
    made = bundle.make(folder, health, node, secrets, others)
    return Packed(node.node, bundle.write(made, target), made, (*made.notes, *([unread] if unread else [])))


def _declared(
    source: Source | None, inventory: str, node: str
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the node's secret values, other machines' names and addresses, and why these are unknown.
    The secrets come from the inventory and the caller."""
    unread = "secrets were searched by name and shape only"
    if source is None:
        files = sources(Path(inventory)) if inventory else ()
        if not files or not all(file.exists() for file in files):
            missing = inventory or "of the run"
            return (), (), f"The inventory {missing} does not exist on this machine: {unread}."
        source = Source(inventories=files)
    try:
        fleet = fleets.whole(source)
    except GpuprovError as error:
        return (), (), f"The inventory cannot be read ({error.what}): {unread}."
    own = fleet.nodes[node].variables if node in fleet.nodes else {}
    addresses = {str(other.variables.get("ansible_host") or "") for other in fleet.nodes.values()}
    others = {*fleet.nodes, *addresses} - {node, str(own.get("ansible_host"))}
    typed = {"secret": [word for word in (source.password, source.become_password) if word]}
    return secrets_of(own, source.variables, typed), tuple(sorted(others)), ""
