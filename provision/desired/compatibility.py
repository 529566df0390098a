"""Compatibility rules for the versions on one node (data/compatibility.yml).
Their kinds are defined in compatibility_kinds.py."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provision import paths, yamlfile
from provision.desired.compatibility_kinds import KINDS, NEED_NODE, Subject
from provision.desired.templating.render_cache import RenderCache, frozen
from provision.errors import CompatibilityError, StackError
from provision.node_names import fold

RULES = paths.DATA / "compatibility.yml"


@dataclass(frozen=True)
class Refusal:
    """One rule that forbids something: `what` and where, `fix` as the remedy, `source` as the authority."""

    rule: str
    what: str
    fix: str
    source: str


@dataclass(frozen=True)
class _Rule:
    id: str
    judge: Callable[[Mapping[str, Any], Subject], tuple[str, str] | None]
    data: Mapping[str, Any]
    needs_node: bool


@functools.cache
def _rules() -> tuple[_Rule, ...]:
    rules = []
    for number, data in enumerate(yamlfile.load(RULES, StackError), start=1):
        kind = data.get("kind")
        if kind not in KINDS or not data.get("id") or not data.get("source"):
            raise StackError(
                f"{RULES}: rule {number} needs `id`, `source` and a known `kind`, has {kind!r}", ""
            )
        rules.append(_Rule(data["id"], KINDS[kind], data, kind in NEED_NODE))
    return tuple(rules)


_static: RenderCache[tuple[tuple[_Rule, tuple[str, str]], ...]] = RenderCache()
_on_node: RenderCache[tuple[tuple[_Rule, tuple[str, str]], ...]] = RenderCache()


def check_declared(declared: Mapping[str, Any], where: str) -> list[Refusal]:
    """Return the refusals that hold on any machine, before one is contacted. `where` names the nodes."""

    def compute(mentioned: set[str]) -> tuple[tuple[_Rule, tuple[str, str]], ...]:
        return _judged(Subject(declared, None, mentioned), needs_node=False)

    return _refusals(_static.get(declared, 0, compute), where)


def check_node(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any], where: str) -> list[Refusal]:
    """Return the refusals on this machine, given its OS, its GPUs, and versions that depend on them."""

    def compute(mentioned: set[str]) -> tuple[tuple[_Rule, tuple[str, str]], ...]:
        subject = Subject(declared, gpuprov_node, mentioned)
        return _judged(subject, needs_node=True) or _judged(subject, needs_node=False)

    return _refusals(_on_node.get(declared, frozen(gpuprov_node), compute), where)


def _judged(subject: Subject, *, needs_node: bool) -> tuple[tuple[_Rule, tuple[str, str]], ...]:
    refused: list[tuple[_Rule, tuple[str, str]]] = []
    for rule in _rules():
        if rule.needs_node is needs_node:
            verdicts = [rule.judge(rule.data, subject), *_of_each(rule, subject)]
            refused.extend((rule, each) for each in verdicts if each is not None)
    return tuple(refused)


class _OneValue(Subject):
    """A subject in which the list variable `name` shows only one of its values."""

    def __init__(self, subject: Subject, name: str, value: Any) -> None:
        self.__dict__.update(vars(subject))
        self._name, self._one = name, value

    def get(self, name: str) -> Any:
        return self._one if name == self._name else super().get(name)


def _of_each(rule: _Rule, subject: Subject) -> Iterator[tuple[str, str] | None]:
    """Judge each value of the list that `each` names, except that of `variable`, which is judged already."""
    name = str(rule.data.get("each", ""))
    values = subject.get(name) if name else None
    for value in values if isinstance(values, list) else []:
        if value != subject.get(rule.data["variable"]):
            yield rule.judge({**rule.data, "variable": name}, _OneValue(subject, name, value))


def _refusals(judged: tuple[tuple[_Rule, tuple[str, str]], ...], where: str) -> list[Refusal]:
    return [
        Refusal(rule.id, f"{where}: {what}", fix, str(rule.data["source"])) for rule, (what, fix) in judged
    ]


def refuse_impossible(views: Mapping[str, Mapping[str, Any]], place_of: Callable[[str, object], str]) -> None:
    """Raise CompatibilityError with everything that is impossible on any machine, each entry once.
    An entry names the place where the variable is set, if that can be found."""
    affected: dict[Refusal, list[str]] = {}
    for name, view in views.items():
        for refusal in check_declared(view, ""):
            affected.setdefault(refusal, []).append(name)
    whats = []
    for refusal, nodes in affected.items():
        what = refusal.what.removeprefix(": ")
        variable = what.partition(":")[0]
        place = place_of(variable, views[nodes[0]].get(variable))
        whats.append(f"{place and f'{place}: '}{fold(nodes)}: {what} [{refusal.source}]")
    if affected:
        fixes = dict.fromkeys(refusal.fix for refusal in affected)
        raise CompatibilityError("\n  ".join(whats), "; ".join(fixes))
