"""Loading of the nodes for a use case, as a `Source` specifies.

Login settings come from the inventory, then the caller, then Ansible's settings. Passwords become node
variables, like passwords of a vaulted inventory: they are masked in all output, and passed to Ansible,
workers and child processes in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from provision.api.source import Limits, Source
from provision.desired import inventory, lockfile, service_hosts, variable_types
from provision.desired.inventory.ansible import ansible_settings
from provision.desired.inventory.ansible.ansible_settings import Settings
from provision.errors import UsageError
from provision.events import NodeAnswered, Note, OnEvent, ignore
from provision.fleet import Fleet, Kind
from provision.remote import workers
from provision.remote.ssh import known_hosts

if TYPE_CHECKING:
    from provision.drift.assess import Assessment, LookOptions


class AskPassword(Protocol):
    """Prompt for a password, which a person types.

    `wanted_by`: flag or setting that requires it; `variable`: the variable to fill. `may_be_empty`: an empty
    password is accepted. Raises UsageError without a person to prompt."""

    def __call__(self, prompt: str, wanted_by: str, variable: str, *, may_be_empty: bool = False) -> str: ...


def refuse(prompt: str, wanted_by: str, variable: str, *, may_be_empty: bool = False) -> str:  # noqa: ARG001
    """Reject the prompt, for programs without a user. Raises UsageError."""
    raise UsageError(
        f"{wanted_by}: a password is wanted, and there is nobody to ask",
        f"give password or become_password, or set {variable}, vaulted, in the inventory",
    )


def several(given: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the given paths as a list; a single string is one path, not a sequence of letters."""
    return list(map(str, [given] if isinstance(given, str | Path) else given))


@dataclass(frozen=True)
class LoadedFleet:
    """The selected nodes with rendered connection variables, pinned to their lock file's versions.

    `overrides`: the source's variables left to apply. Both may hold secrets, so neither is printed.
    """

    fleet: Fleet = field(repr=False)
    overrides: dict[str, Any] = field(repr=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of the selected nodes in inventory order."""
        return tuple(self.fleet.nodes)


def vault_password_files(source: Source) -> tuple[Path, ...]:
    """Return the given files, or the one in Ansible's environment variable or ansible.cfg."""
    named = several(source.vault_password_files) or [ansible_settings.read().vault_password_file or ""]
    return tuple(Path(name).expanduser() for name in named if name)


def whole(source: Source) -> Fleet:
    """Return all hosts of the inventory with their inventory variables."""
    first, *others = several(source.inventories) or [""]
    path = inventory.find(first or None, others, last_used=source.last_used)
    return variable_types.typed(inventory.load(path, vault_password_files(source)))


def load(source: Source, *, on_event: OnEvent = ignore, ask: AskPassword = refuse) -> LoadedFleet:
    """Read the inventory and select the nodes, without contacting any.

    Notes are reported about excluded hosts and ineffective settings. `ask` prompts for passwords. Raises
    GpuprovError for any mistake in the source or the inventory."""

    def note(line: str) -> None:
        on_event(Note(line))

    overrides = {name: variable_types.typed_override(name, value) for name, value in source.variables.items()}
    everyone = completed(whole(source), source, note, ask)
    inventory.remember(everyone)
    everyone = lockfile.held(everyone, str(source.lock) if source.lock else None, ignored=not source.use_lock)
    without_workers, others = workers.apart(everyone)
    chosen = _chosen(without_workers, everyone, source, note)
    if chosen.where(Kind.MONITORING):
        from provision.desired import monitoring

        chosen = monitoring.watching(
            chosen,
            lambda: _reachable(service_hosts.apart(without_workers), overrides),
            overrides,
            note,
        )
    if chosen.where(Kind.WORKER):
        from provision.desired import receptor

        members = replace(everyone, nodes=everyone.where(Kind.WORKER))
        chosen = receptor.meshed(chosen, lambda: _reachable(members, overrides))
    fleet = _reachable(chosen, overrides)
    if (slurms := service_hosts.slurms(fleet)).nodes:
        fleet = replace(fleet, others={**fleet.others, **_reachable(slurms, overrides).nodes})
    overrides = variable_types.without_early_templates(overrides)
    if line := known_hosts.note(fleet.nodes.values()):
        note(line)
    # The controller itself reaches the members of the mesh.
    linked = workers.linked(
        replace(fleet, nodes=fleet.without(Kind.WORKER)), _reachable(others, {}), overrides
    )
    nodes = {name: linked.nodes.get(name, node) for name, node in fleet.nodes.items()}
    return LoadedFleet(replace(linked, nodes=nodes), overrides)


def _is_early(name: str) -> bool:
    return name.startswith(variable_types.EARLY)


def _reachable(fleet: Fleet, overrides: Mapping[str, Any]) -> Fleet:
    """Render the variables that are needed before nodes are observed (resolve.reachable).

    Without templates in them, nothing is rendered, and neither stacks, roles nor the template engine are
    loaded. A user's own stack may contain templates, too."""
    distinct = {id(node.variables): node.variables for node in fleet.nodes.values()}
    if not any(map(_is_early, overrides)) and not any(
        name == "gpuprov_stack" or variable_types.is_dynamic(variables[name])
        for variables in distinct.values()
        for name in filter(_is_early, variables)
    ):
        return fleet
    from provision.desired import resolve

    return resolve.reachable(fleet, overrides)


def look(
    loaded: LoadedFleet, limits: Limits | None, on_event: OnEvent, **more: Unpack[LookOptions]
) -> Assessment:
    """Observe the nodes and compare them with their declared state; node errors are in the result."""
    from provision.drift import assess

    limits = limits or Limits()
    more["timeout"], more["connections"] = limits.timeout, limits.connections
    more["say"] = lambda line: on_event(Note(line))
    more["on_done"] = lambda said: on_event(NodeAnswered(said.node, said.trouble))
    return assess.assess(loaded.fleet, loaded.overrides, **more)


def _chosen(without_workers: Fleet, everyone: Fleet, source: Source, note: Callable[[str], None]) -> Fleet:
    """Return the hosts that match the source's pattern and that a verb may handle."""
    if everyone.where(Kind.WORKER):
        from provision.desired import receptor

        named = receptor.chosen(without_workers, everyone, source.nodes)
    else:
        named = inventory.select(everyone, source.nodes)
    fleet = service_hosts.apart(named, note)
    return service_hosts.without(fleet, note) if source.gpu_nodes_only else fleet


def settled(source: Source, ask: AskPassword) -> Source:
    """Return the source with all required passwords, prompting now, so that it can be loaded repeatedly."""
    passwords = _passwords(source, ansible_settings.read(), ask)
    login, become = passwords.get("ansible_password"), passwords.get("ansible_become_password")
    prompted = replace(source, password=login, become_password=become)
    return replace(prompted, ask_password=False, ask_become_password=False)


def completed(fleet: Fleet, source: Source, note: Callable[[str], None], ask: AskPassword) -> Fleet:
    """Fill in connection variables that the inventory leaves open.

    `note` gets a line for each setting of Ansible that has no effect here. Raises UsageError if a required
    password cannot be prompted for or used, InventoryError for a mistake in ansible.cfg."""
    settings = ansible_settings.read()
    for line in settings.notes:
        note(line)
    variables: dict[str, Any] = dict(settings.variables)
    if source.user:
        variables["ansible_user"] = source.user
    return ansible_settings.with_defaults(fleet, {**variables, **_passwords(source, settings, ask)})


def _passwords(source: Source, settings: Settings, ask: AskPassword) -> dict[str, Any]:
    """Return passwords by the variables that they fill, prompting for required ones that are missing."""
    login = "-k" if source.ask_password else "ask_pass" if settings.ask_pass else ""
    become = "-K" if source.ask_become_password else "become_ask_pass" if settings.ask_become_pass else ""
    passwords: dict[str, Any] = {}
    if source.password is not None:
        passwords["ansible_password"] = _usable(source.password, "password")
    elif login:
        passwords["ansible_password"] = _usable(ask("SSH password: ", login, "ansible_password"), login)
    if source.become_password is not None:
        passwords["ansible_become_password"] = _usable(source.become_password, "become_password")
    elif become:
        same = "ansible_password" in passwords
        prompt = "sudo password [the SSH password]: " if same else "sudo password: "
        typed = _usable(ask(prompt, become, "ansible_become_password", may_be_empty=same), become)
        passwords["ansible_become_password"] = typed or passwords["ansible_password"]
    return passwords


def _usable(password: str, given_by: str) -> str:
    """Return the password; raise UsageError if it looks like a template."""
    if "{{" in password or "{%" in password:
        raise UsageError(
            f"{given_by}: a password with {{{{ or {{% in it looks like a template", "log in with a key"
        )
    return password
