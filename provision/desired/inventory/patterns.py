"""Ansible host patterns: `all`, names, globs, `~regex`, `a:b`, `a,b`, `:&`, `:!`, `group[0:2]`, `@FILE`.

Documented at docs.ansible.com ("Patterns: targeting hosts and groups"); a test compares with
`ansible --list-hosts`. `@FILE` has a name or pattern on each line, as the files Ansible's `--limit` takes.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from provision.errors import InventoryError
from provision.nearest import did_you_mean

# A term of a `:`-separated pattern: anything but a separator, or one whole [bracketed] expression.
_TERM = re.compile(r"(?:[^\s:\[\]]|\[[^\]]*\])+")
_SUBSCRIPT = re.compile(r"^(.+)\[(?:(-?[0-9]+)|([0-9]+)[:-]([0-9]*))\]$")


def matching(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts `pattern` names, in Ansible's order. Raises InventoryError when a term names nothing."""
    found: list[str] = []
    for term in _in_order(_split(pattern)):
        sign = term[0] if term[0] in "&!" else ""
        named = _one(term[len(sign) :], hosts, groups, pattern)
        if sign == "!":
            found = [host for host in found if host not in named]
        elif sign == "&":
            found = [host for host in found if host in named]
        else:
            found = list(dict.fromkeys([*found, *named]))
    return found


def _split(pattern: str) -> list[str]:
    terms: Iterable[str]
    if _is_address(pattern) or _is_file(pattern):
        terms = [pattern]
    elif "," in pattern:
        terms = pattern.split(",")
    else:
        terms = _TERM.findall(pattern)
    return [term.strip() for term in terms if term.strip()]


def _is_address(pattern: str) -> bool:
    """An IPv6 address holds colons which separate nothing."""
    try:
        ipaddress.ip_address(pattern)
    except ValueError:
        return False
    return True


def _is_file(pattern: str) -> bool:
    """`@FILE` alone: its path may hold what separates terms."""
    return pattern.startswith("@") and Path(pattern[1:]).expanduser().is_file()


def _in_order(terms: Sequence[str]) -> list[str]:
    """Additions first, then intersections, then exclusions; without an addition, all."""
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
    expression, subscript = _subscript(term)
    matches = _expression(expression, whole)
    named = [group for group in groups if matches(group)]
    found = [host for group in named for host in groups[group]]
    if not named or expression[0] == "~" or any(special in expression for special in ".?*["):
        found += [host for host in hosts if matches(host)]
    if not named and not found:
        raise InventoryError(
            f"--nodes {whole}: nothing in the inventory is called {term!r}",
            f"[…] at the end picks by position; for names, write {term}*"
            if subscript
            else did_you_mean(term, [*groups, *hosts], _what_there_is(hosts, groups)),
        )
    return dict.fromkeys(_picked(list(dict.fromkeys(found)), subscript, term))


def _lines(file: Path, whole: str) -> list[str]:
    """The names in a file, one per line; a line with nothing but a # comment is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as trouble:
        reason = trouble.strerror if isinstance(trouble, OSError) else "it is not text"
        raise InventoryError(
            f"--nodes {whole}: {file} cannot be read: {reason}", "@FILE is a file of node names, one per line"
        ) from None
    return [name for line in text.splitlines() if (name := line.partition("#")[0].strip())]


def _subscript(term: str) -> tuple[str, tuple[int, int | None] | None]:
    """`gpus[0:2]` → (`gpus`, (0, 2)); the last index is included, None is the end; a single index repeats."""
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
