"""The groups and hosts of an inventory while its files are read, and their final membership."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from provision.desired.inventory.plain.not_plain import NotPlainError

ALL, UNGROUPED = "all", "ungrouped"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_TAKEN = frozenset({"true", "false", "none", "True", "False", "None", "not"})  # Jinja reads no variable there


class Groups:
    """What the files say, in the order they say it: Ansible's rules on names and priorities are applied."""

    def __init__(self) -> None:
        self.children: dict[str, dict[str, None]] = {ALL: {UNGROUPED: None}, UNGROUPED: {}}
        self.hosts: dict[str, dict[str, None]] = {ALL: {}, UNGROUPED: {}}
        self.variables: dict[str, dict[str, Any]] = {ALL: {}, UNGROUPED: {}}
        self.priorities: dict[str, int] = {}
        self.of_host: dict[str, dict[str, None]] = {}  # the groups that name it themselves
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

    def add_host(self, name: str, group: str, port: int | None, variables: Mapping[str, Any]) -> None:
        if not name:
            raise NotPlainError("a host without a name")
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
        """Once all files are read: every group is below `all`, hosts in no group are in `ungrouped`."""
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
        """What groups are sorted by, the last one winning: longest way down from `all`, priority, name."""
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
        """Each group with all groups above it and itself; `precedence` has seen that there is no circle."""
        parents: dict[str, list[str]] = {name: [] for name in self.children}
        for name, children in self.children.items():
            for child in children:
                parents[child].append(name)
        found: dict[str, frozenset[str]] = {}
        order = sorted(self.precedence().items(), key=lambda entry: entry[1])
        for name, _rank in order:  # those above come first: they are less deep
            found[name] = frozenset({name}).union(*(found[parent] for parent in parents[name]))
        return found
