"""The plan of one node as changes of things: additions, changes and removals by each role (pure).

Several drifts are often about one thing: content, mode and owner of a file; whether a service runs, and
starts at boot. A declared thing that is absent is added; a present thing that must be absent is removed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from provision.desired.expectations import HARDWARE
from provision.drift.drifts import Drift
from provision.drift.sentences import of_service, sentence, subject, unread
from provision.remote.ansible import diffs
from provision.text import many, value_text
from provision.up.plan import Change, NodePlan, PackageChange, Plan, is_package

NAMES = 12  # packages and files listed on one line; the rest are counted


class Sign(enum.StrEnum):
    """Kind of change of a thing, by the sign printed in front of it."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"
    UNREAD = "?"  # its state could not be read; its role runs and determines it
    BEYOND = "!"  # no role can change it


@dataclass(frozen=True)
class Item:
    """One line of a plan. `count`: number of its things; `drifts`: the reasons; `diff`: unified diff.

    `diff` is without secrets; `text` may hold some and is masked when printed."""

    sign: Sign
    text: str
    drifts: tuple[Drift, ...] = ()
    count: int = 1
    diff: tuple[str, ...] = ()


def of_node(
    node: NodePlan, *, every: bool = False, diff: bool = False, secrets: Collection[str] = ()
) -> dict[str, list[Item]]:
    """Return each role that runs or has a reason to, with its changes: packages, files, then others.

    `every`: list all names. `diff`: list files one by one, with the difference in their content."""
    roles = dict.fromkeys([*node.roles, *(drift.expectation.role for drift in node.drifts)])
    return {role: [*_of_role(role, node, every, diff, secrets)] for role in roles}


def count(items: Mapping[str, Sequence[Item]]) -> dict[Sign, int]:
    """Count the things with each sign."""
    totals = dict.fromkeys(Sign, 0)
    for of_role in items.values():
        for item in of_role:
            totals[item.sign] += item.count
    return totals


def count_all(made: Plan) -> dict[Sign, int]:
    """Count the things of the whole fleet by sign; a package on two nodes counts twice."""
    totals = dict.fromkeys(Sign, 0)
    alike: dict[object, dict[Sign, int]] = {}  # nodes declared alike share their expectations
    for node in made.nodes.values():
        key = (node.packages, tuple((id(each.expectation), _sign_of(each)) for each in node.drifts))
        if key not in alike:
            alike[key] = count(of_node(node))
        for sign, number in alike[key].items():
            totals[sign] += number
    return totals


def _of_role(role: str, node: NodePlan, every: bool, diff: bool, secrets: Collection[str]) -> list[Item]:
    ours = [drift for drift in node.drifts if drift.expectation.role == role]
    if role == HARDWARE:
        return [
            Item(Sign.UNREAD if drift.unknown else Sign.BEYOND, sentence(drift), (drift,)) for drift in ours
        ]
    unread = [drift for drift in ours if drift.unknown]
    things: dict[str, list[Drift]] = {}
    packages: list[Drift] = []
    for drift in ours:
        if _of_package(drift):
            packages.append(drift)
        elif not drift.unknown:
            things.setdefault(_thing(drift.expectation.fact), []).append(drift)
    files = [_of_file(name, of, diff, secrets) for name, of in things.items() if name.startswith("file.")]
    others = [_of_other(of) for name, of in things.items() if not name.startswith("file.")]
    mine = [each for each in node.packages if each.roles[0] == role and each.change is not Change.UNKNOWN]
    return [
        *_of_packages(mine, packages, every),
        *(files if diff else _folded(files, every)),
        *others,
        *_of_unread(unread),
    ]


def _of_package(drift: Drift) -> bool:
    fact = drift.expectation.fact
    return not drift.unknown and (is_package(fact) or fact == "kernel.headers")


def _thing(fact: str) -> str:
    """Return the file or service that a fact is an attribute of; other facts are things by themselves."""
    return fact.rpartition(".")[0] if fact.startswith(("file.", "service.")) else fact


# --- packages


def _of_packages(packages: Sequence[PackageChange], drifts: Sequence[Drift], every: bool) -> list[Item]:
    """Return one line for each transition: `2 packages 570.124.06-1 → 580.126.09, held: a, b`."""
    alike: dict[object, list[PackageChange]] = {}
    for each in packages:
        alike.setdefault((each.change, each.before, each.after, each.held), []).append(each)
    items = []
    for same in alike.values():
        names = [package.name for package in same]
        moves = transition(same[0])
        text = f"package {names[0]} {moves}"
        if len(names) > 1:
            text = f"{len(names)} packages {moves}: {listed(names, every)}"
        items.append(Item(_SIGNS.get(same[0].change, Sign.CHANGE), text, _about(names, drifts), len(names)))
    return items


_SIGNS = {Change.INSTALL: Sign.ADD, Change.REMOVE: Sign.REMOVE}


def _about(names: Collection[str], drifts: Sequence[Drift]) -> tuple[Drift, ...]:
    """Return the drifts of these packages, by their names or else by kind (fabric manager, headers)."""

    def name(drift: Drift) -> str:
        return drift.expectation.fact.removeprefix("package.").rpartition(".")[0]

    named = tuple(drift for drift in drifts if name(drift) in names)
    return named or tuple(each for each in drifts if not each.expectation.fact.startswith("package."))


def listed(names: Sequence[str], every: bool = False) -> str:
    """Join names with commas; a long list ends with the number of omitted ones."""
    if every or len(names) <= NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:NAMES])} and {len(names) - NAMES} more"


def transition(package: PackageChange) -> str:
    """Describe a package change: `570.124.06-1 → 580.126.09, held`."""
    before, after = value_text(package.before), value_text(package.after)
    words: Mapping[Change, str] = {
        Change.UNKNOWN: "could not be read",
        Change.REMOVE: before,
        Change.INSTALL: after if package.after else "in the offered version",
        Change.REPLACE: f"{before} → {after if package.after else 'the offered version'}",
        Change.REPAIR: f"{before} installed again" if package.before else "installed again",
        Change.HOLD: f"{before} stays, held from now on" if package.before else "held",
        Change.RELEASE: f"{before} stays, no longer held",
    }
    moves = package.change in (Change.INSTALL, Change.REPLACE, Change.REPAIR)
    return words[package.change] + (", held" if package.held and moves else "")


# --- files


def _of_file(name: str, drifts: Sequence[Drift], diff: bool, secrets: Collection[str]) -> Item:
    path = name.removeprefix("file.")
    by_attribute = {drift.expectation.fact.removeprefix(f"{name}."): drift for drift in drifts}
    sign = _sign(drifts)
    if sign is not Sign.CHANGE:
        link = by_attribute.get("target")
        leads = f" → {value_text(link.expectation.value)}" if link and sign is Sign.ADD else ""
        text = f"file {path}{leads}"
    else:
        text = f"file {path}: " + "; ".join(
            _of_attribute(attribute, drift, path) for attribute, drift in by_attribute.items()
        )
    content = by_attribute.get("content")
    drifts = sorted(drifts, key=lambda drift: drift is not content)  # its reason stands for the file
    return Item(sign, text, tuple(drifts), diff=_diff(path, content, secrets) if diff and content else ())


def _of_attribute(attribute: str, drift: Drift, path: str) -> str:
    if attribute == "content":
        return sentence(drift).removeprefix(f"file {path}").removeprefix(":").strip()
    return f"{attribute} {value_text(drift.found)} → {value_text(drift.expectation.value)}"


def _diff(path: str, drift: Drift, secrets: Collection[str]) -> tuple[str, ...]:
    """Return the diff of the content as in `up --check --diff`, or a note if only a part is declared."""
    expected = drift.expectation.value
    if drift.expectation.operator not in ("template", "equals"):
        return ("only a part of it is declared: gpuprov up --check --diff shows what its role would do",)
    difference = {"before": drift.found, "after": expected, "before_header": path}
    return tuple(diffs.text({"diff": difference}, secrets).splitlines())


def _folded(files: Sequence[Item], every: bool) -> list[Item]:
    """Merge added files into one line, and removed files into another."""
    items: list[Item] = []
    for sign in (Sign.ADD, Sign.REMOVE):
        same = [file for file in files if file.sign is sign]
        if len(same) > 1 and not every:
            paths = listed([file.text.removeprefix("file ") for file in same])
            about = tuple(drift for file in same for drift in file.drifts)
            items.append(Item(sign, f"{len(same)} files: {paths}", about, len(same)))
        else:
            items += same
    return [*items, *(file for file in files if file.sign is Sign.CHANGE)]


# --- the others


def _of_other(drifts: Sequence[Drift]) -> Item:
    """Describe a service or a setting, with both attributes of a service in one line."""
    text = of_service(drifts) if len(drifts) > 1 else sentence(drifts[0])
    return Item(_sign(drifts), text, tuple(drifts))


def _sign(drifts: Iterable[Drift]) -> Sign:
    signs = {_sign_of(drift) for drift in drifts}
    return signs.pop() if len(signs) == 1 else Sign.CHANGE


def _sign_of(drift: Drift) -> Sign:
    if drift.unknown:
        return Sign.UNREAD
    observed, expected = drift.found, drift.expectation.value
    if drift.expectation.fact.endswith(".exists"):
        return Sign.ADD if expected else Sign.REMOVE
    if expected is None:
        return Sign.REMOVE
    return Sign.ADD if observed is None else Sign.CHANGE


def _of_unread(drifts: Sequence[Drift]) -> list[Item]:
    """Return the unreadable facts, those with the same reason merged."""
    alike: dict[str, list[Drift]] = {}
    for drift in drifts:
        alike.setdefault(drift.problem, []).append(drift)
    items = []
    for problem, same in alike.items():
        what = subject(same[0].expectation.fact) if len(same) == 1 else many(len(same), "fact")
        items.append(Item(Sign.UNREAD, unread(what, problem), tuple(same), len(same)))
    return items
