"""Groups and hosts of an inventory, and their memberships, while its files are read (YAML, JSON, INI)."""

from __future__ import annotations

import ast
import re
import shlex
import string
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.desired.inventory.plain.documents import NotPlainError

ALL, UNGROUPED = "all", "ungrouped"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_TAKEN = frozenset({"true", "false", "none", "True", "False", "None", "not"})  # no variables in Jinja


class Groups:
    """Groups, hosts and variables in the order of the files, by Ansible's rules on names and priorities."""

    def __init__(self) -> None:
        self.children: dict[str, dict[str, None]] = {ALL: {UNGROUPED: None}, UNGROUPED: {}}
        self.hosts: dict[str, dict[str, None]] = {ALL: {}, UNGROUPED: {}}
        self.variables: dict[str, dict[str, Any]] = {ALL: {}, UNGROUPED: {}}
        self.priorities: dict[str, int] = {}
        self.of_host: dict[str, dict[str, None]] = {}  # the groups that name the host directly
        self.host_variables: dict[str, dict[str, Any]] = {}
        self._good_names: set[str] = set()

    def add(self, name: str) -> None:
        if not name:
            raise NotPlainError("a group without a name")
        if name not in self.children:
            self.children[name], self.hosts[name], self.variables[name] = {}, {}, {}

    def add_child(self, group: str, child: str) -> None:
        if child == ALL or group == UNGROUPED or (child == UNGROUPED and group != ALL):
            raise NotPlainError(f"{child} below {group}")
        self.children[group][child] = None

    def add_hosts(self, pattern: str, group: str, variables: Mapping[str, Any]) -> None:
        names, port = expand(pattern)
        for name in names:
            self._add_host(name, group, port, variables)

    def _add_host(self, name: str, group: str, port: int | None, variables: Mapping[str, Any]) -> None:
        if name not in self.of_host:
            self.of_host[name] = {}
            self.host_variables[name] = {"ansible_port": port} if port else {}
        self.of_host[name][group] = None
        self.hosts[group][name] = None
        if variables:
            self._check_names(variables)
            self.host_variables[name].update(variables)

    def set(self, group: str, variables: Mapping[str, Any]) -> None:
        self._check_names(variables)
        for name, value in variables.items():
            if name == "ansible_group_priority":
                if type(value) is not int and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
                    raise NotPlainError(f"{value!r} as a group's priority")
                self.priorities[group] = int(value)
            else:
                self.variables[group][name] = value

    def _check_names(self, names: Iterable[str]) -> None:
        if not self._good_names.issuperset(names):
            for name in names:
                if not _NAME.fullmatch(name) or name in _TAKEN:
                    raise NotPlainError(f"{name!r} as the name of a variable")
                self._good_names.add(name)

    def complete(self) -> None:
        """Finish after the last file: put every group below `all`, hosts in no group into `ungrouped`."""
        both = self.of_host.keys() & self.children.keys()
        if both:
            raise NotPlainError(f"{min(both)} is a host and a group")
        below = {child for children in self.children.values() for child in children}
        self.children[ALL].update(dict.fromkeys(name for name in self.children if name not in below | {ALL}))
        for host, groups in self.of_host.items():
            if not groups.keys() - {ALL, UNGROUPED}:
                groups[UNGROUPED] = self.hosts[UNGROUPED][host] = None
            elif UNGROUPED in groups:
                del groups[UNGROUPED], self.hosts[UNGROUPED][host]

    def precedence(self) -> dict[str, tuple[int, int, str]]:
        """Return each group's sort key, the last one winning: longest path from `all`, priority, name."""
        depths = {ALL: 0}
        waiting = dict.fromkeys(self.children, 0)
        for children in self.children.values():
            for child in children:
                waiting[child] += 1
        ready = [ALL]
        while ready:
            name = ready.pop()
            for child in self.children[name]:
                depths[child] = max(depths.get(child, 0), depths[name] + 1)
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        if any(waiting.values()):
            raise NotPlainError("a group is below itself")
        return {name: (depths[name], self.priorities.get(name, 1), name) for name in self.children}

    def ancestors(self) -> dict[str, frozenset[str]]:
        """Return each group with all groups above it and itself; `precedence` has ruled out circles."""
        parents: dict[str, list[str]] = {name: [] for name in self.children}
        for name, children in self.children.items():
            for child in children:
                parents[child].append(name)
        found: dict[str, frozenset[str]] = {}
        order = sorted(self.precedence().items(), key=lambda entry: entry[1])
        for name, _rank in order:  # groups above come first, since they are less deep
            found[name] = frozenset({name}).union(*(found[parent] for parent in parents[name]))
        return found


_RANGE = r"\[(?:[0-9]{1,9}:[0-9]{1,9}|[A-Za-z]:[A-Za-z])(?::[0-9]{1,9})?\]"
_PART = rf"(?:[0-9A-Za-z]|{_RANGE})(?:(?:[0-9A-Za-z_-]|{_RANGE})*(?:[0-9A-Za-z]|{_RANGE}))?"
_PATTERN = re.compile(rf"({_PART}(?:\.{_PART})*)(?::([0-9]{{1,9}}))?", re.ASCII)
_FIRST_RANGE = re.compile(r"([^\[]*)\[([^\]]*)\](.*)", re.DOTALL)


def expand(pattern: str) -> tuple[Sequence[str], int | None]:
    """Expand a pattern into its names and the port at its end. Raises NotPlainError."""
    if ":" not in pattern and "[" not in pattern and "]" not in pattern:
        if not pattern or pattern == "---":
            raise NotPlainError(f"{pattern!r} as a host")
        return (pattern,), None
    match = _PATTERN.fullmatch(pattern)
    if match is None:
        raise NotPlainError(f"{pattern!r} as a host")
    return _names(match[1]), int(match[2]) if match[2] else None


def _names(pattern: str) -> list[str]:
    match = _FIRST_RANGE.match(pattern)
    if match is None:
        return [pattern]
    head, bounds, tail = match.groups()
    tails = _names(tail)
    return [head + each + rest for each in _members(bounds) for rest in tails]


def _members(bounds: str) -> Sequence[str]:
    first, last, *rest = bounds.split(":")
    step = int(rest[0]) if rest else 1
    if step < 1:
        raise NotPlainError(f"a step of {step} in [{bounds}]")
    if first in string.ascii_letters:
        begin, end = string.ascii_letters.index(first), string.ascii_letters.index(last)
        if begin > end:
            raise NotPlainError(f"[{bounds}] runs backwards")
        return string.ascii_letters[begin : end + 1 : step]
    width = len(first) if first[0] == "0" and len(first) > 1 else 0
    if width and width != len(last):
        raise NotPlainError(f"[{bounds}] has ends of different lengths")
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1, step)]


def add_yaml(document: Mapping[str, Any], groups: Groups) -> None:
    """Add the contents of a YAML or JSON file. Raises NotPlainError."""
    if "plugin" in document:
        raise NotPlainError("it configures an inventory plugin")
    for name, described in document.items():
        _add_group(name, described, groups)


def _add_group(name: str, described: Any, groups: Groups) -> None:
    groups.add(name)
    if described is None:
        return
    if not isinstance(described, dict):
        raise NotPlainError(f"the group {name} is not a mapping")
    for section, content in described.items():
        entries = {content: None} if isinstance(content, str) else content
        if section not in ("vars", "children", "hosts") or not isinstance(entries, dict | None):
            raise NotPlainError(f"{section} in the group {name}")
        if not entries:
            continue
        if section == "vars":
            groups.set(name, entries)
        elif section == "children":
            for child, inner in entries.items():
                _add_group(child, inner, groups)
                groups.add_child(name, child)
        else:
            for pattern, variables in entries.items():
                if variables is not None and not isinstance(variables, dict):
                    raise NotPlainError(f"the variables of {pattern} are no mapping")
                groups.add_hosts(pattern, name, variables or {})


_SECTION = re.compile(r"\[([^:\]\s]+)(?::(hosts|vars|children))?\]\s*(?:#.*)?")
_CHILD = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_SHELL = re.compile(r"['\"\\#]")  # makes a line more than words between blanks
_BLANKS = re.compile(r"[ \t\r\n]+")
# Not a Python literal: words other than True, False and None; IPv4 addresses.
_WORD = re.compile(r"(?!(?:True|False|None)\Z)[A-Za-z_][A-Za-z0-9_./:@-]*|[0-9]+(?:\.[0-9]+){3}", re.ASCII)


def add_ini(text: str, groups: Groups, known: dict[str, Any]) -> None:
    """Add the contents of an INI file. `known` caches values by their spelling. Raises NotPlainError."""
    if text.startswith("\ufeff"):
        raise NotPlainError("it begins with a byte order mark")
    _Reader(groups, known).read(text)


class _Reader:
    """Line-by-line reader of an INI file. Groups may be named as children before they are declared."""

    def __init__(self, groups: Groups, known: dict[str, Any]) -> None:
        self._groups = groups
        self._known = known
        self._awaited: dict[str, list[str]] = {}  # undeclared child -> its parents
        self._only_vars: set[str] = set()  # groups with only variables so far

    def read(self, text: str) -> None:
        group, kind = UNGROUPED, "hosts"
        for line in map(str.strip, text.splitlines()):
            if not line or line[0] in ";#":
                continue
            if line[0] == "[":
                section = _SECTION.fullmatch(line)
                if section is None:
                    raise NotPlainError(f"the section {line}")
                group, kind = section[1], section[2] or "hosts"
                self._declare(group, kind)
            elif kind == "hosts":
                self._add_host(line, group)
            elif kind == "vars":
                name, equals, value = line.partition("=")
                if not equals:
                    raise NotPlainError(f"the variable {line}")
                self._groups.set(group, {name.strip(): self._value(value.strip())})
            else:
                self._add_child(line, group)
        if self._awaited or self._only_vars:
            raise NotPlainError(f"undeclared groups: {', '.join([*self._awaited, *self._only_vars])}")

    def _declare(self, group: str, kind: str) -> None:
        if group not in self._groups.children:
            if kind == "vars" and group not in self._awaited:
                self._only_vars.add(group)
            self._groups.add(group)
        if kind != "vars":
            self._only_vars.discard(group)
            if group in self._awaited:
                for parent in self._awaited.pop(group):
                    self._groups.add_child(parent, group)

    def _add_child(self, line: str, group: str) -> None:
        child = _CHILD.fullmatch(line)
        if child is None:
            raise NotPlainError(f"the child {line}")
        if child[1] in self._groups.children:
            self._groups.add_child(group, child[1])
        else:
            self._awaited.setdefault(child[1], []).append(group)

    def _add_host(self, line: str, group: str) -> None:
        try:
            words = shlex.split(line, comments=True) if _SHELL.search(line) else _BLANKS.split(line)
        except ValueError as trouble:
            raise NotPlainError(f"{line}: {trouble}") from None
        if not words:
            raise NotPlainError(f"the host {line}")
        variables = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals:
                raise NotPlainError(f"{word} behind a host")
            variables[name] = self._value(value)
        self._groups.add_hosts(words[0], group, variables)

    def _value(self, spelled: str) -> Any:
        try:
            return self._known[spelled]
        except KeyError:
            value = self._known[spelled] = spelled if _WORD.fullmatch(spelled) else _literal(spelled)
            return value


def _literal(spelled: str) -> Any:
    """Return a value as the Python literal that it is, or as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            value = ast.literal_eval(spelled)
    except (ValueError, SyntaxError):
        return spelled
    except (TypeError, MemoryError, RecursionError):
        raise NotPlainError(f"the value {spelled}") from None
    return _checked(value)


def _checked(value: Any) -> Any:
    """Return `value` with tuples as lists, as in Ansible; raise NotPlainError for sets, bytes and others."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotPlainError("half a character") from None
        return value
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_checked(inner) for inner in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {_checked(key): _checked(inner) for key, inner in value.items()}
    raise NotPlainError(f"a value of the type {type(value).__name__}")
