"""Reader and writer of gpuprov.lock.yml, the exact package set of a good fleet.

One group for each OS release, architecture and set of SKUs with the same packages. `plan`, `up` and `drift`
find the file next to the inventory; its content reaches the role package_lock as a variable of every node,
one text shared by all, and so becomes expectations like everything else.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from provision import yamlfile
from provision.errors import CompatibilityError, StackError
from provision.fleet import Fleet, sources
from provision.node_names import fold
from provision.text import many

if TYPE_CHECKING:
    from provision.desired.compatibility import Refusal
    from provision.desired.expectations import Expectation

NAME = "gpuprov.lock.yml"
FORMAT = 1
ROLE = "package_lock"
VARIABLE = "package_lock_groups"
ANY_SKU = "unknown"  # stands for an unknown SKU

# Values from nodes end up in files of package managers, so only these characters are allowed.
_FORMS = {
    "os": re.compile(r"[a-z0-9._-]+ [0-9A-Za-z.]+"),
    "arch": re.compile(r"[a-z0-9_]+"),
    "sku": re.compile(r"[a-z0-9._-]+"),
    "package": re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*"),
    "version": re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~:^_-]*"),
}
_AGAIN = "create it again with gpuprov lock"


@dataclass(frozen=True)
class Group:
    """The packages of one kind of machine.
    `os`: `debian 13` (RHEL family: the major release); `nodes`: the nodes they were read from."""

    os: str
    arch: str
    skus: tuple[str, ...]
    nodes: str
    packages: Mapping[str, str]

    @property
    def places(self) -> tuple[str, ...]:
        """The role's names for the machines of this group."""
        return tuple(f"{self.os} {self.arch} {sku}" for sku in self.skus)


@dataclass(frozen=True)
class Lock:
    """A lock file. `origin`: inventory, nodes and gpuprov version it was made with, as text."""

    written: str
    origin: Mapping[str, str]
    groups: tuple[Group, ...]
    source: Path | None = None

    @functools.cached_property
    def variable(self) -> str:
        """The value of VARIABLE, as `{"places": {"debian 13 x86_64 h100-sxm": 0}, "sets": [{…}]}`.
        It is text, because equal nodes are then compared in no time."""
        places = {place: number for number, group in enumerate(self.groups) for place in group.places}
        return json.dumps({"places": places, "sets": [dict(group.packages) for group in self.groups]})


def is_a(form: str, text: Any) -> bool:
    """Return whether `text` is valid in a lock file as an os, arch, sku, package or version."""
    return isinstance(text, str) and len(text) <= 200 and _FORMS[form].fullmatch(text) is not None


def beside(inventory: Path) -> Path:
    """Return the path of an inventory's lock file, which is next to the inventory's file or folder.

    Inside that folder, Ansible would read it as an inventory. Of several inventories, the first with a lock
    file counts."""
    places = [each.absolute().parent / NAME for each in sources(inventory)]
    return next((path for path in places if path.exists()), places[0])


def held(fleet: Fleet, named: str | None, ignored: bool = False) -> Fleet:
    """Return the fleet with the named lock file, or the one next to the inventory, among its variables.
    Raises StackError if the file cannot be read or used."""
    path = Path(named).expanduser() if named else beside(fleet.source)
    if ignored or not (named or path.is_file()):
        return fleet
    text = read(path).variable
    nodes = {
        name: replace(node, variables={**node.variables, VARIABLE: text})
        for name, node in fleet.nodes.items()
    }
    return replace(fleet, nodes=nodes)


# --- reading


def read(path: Path) -> Lock:
    """Read a lock file. Raises StackError with file, line and key."""
    text = yamlfile.read_text(path, StackError)
    lines = yamlfile.lines_of(text, str(path), StackError)
    return _Reader(path, lines).lock(yamlfile.parse(text, str(path), StackError))


class _Reader:
    """Validator of a document; `way` is the path to a part of it, from which errors get their line."""

    def __init__(self, path: Path, lines: Mapping[tuple[str, ...], int]) -> None:
        self._path = path
        self._lines = lines

    def lock(self, document: Any) -> Lock:
        top = self._mapping(document, (), {"format", "written", "source", "groups"})
        if top["format"] != FORMAT or isinstance(top["format"], bool):
            newer = isinstance(top["format"], int) and top["format"] > FORMAT
            fix = "upgrade gpuprov: pip install --upgrade gpuprov" if newer else _AGAIN
            self._refuse(("format",), f"must be {FORMAT}, not {top['format']!r}", fix)
        if not isinstance(top["groups"], list) or not top["groups"]:
            self._refuse(("groups",), "must be a list of at least one group")
        groups = [self._group(each, ("groups", str(number))) for number, each in enumerate(top["groups"])]
        self._once(groups)
        source = top["source"] if isinstance(top["source"], dict) else {}
        return Lock(
            str(top["written"]),
            {str(key): str(value) for key, value in source.items()},
            tuple(groups),
            self._path,
        )

    def _group(self, value: Any, way: tuple[str, ...]) -> Group:
        group = self._mapping(value, way, {"os", "arch", "skus", "from", "packages"})
        for key in ("os", "arch"):
            if not is_a(key, group[key]):
                self._refuse((*way, key), f"{group[key]!r} is no {key}; for example {_EXAMPLES[key]}")
        skus, packages = group["skus"], group["packages"]
        if not isinstance(skus, list) or not skus or not all(is_a("sku", sku) for sku in skus):
            self._refuse((*way, "skus"), "must be a list of SKUs, such as [h100-sxm]")
        if not isinstance(packages, dict) or not packages:
            self._refuse((*way, "packages"), "must map package names to exact versions")
        for name, version in packages.items():
            where = (*way, "packages", str(name))
            if not is_a("package", name):
                self._refuse(where, f"{name!r} is not a package name")
            if not is_a("version", version):
                hint = "; quote it" if isinstance(version, int | float) else ""
                self._refuse(where, f"{version!r} is not an exact version{hint}")
        return Group(group["os"], group["arch"], tuple(skus), str(group["from"]), packages)

    def _mapping(self, value: Any, way: tuple[str, ...], keys: set[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._refuse(way, f"must be a mapping with {', '.join(sorted(keys))}")
        unknown = sorted(str(key) for key in value.keys() - keys)
        missing = sorted(keys - value.keys())
        if unknown:
            self._refuse(
                (*way, unknown[0]), "is not a key of a lock file", "is it of a newer gpuprov, or mistyped?"
            )
        if missing:
            self._refuse(way, f"{missing[0]} is missing")
        return value

    def _once(self, groups: Sequence[Group]) -> None:
        seen: dict[str, int] = {}
        for number, group in enumerate(groups):
            for place in group.places:
                if place in seen:
                    text = f"{place} is in two groups (the other one is number {seen[place] + 1})"
                    self._refuse(("groups", str(number)), text)
                seen[place] = number

    def _refuse(self, way: tuple[str, ...], what: str, fix: str = _AGAIN) -> NoReturn:
        line = next((self._lines[way[:end]] for end in range(len(way), 0, -1) if way[:end] in self._lines), 1)
        key = ".".join(way)
        raise StackError(f"{self._path}:{line}: {key + ': ' if key else ''}{what}", fix)


_EXAMPLES = {"os": "debian 13", "arch": "x86_64"}


# --- writing


def render(lock: Lock) -> str:
    """Return the text of a lock file, sorted, with one package per line so that diffs read well."""
    lines = [
        "# The exact packages of a good fleet, written by gpuprov lock; plan, up and drift hold to it.",
        "# Do not edit it: change good nodes first (gpuprov up --no-lock), then run gpuprov lock again.",
        "---",
        f"format: {FORMAT}",
        f"written: {_quoted(lock.written)}",
        "source:",
        *(f"  {key}: {_quoted(value)}" for key, value in lock.origin.items()),
        "groups:",
    ]
    for group in lock.groups:
        lines += [
            f"  - os: {_quoted(group.os)}",
            f"    arch: {_quoted(group.arch)}",
            f"    skus: [{', '.join(map(_quoted, group.skus))}]",
            f"    from: {_quoted(group.nodes)}",
            "    packages:",
            *(f"      {_quoted(name)}: {_quoted(group.packages[name])}" for name in sorted(group.packages)),
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- comparison with declared variables and with nodes


def place_of(described: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return (os, arch, SKU) of a machine as in lock files, from its `gpuprov_node`."""
    system = described["os"]
    version = str(system["version_id"])
    release = version if system["family"] == "debian" else version.partition(".")[0]
    return f"{system['id']} {release}", str(system["arch"]), described["gpu"]["sku"] or ANY_SKU


@functools.lru_cache(maxsize=64)
def _places(text: str) -> frozenset[str]:
    return frozenset(json.loads(text)["places"])


def uncovered(declared: Mapping[str, Any], described: Mapping[str, Any], node: str) -> list[Refusal]:
    """Return why a node with a lock file must not be changed: the file has no group for its kind."""
    text, roles = declared.get(VARIABLE), declared.get("gpuprov_roles")
    if not text or declared.get("package_lock_enabled") is False or (roles is not None and ROLE not in roles):
        return []
    place = " ".join(place_of(described))
    if place in _places(text):
        return []
    from provision.desired.compatibility import Refusal

    return [
        Refusal(
            "lock-file-covers-node",
            f"{node}: the lock file has no packages for {place}",
            "gpuprov up --no-lock on one of this kind, then gpuprov lock with it among the nodes",
            "the lock file's groups",
        )
    ]


def refuse_contradictions(expected: Mapping[str, Sequence[Expectation]]) -> None:
    """Raise CompatibilityError if the lock file contradicts a promise of another role.

    `expected`: the expectations of each node; the error has one line per kind of node."""
    judged: dict[int, tuple[str, ...]] = {}  # equal nodes share one list
    nodes: dict[tuple[str, ...], list[str]] = {}
    for node, expectations in expected.items():
        if id(expectations) not in judged:
            judged[id(expectations)] = tuple(_contradictions(expectations))
        if judged[id(expectations)]:
            nodes.setdefault(judged[id(expectations)], []).append(node)
    if nodes:
        raise CompatibilityError(
            "\n  ".join(f"{fold(names)}: {_summary(lines)}" for lines, names in nodes.items()),
            "declare the versions of the lock file, or run gpuprov up --no-lock on a few nodes "
            "and gpuprov lock again",
        )


def _contradictions(expectations: Sequence[Expectation]) -> Iterable[str]:
    locked = {
        each.fact: each.value
        for each in expectations
        if each.role == ROLE and each.fact.startswith("package.")
    }
    for each in expectations:
        if each.role != ROLE and each.fact in locked and not each.holds(locked[each.fact]):
            name, _, attribute = each.fact[len("package.") :].rpartition(".")
            promise = "its absence" if each.value is None else f"{attribute} {each.value}"
            yield f"the lock file has {name} {locked[each.fact]}, {each.role} declares {promise}"


def _summary(found: Sequence[str]) -> str:
    more = len(found) - 1
    return found[0] + (f" (and {many(more, 'more package')})" if more else "")
