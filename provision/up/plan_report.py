"""A plan as text, Markdown and JSON; equal nodes are grouped, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from provision import __version__
from provision.drift import diagnosis, drift_text
from provision.drift.assess import Assessment
from provision.drift.sentences import likeness, sentence, subject
from provision.node_names import fold
from provision.text import many, now
from provision.up import changes
from provision.up.changes import Item, Sign
from provision.up.durations import Expected
from provision.up.options import UpOptions
from provision.up.plan import NodePlan, PackageChange, Plan, because
from provision.up.waves import CANARY

FORMAT = 2  # version of the JSON document described in data/schemas/plan.schema.json
FACTS = 4  # names of facts shown after a line; the rest are counted
REASONS = 12  # lines per role; the rest are counted


def document(seen: Assessment, made: Plan) -> dict[str, Any]:
    """Build the plan as JSON, with secrets not yet masked."""
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
        "scheduler": dict(made.scheduler),
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
    """Return `yes`, `no`, or `may` if the role first tries without a reboot."""
    return "yes" if node.reboot_sure else "may" if node.reboot else "no"


def lines(seen: Assessment, made: Plan, *, all_reasons: bool = False, diff: bool = False) -> list[str]:
    """Render the plan for a person. `diff`: include line diffs of files, with secrets masked."""
    out: list[str] = []
    secrets = seen.secrets if diff else ()  # other text is masked when printed
    for names in _groups(made, diff):
        node = made.nodes[names[0]]
        items = changes.of_node(node, every=all_reasons, diff=diff, secrets=secrets)
        out += [
            f"{fold(names)}  ({many(len(names), 'node')})  {_effort(node, items)}",
            *_of_node(node, items, all_reasons),
            "",
        ]
    out += diagnosis.section(seen.causes(), seen.arguments)
    out += [*drift_text.trouble(seen.refused, seen.troubles, seen.host_only), *_scheduler(made)]
    idle = [name for name, node in made.nodes.items() if node.as_declared]
    if idle:
        what = f"without anything of {', '.join(seen.remove)}" if seen.remove else "as declared"
        out.append(f"{many(len(idle), 'node')} {what}: {fold(idle)}")
    return [*out, *_rollout(made, seen)]


def markdown(seen: Assessment, made: Plan, *, diff: bool = False) -> list[str]:
    """Render the plan as a comment: a table with folded details in the order of `lines`, size-limited."""
    groups = _groups(made, diff)
    notes = [
        *diagnosis.lines(seen.causes(), seen.arguments),
        *drift_text.trouble(seen.refused, seen.troubles, seen.host_only),
        *_scheduler(made),
    ]
    trouble = _as_list(notes)
    some = trouble[: drift_text.fitting([[line] for line in trouble], drift_text.SUMMARY // 4)]
    more = [f"- and {len(trouble) - len(some)} more"] if len(some) < len(trouble) else []
    end = ["", *some, *more, *_as_list(_rollout(made, seen))]
    rows: list[str] = []
    details: list[list[str]] = []
    for names in groups:
        node = made.nodes[names[0]]
        items = changes.of_node(node, every=True, diff=diff, secrets=seen.secrets if diff else ())
        cells = [
            fold(names),
            ", ".join(node.roles) or "nothing a role could repair",
            "<br>".join(_packages(node.packages)) or "none",
            ", ".join(node.restarts) or "none",
            reboot_word(node),
            about(Expected(node.minutes, node.learnt_from)),
        ]
        rows.append("| " + " | ".join(map(_cell, cells)) + " |")
        # Three backticks in a line would end the block of code that it is shown in.
        why = [line.replace("```", "'''") for line in _of_node(node, items, all_reasons=True)]
        head = f"<details><summary>{_cell(fold(names))}: why</summary>"
        details.append(["", head, "", "```", *why, "```", "", "</details>"])
    # `end` is budgeted first; rows get at most half of the rest, and whole details what then remains.
    room = drift_text.SUMMARY - drift_text.size(end)
    shown = drift_text.fitting([[row] for row in rows], room // 2)
    out = [f"### {_head(seen, made)}", ""]
    if rows:
        out += ["| nodes | roles | packages | restarts | reboot | time |", "|---|---|---|---|---|---|"]
        out += rows[:shown]
    whole = drift_text.fitting(details[:shown], room - drift_text.size(rows[:shown]))
    out += [line for detail in details[:whole] for line in detail]
    if whole < len(groups):
        left = f"{len(groups) - whole} of {many(len(groups), 'group')} of nodes are not shown whole here"
        out += ["", f"{left}: `gpuprov plan --json` has them all"]
    return [*out, *end]


def github(seen: Assessment, made: Plan, *, diff: bool = False) -> str:
    """Render one GitHub annotation and add the Markdown form to the job's summary. Raises UsageError."""
    from provision.drift.formats import github as form  # on demand, because it imports every check

    text = drift_text.safe(lines(seen, made, diff=diff), seen.secrets)
    level = "error" if seen.refused else "warning" if made.waves or seen.unreachable else "notice"
    form.add_to_summary(lambda: drift_text.safe(markdown(seen, made, diff=diff), seen.secrets))
    return form.annotation(level, seen.fleet.source, _head(seen, made), text)


def _head(seen: Assessment, made: Plan) -> str:
    busy = sum(len(wave) for wave in made.waves)
    return f"gpuprov plan: {many(busy, 'node')} of {len(seen.fleet.nodes)} would change"


def _scheduler(made: Plan) -> list[str]:
    """Return why schedulers could not drain nodes, equal reasons merged."""
    alike = drift_text.grouped({node: why.replace(node, "the node") for node, why in made.scheduler.items()})
    return [f"{fold(nodes)}: up would not touch it: its scheduler: {why}" for why, nodes in alike]


def _cell(text: str) -> str:
    # `<br>` is this module's own line break and must survive the escaping; a backtick would begin code.
    breaks = text.replace("<br>", "\0")
    escaped = breaks.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "'")
    return escaped.replace("\0", "<br>").replace("\n", " ")


def _as_list(texts: Iterable[str]) -> list[str]:
    return [f"- {_cell(text.strip())}" for text in texts if text.strip()]


def about(expected: Expected) -> str:
    """Format an expected duration: `about 6 min (learnt from 14 runs)`, `about 9 min (estimate)`."""
    basis = f"learnt from {many(expected.runs, 'run')}" if expected.runs else "estimate"
    minutes = f"{expected.minutes:.0f}" if expected.minutes >= 1 else "1"  # `less than 1 min`
    return f"{'less than' if expected.minutes < 1 else 'about'} {minutes} min ({basis})"


def _groups(made: Plan, contents: bool = False) -> list[list[str]]:
    """Group nodes with equal drifts; first nodes that no role repairs, then by reboot and time.

    `contents`: compare files line by line."""
    others = {name: _found(node) for name, node in made.nodes.items() if not node.as_declared}
    alike: dict[Any, list[str]] = {}
    for _, names in drift_text.grouped(others):  # equal nodes are worded only once
        alike.setdefault(_likeness(made.nodes[names[0]], contents), []).extend(names)
    groups = list(alike.values())

    def badness(names: Sequence[str]) -> tuple[Any, ...]:
        node = made.nodes[names[0]]
        return (not node.roles, node.reboot_sure, node.reboot, node.minutes)

    return sorted(groups, key=badness, reverse=True)


def _found(node: NodePlan) -> tuple[Any, ...]:
    """Return a key of a node's drifts; nodes declared alike share their expectations."""
    return (node.roles, node.reboot_because, tuple(map(likeness, node.drifts)))


def _likeness(node: NodePlan, contents: bool) -> tuple[Any, ...]:
    drifts = tuple(
        # A sentence quotes only a file's first line that differs, and a diff shows them all.
        (d.expectation.role, d.expectation.fact, sentence(d), str(d.found) if contents else "")
        for d in node.drifts
    )
    return (node.roles, reboot_word(node), node.reboot_because, drifts)


def _effort(node: NodePlan, items: Mapping[str, Sequence[Item]]) -> str:
    if not node.roles:
        return "nothing a role could repair"
    counted = changes.count(items)
    parts = [f"{number} {word}" for sign, word in _WORDS.items() if (number := counted[sign])]
    parts += {"yes": ["reboot"], "may": ["may reboot"], "no": []}[reboot_word(node)]
    parts += [about(Expected(node.minutes, node.learnt_from))]
    return ", ".join(parts)


_WORDS = {  # in the order they are printed
    Sign.ADD: "to add",
    Sign.CHANGE: "to change",
    Sign.REMOVE: "to remove",
    Sign.UNREAD: "not read",
    Sign.BEYOND: "no role can change",
}


def tally(made: Plan) -> str:
    """Return the totals of all nodes: `3 to add, 2 to change, 1 to remove`."""
    counted = changes.count_all(made)
    always = (Sign.ADD, Sign.CHANGE, Sign.REMOVE)  # shown even if 0
    return ", ".join(
        f"{counted[sign]:,} {word}" for sign, word in _WORDS.items() if counted[sign] or sign in always
    )


def intent(made: Plan, options: UpOptions, total: int) -> str:
    """Summarise in one line what `up` will change in a fleet of `total` nodes."""
    busy = [made.nodes[node] for wave in made.waves for node in wave]
    extent = f"{len(busy)} of {many(total, 'node')}"
    words = [f"{extent} {'differs from its' if len(busy) == 1 else 'differ from their'} declared state"]
    if options.remove:
        words = [f"{', '.join(options.remove)} to be removed from {extent}"]
    if options.full:
        words = [f"every role on {extent}"]
    canaries = sum(len(wave) for wave in made.waves if wave.kind == CANARY)
    first = f", {many(canaries, 'node')} first as {'canary' if canaries == 1 else 'canaries'}"
    words.append(many(len(made.waves), "wave") + (first if canaries else ""))
    words.append(tally(made))
    reboots = sum(node.reboot for node in busy) if options.may_reboot else 0
    if reboots and not options.check_mode:
        words.append(f"{reboots} to reboot")
    return " · ".join([*words, about(made.minutes(options.forks))])


def _of_node(node: NodePlan, items: Mapping[str, Sequence[Item]], all_reasons: bool) -> list[str]:
    out = []
    for role, of_role in items.items():
        out += _of_role(role, of_role, all_reasons)
    if node.restarts:
        out.append(f"  restarts {', '.join(node.restarts)}")
    if node.reboot:
        # `reboot_because` is worded for programs; people get the names of the facts' subjects.
        named = {because(drift): subject(drift.expectation.fact) for drift in node.drifts}
        reasons = dict.fromkeys(named.get(reason, reason) for reason in node.reboot_because)
        sure = "reboot" if node.reboot_sure else "reboot, if it cannot be done without"
        out.append(f"  {sure}: {', '.join(reasons)}")
    return out


def _of_role(role: str, items: Sequence[Item], everything: bool) -> list[str]:
    if not items:
        return [f"  {role}: as declared; --full runs it all the same"]
    out = [f"  {role}"]
    limit = len(items) if everything else REASONS
    for item in items[:limit]:
        out.append(f"    {item.sign} {item.text}{_facts(item) if everything else ''}")
        if everything and item.drifts:
            out.append(f"        {item.drifts[0].expectation.why}")
        out += [f"        {line}" for line in item.diff]
    if len(items) > limit:
        left = sum(item.count for item in items[limit:])
        out.append(f"    and {left} more (-v shows all)")
    return out


def _facts(item: Item) -> str:
    facts = [drift.expectation.fact for drift in item.drifts]
    # `service.nvidia-persistenced.active` stands for `service.nvidia-persistenced.enabled`, too.
    names = list({fact.rpartition(".")[0]: fact for fact in reversed(facts)}.values())[::-1]  # one per thing
    more = f" and {len(names) - FACTS} more" if len(names) > FACTS else ""
    return f"  [{', '.join(names[:FACTS])}{more}]" if names else ""


def _packages(packages: Sequence[PackageChange]) -> list[str]:
    """Return one line for each transition: `a, b: 570.124.06-1 → 580.126.09, held`."""
    alike: dict[str, list[str]] = {}
    for each in packages:
        alike.setdefault(changes.transition(each), []).append(each.name)
    return [f"{changes.listed(names)}: {moves}" for moves, names in alike.items()]


def _rollout(made: Plan, seen: Assessment) -> list[str]:
    busy = sum(len(wave) for wave in made.waves)
    if not busy:
        return []
    out = []
    if len(made.waves) > 1:
        for number, wave in enumerate(made.waves, 1):
            reboots = sum(made.nodes[name].reboot for name in wave)
            rebooting = f", up to {many(reboots, 'reboot')}" if reboots else ""
            out.append(f"wave {number} ({wave.kind}): {fold(wave)}{rebooting}")
    waves = f"{len(made.waves)} waves" if len(made.waves) > 1 else "one wave"
    command = " ".join(["gpuprov up", seen.arguments(), *(f"--remove {role}" for role in seen.remove)])
    reboots = sum(node.reboot for node in made.nodes.values())
    parts = [tally(made), *([many(reboots, "reboot")] if reboots else []), about(made.minutes())]
    return [*out, f"{command} would change {many(busy, 'node')} in {waves}: {', '.join(parts)}"]
