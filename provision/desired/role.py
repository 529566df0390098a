"""Reader of a role's own description: defaults, options, names per OS, expectations."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import paths, yamlfile
from provision.desired import skus
from provision.errors import StackError
from provision.node.description import DEFAULT_VENDOR, MIXED

# Operators that compare with the content of a file of the role.
OF_FILES = frozenset({"template", "template_sha256", "file_sha256"})
OPERATORS = frozenset({"equals", "version", "at_least", "one_of", "contains", "matches"}) | OF_FILES
_KEYS = OPERATORS | {"fact", "why", "when", "loop", "reboot", "restarts", "step"}


@dataclass(frozen=True)
class Promise:
    """One item of expect.yml, not yet rendered. `where` names it in messages."""

    fact: str
    operator: str
    value: Any
    why: str
    when: Any
    loop: Any
    reboot: bool
    restarts: tuple[str, ...]
    step: str
    where: str


@dataclass(frozen=True, eq=False)
class Role:
    """One shipped role. `options` are the variables of its argument spec; `vars` are by OS id or family."""

    name: str
    path: Path
    defaults: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    vars: Mapping[str, Mapping[str, Any]]
    promises: tuple[Promise, ...]

    @property
    def vendor(self) -> str | None:
        """The vendor of the role's GPUs (`__<role>_vendor` of `vars/main.yml`); None: for any machine."""
        vendor = self.vars.get("main", {}).get(f"__{self.name}_vendor")
        return None if vendor is None else str(vendor)

    @property
    def steps_without_packages(self) -> tuple[str, ...]:
        """Steps that install and remove nothing (`__<role>_steps_without_packages`, `vars/main.yml`)."""
        return tuple(self.vars.get("main", {}).get(f"__{self.name}_steps_without_packages", ()))

    def own_vars(self, os: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the role's internal variables from `vars/main.yml` and its file for the OS.
        The file for the OS, which wins, is `vars/<os.id>.yml` if it exists, else `vars/<os.family>.yml`."""
        own = self.vars.get(os["id"]) or self.vars.get(os["family"]) or {}
        return {**self.vars["main"], **own} if "main" in self.vars else own

    def releases(self) -> Iterator[tuple[str, str, str]]:
        """Yield fully supported releases as (id, family, version), from `__<role>_releases` in vars files."""
        for name, variables in self.vars.items():
            for release in variables.get(f"__{self.name}_releases", ()):
                os_id, _, version = str(release).partition(" ")
                yield os_id, name if name in ("debian", "redhat") else _family(os_id), version


def steps_without_packages() -> frozenset[str]:
    """Return the tags of all steps that install and remove nothing."""
    return frozenset(
        f"{role.name}_{step}" for role in all_roles().values() for step in role.steps_without_packages
    )


def all_defaults() -> Mapping[str, Any]:
    """Return the defaults of all roles together, as in a play; their names are distinct."""
    return _merged_defaults(tuple(all_roles().values()))


@functools.lru_cache(maxsize=8)
def _merged_defaults(roles: tuple[Role, ...]) -> Mapping[str, Any]:
    return {name: value for role in roles for name, value in role.defaults.items()}


def _family(os_id: str) -> str:
    return "debian" if os_id in ("debian", "ubuntu") else "redhat"


def all_roles() -> Mapping[str, Role]:
    """Return every shipped role with an expect.yml, by name, in the order of playbooks/up.yml."""
    return _read_all(paths.ROLES, paths.PLAYBOOKS / "up.yml")


@functools.lru_cache(maxsize=8)
def _read_all(folder: Path, playbook: Path) -> Mapping[str, Role]:
    roles = {file.parent.name: _read(file.parent) for file in sorted(folder.glob("*/expect.yml"))}
    order = [name for name in _mentioned(yamlfile.load(playbook, StackError)) if name in roles]
    forgotten = sorted(roles.keys() - set(order))
    if forgotten:
        raise StackError(
            f"{playbook}: applies no role called {', '.join(forgotten)}", "add it in the right place"
        )
    # A role that is also named early (package_lock pins before the others run) counts at its last position.
    return {name: roles[name] for name in reversed(dict.fromkeys(reversed(order)))}


def _mentioned(playbook: Any) -> Iterator[str]:
    """Yield every text of a playbook in order; role names are among them however the play includes roles."""
    if isinstance(playbook, str):
        yield playbook
    elif isinstance(playbook, Mapping):
        for value in playbook.values():
            yield from _mentioned(value)
    elif isinstance(playbook, list):
        for value in playbook:
            yield from _mentioned(value)


def _read(path: Path) -> Role:
    vars_files = sorted(path.glob("vars/*.yml"))
    return Role(
        name=path.name,
        path=path,
        defaults=_mapping(path / "defaults" / "main.yml"),
        options=_options(path / "meta" / "argument_specs.yml"),
        vars={file.stem: _mapping(file) for file in vars_files},
        promises=tuple(_promises(path / "expect.yml")),
    )


def _mapping(file: Path) -> dict[str, Any]:
    return yamlfile.load_mapping(file, StackError) if file.exists() else {}


def _options(file: Path) -> dict[str, Any]:
    specs = _mapping(file).get("argument_specs", {})
    return {name: option for spec in specs.values() for name, option in (spec.get("options") or {}).items()}


def _promises(file: Path) -> Iterator[Promise]:
    items = yamlfile.load(file, StackError) or []
    if not isinstance(items, list):
        raise StackError(f"{file}: must be a list", "see docs/facts.md")
    for number, item in enumerate(items, start=1):
        where = f"{file}: item {number}"
        if problem := _problem(item):
            raise StackError(f"{where}: {problem}", "see docs/facts.md")
        (operator,) = OPERATORS & item.keys()
        yield Promise(
            fact=item["fact"],
            operator=operator,
            value=item[operator],
            why=item["why"],
            when=item.get("when"),
            loop=item.get("loop"),
            reboot=bool(item.get("reboot", False)),
            restarts=tuple(item.get("restarts", [])),
            step=item.get("step", ""),
            where=f"{where} ({item['fact']})",
        )


def _problem(item: Any) -> str:
    """Return an error message for an invalid item of expect.yml; empty if the item is valid."""
    if not isinstance(item, dict):
        return "must be a mapping with `fact`, one operator and `why`"
    operators = sorted(OPERATORS & item.keys())
    if len(operators) != 1:
        return f"must have one operator, has {operators or 'none'}"
    if unknown := sorted(str(key) for key in item.keys() - _KEYS):
        return f"unknown key {', '.join(unknown)}"
    if not isinstance(item.get("fact"), str) or not isinstance(item.get("why"), str):
        return "needs `fact` and `why` as text"
    restarts = item.get("restarts", [])
    if not isinstance(restarts, list) or not all(isinstance(unit, str) for unit in restarts):
        return "`restarts` must be a list of units"
    if not isinstance(item.get("step", ""), str):
        return "`step` must be the name of a step, as text"
    return ""


# --- the roles of a node: those in its gpuprov_roles, else those for any machine and for its GPUs

# Variables that decide which roles a node takes part in.
DECIDING = ("gpuprov_roles", "gpuprov_sku")


def roles_of(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any] | None = None) -> list[Role]:
    """Return a node's roles in their order; GPUs of several vendors give the roles of all.
    Such a machine is refused later. `gpuprov_node`: the observed node, or None before it was observed."""
    chosen = declared.get("gpuprov_roles")
    if chosen is not None:
        return [role for name, role in all_roles().items() if name in chosen]
    vendor = vendor_of(declared, gpuprov_node)
    return [role for role in all_roles().values() if vendor == MIXED or role.vendor in (None, vendor)]


def possible(declared: Mapping[str, Any]) -> list[Role]:
    """Return the roles that a node may take part in, before the vendor of its GPUs is known."""
    vendor_known = declared.get("gpuprov_roles") is not None or declared.get("gpuprov_sku") is not None
    return roles_of(declared) if vendor_known else list(all_roles().values())


def vendor_of(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any] | None = None) -> str:
    """Return the vendor of the node's GPUs; if none were observed (yet), that of its declared SKU."""
    seen = gpuprov_node["gpu"].get("vendor") if gpuprov_node is not None else None
    sku = skus.all_skus().get(str(declared.get("gpuprov_sku")))
    return str(seen or (sku.vendor if sku is not None else DEFAULT_VENDOR))
