"""gpuprov plan: what `up` would do to each node, and why; changes nothing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options, wave_options
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.assess import Assessment
    from provision.plan import NodePlan, Plan

EPILOG = """\
exit codes: 0 when every node could be looked at; 3 when one is refused; 5 when one could not be looked at.

examples:
  gpuprov plan
  gpuprov plan --nodes 'rack1:!gpu-07'
  gpuprov plan --set gpuprov_stack=r595-cuda13.2
"""
REASONS = 6  # per role; the rest are counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    parser.add_argument("--full", action="store_true", help="plan every role on every node, needed or not")
    wave_options.add_arguments(parser)
    parser.add_argument("--reasons", action="store_true", help=f"all reasons, not {REASONS} for each role")


def run(options: argparse.Namespace) -> ExitCode:
    from provision import plan, shown

    seen = fleet_options.assess(options, "plan")
    made = plan.make(
        seen.drifts,
        seen.observations,
        full=options.full,
        rollout=wave_options.rollout(options, seen),
        takes_part=seen.roles,
    )
    if options.json:
        import json

        document = shown.without(_document(seen, made), seen.secrets)
        sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")
    else:
        sys.stdout.write(shown.safe(_lines(seen, made, options.reasons), seen.secrets))
    if seen.refused:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if seen.unreachable else ExitCode.OK


def _document(seen: Assessment, made: Plan) -> dict[str, Any]:
    from dataclasses import asdict

    from provision import shown

    return {
        "format": 1,
        "inventory": str(seen.fleet.source),
        "nodes": {
            name: {
                "as_declared": node.as_declared,
                "roles": node.roles,
                "reboot": node.reboot,
                "minutes": node.minutes,
                "drifts": [shown.record(drift) for drift in node.drifts],
            }
            for name, node in made.nodes.items()
        },
        "waves": [wave.record() for wave in made.waves],
        "unreachable": made.unreachable,
        "refused": {name: [asdict(each) for each in why] for name, why in seen.refused.items()},
    }


def _lines(seen: Assessment, made: Plan, all_reasons: bool) -> list[str]:
    from provision import shown
    from provision.node_names import fold

    lines: list[str] = []
    idle = [name for name, node in made.nodes.items() if node.as_declared]
    others = {name: _likeness(node) for name, node in made.nodes.items() if not node.as_declared}
    for _, names in shown.grouped(others):
        node = made.nodes[names[0]]
        lines += [f"{fold(names)}  ({_nodes(len(names))})  {_effort(node)}", *_reasons(node, all_reasons), ""]
    lines += shown.trouble(seen.refused, seen.unreachable)
    if idle:
        lines.append(f"{_nodes(len(idle))} as declared: {fold(idle)}")
    busy = sum(len(wave) for wave in made.waves)
    if busy:
        minutes = sum(max(made.nodes[name].minutes for name in wave) for wave in made.waves)
        waves = f"{len(made.waves)} waves" if len(made.waves) > 1 else "one wave"
        lines.append(f"gpuprov up would change {_nodes(busy)} in {waves}, in about {minutes:.0f} minutes")
    return lines


def _likeness(node: NodePlan) -> tuple[Any, ...]:
    from provision import shown

    drifts = ((d.expectation.role, d.expectation.fact, shown.difference(d)) for d in node.drifts)
    return (node.roles, node.reboot, *drifts)


def _effort(node: NodePlan) -> str:
    if not node.roles:
        return "nothing a role could repair"
    reboot = ", may reboot" if node.reboot else ""
    roles = f"{len(node.roles)} role{'s' if len(node.roles) > 1 else ''}"
    return f"{roles}{reboot}, about {node.minutes:.0f} minutes"


def _reasons(node: NodePlan, everything: bool) -> list[str]:
    from provision import shown

    lines = []
    reasons = [drift.expectation.role for drift in node.drifts]
    for role in dict.fromkeys([*node.roles, *reasons]):
        drifts = [drift for drift in node.drifts if drift.expectation.role == role]
        lines.append(f"  {role}" + ("" if drifts else ": as declared; --full runs it all the same"))
        limit = len(drifts) if everything else REASONS
        lines += [f"    {drift.expectation.fact} {shown.difference(drift)}" for drift in drifts[:limit]]
        if len(drifts) > limit:
            lines.append(f"    and {len(drifts) - limit} more (--reasons shows all)")
    return lines


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
