"""A plan as text, Markdown and JSON; equal nodes are grouped, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from provision import __version__
from provision.drift import diagnosis, drift_text
from provision.drift.assess import Assessment
from provision.drift.drifts import Drift
from provision.node_names import fold
from provision.text import many, now, value_text
from provision.up.durations import Expected
from provision.up.plan import Change, NodePlan, PackageChange, Plan

FORMAT = 2  # of the JSON document; data/schemas/plan.schema.json describes it
REASONS = 6  # per role; the rest are counted
PACKAGES = 12  # names on one line; the rest are counted


def document(seen: Assessment, made: Plan) -> dict[str, Any]:
    """The plan for a program. Secrets are still to be masked."""
    whole = made.minutes()
    return {
        "format": FORMAT,
        "gpuprov": __version__,
        "written": now("seconds"),
        "inventory": str(seen.fleet.source),
        "remove": list(seen.remove),
        "minutes": round(whole.minutes, 1),
        "learnt_from_runs": whole.runs,
        "nodes": {name: _record(node) for name, node in made.nodes.items()},
        "waves": [wave.record() for wave in made.waves],
        "unreachable": dict(made.unreachable),
        "refused": {name: [asdict(each) for each in why] for name, why in seen.refused.items()},
    }


def _record(node: NodePlan) -> dict[str, Any]:
    return {
        "as_declared": node.as_declared,
        "roles": list(node.roles),
        "packages": [package.record() for package in node.packages],
        "restarts": list(node.restarts),
        "reboot": reboot_word(node),
        "reboot_because": list(node.reboot_because),
        "minutes": round(node.minutes, 1),
        "learnt_from_runs": node.learnt_from,
        "drifts": [drift.record() for drift in node.drifts],
    }


def reboot_word(node: NodePlan) -> str:
    """`yes`, `no`, or `may` where the role first tries without one."""
    return "yes" if node.reboot_sure else "may" if node.reboot else "no"


def lines(seen: Assessment, made: Plan, *, all_reasons: bool = False) -> list[str]:
    """The plan for a person."""
    said: list[str] = []
    for names in _groups(made):
        node = made.nodes[names[0]]
        said += [
            f"{fold(names)}  ({many(len(names), 'node')})  {_effort(node)}",
            *_of_node(node, all_reasons),
            "",
        ]
    said += diagnosis.section(seen.causes(), seen.arguments)
    said += drift_text.trouble(seen.refused, seen.troubles)
    idle = [name for name, node in made.nodes.items() if node.as_declared]
    if idle:
        what = f"without anything of {', '.join(seen.remove)}" if seen.remove else "as declared"
        said.append(f"{many(len(idle), 'node')} {what}: {fold(idle)}")
    return [*said, *_rollout(made, seen)]


def markdown(seen: Assessment, made: Plan) -> list[str]:
    """The plan as a comment on a pull request: a table, the details folded away."""
    busy = sum(len(wave) for wave in made.waves)
    said = [f"### gpuprov plan: {many(busy, 'node')} of {len(seen.fleet.nodes)} would change", ""]
    if busy:
        said += ["| nodes | roles | packages | restarts | reboot | time |", "|---|---|---|---|---|---|"]
    groups = _groups(made)
    for names in groups:
        node = made.nodes[names[0]]
        cells = [
            fold(names),
            ", ".join(node.roles) or "nothing a role could repair",
            "<br>".join(_packages(node.packages)) or "none",
            ", ".join(node.restarts) or "none",
            reboot_word(node),
            about(Expected(node.minutes, node.learnt_from)),
        ]
        said.append("| " + " | ".join(map(_cell, cells)) + " |")
    for names in groups:
        node = made.nodes[names[0]]
        said += ["", f"<details><summary>{_cell(fold(names))}: why</summary>", "", "```"]
        said += [line.replace("```", "'''") for line in _of_node(node, all_reasons=True)]
        said += ["```", "", "</details>"]
    return [
        *said,
        "",
        *_as_list(drift_text.trouble(seen.refused, seen.troubles)),
        *_as_list(_rollout(made, seen)),
    ]


def _cell(text: str) -> str:
    breaks = text.replace("<br>", "\0")
    escaped = breaks.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "'")
    return escaped.replace("\0", "<br>").replace("\n", " ")


def _as_list(texts: Iterable[str]) -> list[str]:
    return [f"- {_cell(text.strip())}" for text in texts if text.strip()]


def about(expected: Expected) -> str:
    """`about 6 min (learnt from 14 runs)`, `about 9 min (estimate)`."""
    basis = f"learnt from {many(expected.runs, 'run')}" if expected.runs else "estimate"
    minutes = f"{expected.minutes:.0f}" if expected.minutes >= 1 else "1"
    return f"{'less than' if expected.minutes < 1 else 'about'} {minutes} min ({basis})"


def _groups(made: Plan) -> list[list[str]]:
    """Nodes that differ in the same way; first what no role repairs, then by reboot and time."""
    others = {name: _likeness(node) for name, node in made.nodes.items() if not node.as_declared}
    groups = [names for _, names in drift_text.grouped(others)]

    def badness(names: Sequence[str]) -> tuple[Any, ...]:
        node = made.nodes[names[0]]
        return (not node.roles, node.reboot_sure, node.reboot, node.minutes)

    return sorted(groups, key=badness, reverse=True)


def _likeness(node: NodePlan) -> tuple[Any, ...]:
    drifts = ((d.expectation.role, d.expectation.fact, drift_text.difference(d)) for d in node.drifts)
    return (node.roles, reboot_word(node), node.reboot_because, *drifts)


def _effort(node: NodePlan) -> str:
    if not node.roles:
        return "nothing a role could repair"
    reboot = {"yes": ", reboot", "may": ", may reboot", "no": ""}[reboot_word(node)]
    return f"{many(len(node.roles), 'role')}{reboot}, {about(Expected(node.minutes, node.learnt_from))}"


def _of_node(node: NodePlan, all_reasons: bool) -> list[str]:
    said = []
    reasons = [drift.expectation.role for drift in node.drifts]
    for role in dict.fromkeys([*node.roles, *reasons]):
        said += _of_role(
            role, [drift for drift in node.drifts if drift.expectation.role == role], all_reasons
        )
    if node.packages:
        said += ["  packages", *(f"    {line}" for line in _packages(node.packages))]
    if node.restarts:
        said.append(f"  restarts {', '.join(node.restarts)}")
    if node.reboot:
        said += [f"  {'reboot' if node.reboot_sure else 'reboot, if it cannot be done without'}:"]
        said += [f"    {because}" for because in node.reboot_because]
    return said


def _of_role(role: str, drifts: Sequence[Drift], everything: bool) -> list[str]:
    if not drifts:
        return [f"  {role}: as declared; --full runs it all the same"]
    said = [f"  {role}"]
    # Of packages the plan has a list of its own, unless every reason is asked for.
    told = [d for d in drifts if everything or d.unknown or not d.expectation.fact.startswith("package.")]
    limit = len(told) if everything else REASONS
    said += [f"    {drift.expectation.fact} {drift_text.difference(drift)}" for drift in told[:limit]]
    if len(told) > limit:
        said.append(f"    and {len(told) - limit} more (--reasons shows all)")
    packages = {d.expectation.fact.rpartition(".")[0] for d in drifts if d not in told}
    if packages:
        said.append(f"    {many(len(packages), 'package')}, listed below")
    return said


def _packages(packages: Sequence[PackageChange]) -> list[str]:
    """One line for each transition: `a, b: 570.124.06-1 → 580.126.09, held`."""
    return [
        f"{_names([package.name for package in same])} {_transition(same[0])}" for same in _alike(packages)
    ]


def _alike(packages: Sequence[PackageChange]) -> list[list[PackageChange]]:
    found: dict[Any, list[PackageChange]] = {}
    for each in packages:
        found.setdefault((each.change, each.before, each.after, each.held), []).append(each)
    return list(found.values())


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - PACKAGES} more" if len(names) > PACKAGES else ""
    return ", ".join(names[:PACKAGES]) + more


def _transition(package: PackageChange) -> str:
    before, after = value_text(package.before), value_text(package.after)
    words: Mapping[Change, str] = {
        Change.UNKNOWN: "could not be read",
        Change.REMOVE: f"{before} removed",
        Change.INSTALL: f"new: {after}" if package.after else "new: the offered version",
        Change.REPLACE: f"{before} → {after}",
        Change.REPAIR: f"{before} installed again" if package.before else "installed again",
        Change.HOLD: f"{before} stays, held from now on" if package.before else "held",
        Change.RELEASE: f"{before} stays, no longer held",
    }
    held = (
        ", held" if package.held and package.change in (Change.INSTALL, Change.REPLACE, Change.REPAIR) else ""
    )
    return words[package.change] + held


def _rollout(made: Plan, seen: Assessment) -> list[str]:
    busy = sum(len(wave) for wave in made.waves)
    if not busy:
        return []
    waves = f"{len(made.waves)} waves" if len(made.waves) > 1 else "one wave"
    command = " ".join(["gpuprov up", seen.arguments(), *(f"--remove {role}" for role in seen.remove)])
    said = [f"{command} would change {many(busy, 'node')} in {waves}, in {about(made.minutes())}"]
    if len(made.waves) > 1:
        for number, wave in enumerate(made.waves, 1):
            reboots = sum(made.nodes[name].reboot for name in wave)
            rebooting = f", up to {many(reboots, 'reboot')}" if reboots else ""
            said.append(f"  wave {number} ({wave.kind}): {fold(wave)}{rebooting}")
    return said
