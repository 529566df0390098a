"""Inventories in any of Ansible's formats as a Fleet of Nodes; host patterns; the starter file."""

from __future__ import annotations

import fnmatch
import hashlib
import ipaddress
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision import atomic_file, paths, yamlfile
from provision.desired.inventory import plain
from provision.desired.inventory.ansible import ansible_inventory, ansible_settings
from provision.desired.inventory.plain.documents import NotPlainError
from provision.errors import InventoryError, UsageError
from provision.fleet import Fleet, Node, sources
from provision.nearest import did_you_mean
from provision.node_names import fold, natural, unfold

START_HERE = "name one with -i FILE; gpuprov init writes a commented starter"


def find(argument: str | None, options: Sequence[str] | None = None, *, last_used: bool = True) -> Path:
    """Find the inventory to use, in the first of several places that names one.
    These are the argument and each --inventory, GPUPROV_INVENTORY, ./inventory.yml, ansible.cfg and the last
    one used here. Several become one path, joined with commas (`provision.fleet.sources`).

    `last_used`: whether the last one may be taken. A verb that changes or loads nodes takes only an inventory
    that is named, or that lies here. Raises InventoryError if none is found.
    """
    if named := [*([argument] if argument else []), *(options or ())]:
        if argument and options:
            ansible_inventory.refuse_playbook(Path(argument))
        return _existing(named, "")
    if variable := os.environ.get("GPUPROV_INVENTORY"):
        return _existing([variable], " (from GPUPROV_INVENTORY)")
    here = Path("inventory.yml")
    if here.exists():
        return here
    if (configured := ansible_settings.read()).inventories:
        return _existing(configured.inventories, f" (from {configured.inventories_from})")
    note = _last_used_note()
    if note.is_file():
        noted = note.read_text(encoding="utf-8").strip()
        if last_used:
            return _existing([noted], " (the one last used in this folder)")
        raise InventoryError(
            "no inventory: this command changes or loads nodes, so it does not take the inventory last used",
            f"name it: that was {shlex.quote(noted)}",
        )
    raise InventoryError("no inventory: there is no inventory.yml in this folder", START_HERE)


def _existing(named: Sequence[str], by: str) -> Path:
    parts = [part.expanduser() for name in named for part in sources(Path(name).expanduser())]
    for part in parts:
        if part.exists():
            continue
        if "," not in str(part):  # `a,b,` is an Ansible inventory without a file
            raise InventoryError(
                f"{part}: no such inventory{by}", "correct the path; gpuprov init writes a commented starter"
            )
        if len(parts) > 1:
            raise InventoryError(
                f"{part}: a list of hosts cannot be one of several inventories", "write the hosts into a file"
            )
    return Path(",".join(map(str, dict.fromkeys(parts))))


def _last_used_note() -> Path:
    """Return one small file per working directory, so that two terminals never write the same one."""
    here = hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:16]
    return paths.state_home() / "inventories" / here


def remember(fleet: Fleet) -> None:
    """Record the inventory as the last one used in this working directory. A read-only home is no error."""
    try:
        note = _last_used_note()
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_file.write(note, f"{fleet.place}\n", sync=False)
    except OSError:
        return


def load(source: Path, vault_password_files: Sequence[Path] = ()) -> Fleet:
    """Read an inventory; if it is not plain, `ansible-inventory` reads it with the same result.

    Nodes share their common variables, so none may be changed. Raises InventoryError (file, line, remedy).
    """
    for file in vault_password_files:
        if not os.access(file, os.R_OK):
            raise InventoryError(
                f"{file}: the vault password file cannot be read", "check --vault-password-file"
            )
    try:
        answer = plain.read(source, vault_password_files)
    except NotPlainError:
        answer = ansible_inventory.read(source, vault_password_files)
    hostvars = answer.get("_meta", {}).get("hostvars", {})
    groups = _members(answer)
    names = list(groups.get("all", ()))
    if not names:
        raise InventoryError(
            f"{source}: no nodes", "name at least one host in it; gpuprov init writes a commented one"
        )
    belongs: dict[str, list[str]] = {name: [] for name in names}
    for group, members in groups.items():
        if group != "all":
            for member in members:
                belongs[member].append(group)
    nodes = {name: Node(name, tuple(belongs[name]), hostvars.get(name, {})) for name in names}
    return Fleet(source, nodes, groups, tuple(vault_password_files))


def _members(answer: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return each group's nodes, including its children's, nearest level first, as Ansible orders them."""
    described = {name: value for name, value in answer.items() if name != "_meta" and isinstance(value, dict)}

    def nodes_of(group: str) -> tuple[str, ...]:
        hosts: dict[str, None] = {}
        level, seen = [group], {group}
        while level:
            for member in level:
                hosts.update(dict.fromkeys(described.get(member, {}).get("hosts", ())))
            children = [child for member in level for child in described.get(member, {}).get("children", ())]
            level = [child for child in dict.fromkeys(children) if child not in seen]
            seen.update(level)
        return tuple(hosts)

    names = dict.fromkeys(
        [*described, *(child for value in described.values() for child in value.get("children", ()))]
    )
    return {name: nodes_of(name) for name in names}


def select(fleet: Fleet, pattern: str) -> Fleet:
    """Return the fleet within a host pattern (`all`, `a:&b:!c`, globs, `~regex`, `g[0:2]`, `@FILE`).

    Groups keep all their members: a variable that mentions `groups` means the inventory, not the selection.
    Raises InventoryError if the pattern, or a part of it, names nothing.
    """
    names = matching(pattern, list(fleet.nodes), fleet.groups)
    if not names:
        raise InventoryError(f"--nodes {pattern}: no node is left", "widen the pattern")
    chosen = {name: fleet.nodes[name] for name in names}
    for node in chosen.values():
        _refuse_unusable(node.name, node.variables.get("ansible_host"), fleet.source)
    others = {name: node for name, node in fleet.nodes.items() if name not in chosen}
    return replace(fleet, nodes=chosen, others={**fleet.others, **others}, pattern=pattern)


# Separators and first characters of terms in a host pattern, so that no pattern can name such a host.
_NOT_A_NAME = re.compile(r"[-@!&~]|.*[\s,]", re.DOTALL)


def _refuse_unusable(name: str, address: Any, source: Path) -> None:
    """Raise InventoryError for a host that no command can name, or with an invalid address."""
    if not name or not name.isprintable() or _NOT_A_NAME.match(name):
        line = rf"""\s*["']?{re.escape(name)}["']?\s*(?::|\s|$)"""
        where = ansible_inventory.place_of(line, source) if name.strip() else ""
        raise InventoryError(
            f"{where or source}: {name!r} cannot be the name of a host: it is empty, begins with one of "
            "- @ ! & ~, or holds a space, a comma or a control character",
            "rename it there; what it is reached by may stand in ansible_host",
        )
    if isinstance(address, str) and "{" not in address and (" " in address or not address.isprintable()):
        raise InventoryError(f"{source}: {name}: ansible_host {address!r} is not an address", "correct it")


_LISTED = 12  # most names that a command lists one by one


def arguments(fleet: Fleet, nodes: Iterable[str] | None = None) -> str:
    """Return command arguments for the fleet, or these nodes of it: `fleet.yml --nodes gpu-01,gpu-02`.

    When pasted, they mean the same nodes even where another inventory would be found. Many nodes are folded
    if `matching` reads exactly these from the result.
    """
    names = sorted(set(fleet.nodes if nodes is None else nodes), key=natural)
    pattern = ",".join(names)
    if set(names) == set(fleet.nodes):
        pattern = fleet.pattern
    elif len(names) > _LISTED:
        folded = fold(names, limit=1_000_000).replace(", ", ",")
        if _means(folded, fleet) == set(names):
            pattern = folded
    chosen = "" if pattern == "all" else f" --nodes {shlex.quote(pattern)}"
    return shlex.quote(str(fleet.source)) + chosen


def _means(pattern: str, fleet: Fleet) -> set[str]:
    try:
        return set(matching(pattern, [*fleet.nodes, *fleet.others], fleet.groups))
    except InventoryError:
        return set()


# --- host patterns: `all`, names, globs, `~regex`, `a:b`, `a,b`, `:&`, `:!`, `group[0:2]`, `@FILE`; and
# names folded as in our reports, which Ansible does not know: `gpu-[01-03,07]`

# A term of a `:`-separated pattern: characters other than separators, or one whole [bracketed] expression.
_TERM = re.compile(r"(?:[^\s:\[\]]|\[[^\]]*\])+")
_COMMA = re.compile(r",(?![^\[\]]*\])")  # a comma inside brackets separates numbers
_SUBSCRIPT = re.compile(r"^(.+)\[(?:(-?[0-9]+)|([0-9]+)[:-]([0-9]*))\]$")


def matching(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the hosts in `pattern`, in Ansible's order. Raises InventoryError if a term names nothing.

    Documented at docs.ansible.com ("Patterns: targeting hosts and groups"); a test compares with
    `ansible --list-hosts`. `@FILE` has one name or pattern per line, like files for Ansible's `--limit`.
    """
    selected: list[str] = []
    if not (terms := _split(pattern)):
        raise InventoryError(f"--nodes {pattern!r} names no node", "leave it out for all nodes")
    for term in _in_order(terms):
        sign = term[0] if term[0] in "&!" else ""
        named = _one(term[len(sign) :], hosts, groups, pattern)
        if sign == "!":
            selected = [host for host in selected if host not in named]
        elif sign == "&":
            selected = [host for host in selected if host in named]
        else:
            selected = list(dict.fromkeys([*selected, *named]))
    return selected


def _split(pattern: str) -> list[str]:
    terms: Iterable[str]
    if _is_address(pattern) or _is_file(pattern):
        terms = [pattern]
    elif _COMMA.search(pattern):
        terms = _COMMA.split(pattern)
    else:
        terms = _TERM.findall(pattern)
    return [term.strip() for term in terms if term.strip()]


def _is_address(pattern: str) -> bool:
    """Return whether the pattern is an IP address, since the colons of IPv6 separate nothing."""
    try:
        ipaddress.ip_address(pattern)
    except ValueError:
        return False
    return True


def _is_file(pattern: str) -> bool:
    """Return whether the pattern is `@FILE` alone, since its path may contain separators."""
    return pattern.startswith("@") and Path(pattern[1:]).expanduser().is_file()


def _in_order(terms: Sequence[str]) -> list[str]:
    """Sort terms into additions (default: all), then intersections, then exclusions."""
    added = [term for term in terms if term[0] not in "&!"]
    kept = [term for term in terms if term[0] == "&"]
    dropped = [term for term in terms if term[0] == "!"]
    return [*(added or ["all"]), *kept, *dropped]


def _one(term: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]], whole: str) -> dict[str, None]:
    if term in hosts:
        return {term: None}
    if term[0] == "@":
        lines = _lines(Path(term[1:]).expanduser(), whole)
        if nested := next((line for line in lines if line[0] == "@"), ""):
            raise InventoryError(
                f"--nodes {whole}: {nested} in {term[1:]} is another file", "list its names there"
            )
        return {name: None for line in lines for name in _one(line, hosts, groups, f"{term}: {line}")}
    if term == "all":
        return dict.fromkeys(hosts)
    if "," in term and (names := _unfolded(term, hosts, whole)):  # Ansible has no comma in brackets
        return names
    expression, subscript = _subscript(term)
    matches = _expression(expression, whole)
    named = [group for group in groups if matches(group)]
    selected = [host for group in named for host in groups[group]]
    if not named or expression[0] == "~" or any(special in expression for special in ".?*["):
        selected += [host for host in hosts if matches(host)]
    if not named and not selected:
        if names := _unfolded(term, hosts, whole):
            return names
        raise InventoryError(
            f"--nodes {whole}: nothing in the inventory is called {term!r}",
            f"[…] at the end picks by position; for names, write {term}*"
            if subscript
            else did_you_mean(term, [*groups, *hosts], _what_there_is(hosts, groups)),
        )
    return dict.fromkeys(_picked(list(dict.fromkeys(selected)), subscript, term))


def _unfolded(term: str, hosts: Sequence[str], whole: str) -> dict[str, None]:
    """Return the hosts of `gpu-[01-03,07]`; none if the term has another form, or names no host at all."""
    existing, names = set(hosts), dict.fromkeys(unfold(term))
    absent = [name for name in names if name not in existing]
    if absent and len(absent) < len(names):
        raise InventoryError(
            f"--nodes {whole}: not in the inventory: {fold(absent)}", _what_there_is(hosts, {})
        )
    return {} if absent else names


def _lines(file: Path, whole: str) -> list[str]:
    """Return the names in a file, one per line, without comments and empty lines."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as trouble:
        reason = trouble.strerror if isinstance(trouble, OSError) else "it is not text"
        raise InventoryError(
            f"--nodes {whole}: {file} cannot be read: {reason}", "@FILE is a file of node names, one per line"
        ) from None
    return [name for line in text.splitlines() if (name := line.partition("#")[0].strip())]


def _subscript(term: str) -> tuple[str, tuple[int, int | None] | None]:
    """Split `gpus[0:2]` into (`gpus`, (0, 2)), last index included; None is the end; `[3]` gives (3, 3)."""
    match = None if term[0] == "~" else _SUBSCRIPT.match(term)
    if match is None:
        return term, None
    expression, index, start, end = match.groups()
    if index is not None:
        return expression, (int(index), int(index))
    return expression, (int(start), int(end) if end else None)


def _expression(expression: str, whole: str) -> Callable[[str], object]:
    try:
        if expression[0] == "~":
            return re.compile(expression[1:]).match
        return re.compile(fnmatch.translate(expression)).match
    except re.error as trouble:
        raise InventoryError(f"--nodes {whole}: {expression!r} is not a pattern: {trouble}", "") from None


def _picked(found: list[str], subscript: tuple[int, int | None] | None, term: str) -> list[str]:
    if subscript is None or not found:
        return found
    start, end = subscript
    if start == end:
        try:
            return [found[start]]
        except IndexError:
            raise InventoryError(
                f"--nodes {term}: there are only {len(found)} nodes", f"the last one is [{len(found) - 1}]"
            ) from None
    return found[start:] if end is None else found[start : end + 1]


def _what_there_is(hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    shown = [name for name in groups if name not in ("all", "ungrouped")] or list(hosts)
    return "there are: " + ", ".join(shown[:8]) + (", …" if len(shown) > 8 else "")


# --- the starter that `gpuprov init` writes; inventory/example.yml is the same text

_EXAMPLES = ("gpu-01", "gpu-02")
# What Ansible accepts as one host, which may be a [range].
_HOST = re.compile(r"[\w.-]+(?:\[\w+:\w+(?::\d+)?\][\w.-]*)*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")
_HOSTS_PLACE = "@HOSTS@"


def starter(hosts: Sequence[str] = ()) -> str:
    """Return the starter's text with these hosts (default: two examples). Raises UsageError on a bad name."""
    hosts = [re.sub(r"\[(\w+)-(\w+)\]", r"[\1:\2]", host) for host in hosts]  # as gpuprov prints them
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise UsageError(
                f"--host {host}: not a host name", "letters, digits, dots and dashes; or gpu-[01:40]"
            )
    template = (paths.DATA / "inventory.yml.in").read_text(encoding="utf-8")
    lines = [f"    {_key(host)}:" for host in dict.fromkeys(hosts or _EXAMPLES)]
    return template.replace(_HOSTS_PLACE, "\n".join(lines))


def _key(host: str) -> str:
    """Return the host as a YAML key, quoted if YAML would not read it as text."""
    plain = host[0].isalpha() and yamlfile.parse(host, host) == host
    return host if plain else json.dumps(host)
