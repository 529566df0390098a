"""From a `Source` to the nodes that a use case works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.api import logins
from provision.api.events import Note, OnEvent, ignore
from provision.api.source import Source, several
from provision.desired import inventory, lockfile, service_hosts, variable_types
from provision.desired.inventory import ansible_settings
from provision.desired.templating import resolve
from provision.fleet import Fleet, Kind
from provision.remote import workers
from provision.remote.ssh import host_key_checking


@dataclass(frozen=True)
class LoadedFleet:
    """The chosen nodes, held to their lock file, with their connection variables rendered.

    `overrides` are those of the source that are left to apply. Neither is printed: both may hold secrets.
    """

    fleet: Fleet = field(repr=False)
    overrides: dict[str, Any] = field(repr=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the chosen nodes, in the order of the inventory."""
        return tuple(self.fleet.nodes)


def vault_password_files(source: Source) -> tuple[Path, ...]:
    """Those given, or the one that Ansible's environment variable or ansible.cfg names."""
    named = several(source.vault_password_files) or [ansible_settings.read().vault_password_file or ""]
    return tuple(Path(name).expanduser() for name in named if name)


def load(
    source: Source, *, on_event: OnEvent = ignore, ask: logins.AskPassword = logins.refuse
) -> LoadedFleet:
    """Read the inventory and choose the nodes. No node is reached.

    Notes are reported of hosts that are left out, and of settings without effect. `ask` is called where a
    password is to be typed. Raises GpuprovError for any mistake in the source or the inventory."""

    def note(line: str) -> None:
        on_event(Note(line))

    overrides = {name: variable_types.typed_override(name, value) for name, value in source.variables.items()}
    first, *more = several(source.inventories) or [""]
    place = inventory.find(first or None, more, last_used=source.last_used)
    whole = variable_types.typed(inventory.load(place, vault_password_files(source)))
    whole = logins.completed(whole, source, note, ask)
    inventory.remember(whole)
    whole = lockfile.held(whole, str(source.lock) if source.lock else None, ignored=not source.use_lock)
    without_workers, others = workers.apart(whole)
    chosen = _chosen(without_workers, whole, source, note)
    if chosen.where(Kind.MONITORING):
        from provision.desired import monitoring

        chosen = monitoring.watching(
            chosen,
            lambda: resolve.reachable(service_hosts.apart(without_workers), overrides),
            overrides,
            note,
        )
    if chosen.where(Kind.WORKER):
        from provision.desired import receptor

        members = replace(whole, nodes=whole.where(Kind.WORKER))
        chosen = receptor.meshed(chosen, lambda: resolve.reachable(members, overrides))
    fleet = resolve.reachable(chosen, overrides)
    if (slurms := service_hosts.slurms(fleet)).nodes:
        fleet = replace(fleet, others={**fleet.others, **resolve.reachable(slurms, overrides).nodes})
    overrides = resolve.without_templates(overrides)
    if line := host_key_checking.note(fleet.nodes.values()):
        note(line)
    # A member of the mesh is reached by the controller itself.
    linked = workers.linked(
        replace(fleet, nodes=fleet.without(Kind.WORKER)), resolve.reachable(others, {}), overrides
    )
    nodes = {name: linked.nodes.get(name, node) for name, node in fleet.nodes.items()}
    return LoadedFleet(replace(linked, nodes=nodes), overrides)


def _chosen(without_workers: Fleet, whole: Fleet, source: Source, note: Callable[[str], None]) -> Fleet:
    """The hosts that the source's pattern names and that a verb may work on."""
    if whole.where(Kind.WORKER):
        from provision.desired import receptor

        named = receptor.chosen(without_workers, whole, source.nodes)
    else:
        named = inventory.select(whole, source.nodes)
    fleet = service_hosts.apart(named, note)
    return service_hosts.without(fleet, note) if source.gpu_nodes_only else fleet
