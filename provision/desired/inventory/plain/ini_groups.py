"""An inventory written in Ansible's INI: `[group]`, `[group:vars]`, `[group:children]`, `host key=value`."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from typing import Any

from provision.desired.inventory.plain import hosts
from provision.desired.inventory.plain.groups import UNGROUPED, Groups
from provision.desired.inventory.plain.not_plain import NotPlainError

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(hosts|vars|children))?\]\s*(?:#.*)?")
_CHILD = re.compile(r"([^:\]\s]+)\s*(?:#.*)?")
_SHELL = re.compile(r"['\"\\#]")  # what makes a line more than words between blanks
_BLANKS = re.compile(r"[ \t\r\n]+")
# No literal of Python: words other than True, False and None; IPv4 addresses.
_WORD = re.compile(r"(?!(?:True|False|None)\Z)[A-Za-z_][A-Za-z0-9_./:@-]*|[0-9]+(?:\.[0-9]+){3}", re.ASCII)


def add(text: str, groups: Groups, known: dict[str, Any]) -> None:
    """Add what a file says. `known` keeps the values of spellings seen before. Raises NotPlainError."""
    if text.startswith("\ufeff"):
        raise NotPlainError("it begins with a byte order mark")
    _Reader(groups, known).read(text)


class _Reader:
    """A file read line by line. Groups may be named as children before they are declared."""

    def __init__(self, groups: Groups, known: dict[str, Any]) -> None:
        self._groups = groups
        self._known = known
        self._awaited: dict[str, list[str]] = {}  # a child that is not declared yet: its parents
        self._only_vars: set[str] = set()  # groups of which there are only variables so far

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
        names, port = hosts.expand(words[0])
        for host in names:
            self._groups.add_host(host, group, port, variables)

    def _value(self, spelled: str) -> Any:
        try:
            return self._known[spelled]
        except KeyError:
            value = self._known[spelled] = spelled if _WORD.fullmatch(spelled) else _literal(spelled)
            return value


def _literal(spelled: str) -> Any:
    """The Python literal a value is, or the text itself."""
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
    """`value` with tuples as lists, as Ansible has it; sets, bytes and others are left to it."""
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
