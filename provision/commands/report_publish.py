"""gpuprov report publish: show a run's verdicts on the nodes in Kubernetes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.desired import inventory, stack
from provision.errors import ExitCode, UsageError
from provision.fleet import Node
from provision.node_names import fold, label
from provision.remote.schedulers import chosen, kubernetes
from provision.report.causes import missing
from provision.text import many, one_line


def run(health: FleetHealth, options: argparse.Namespace) -> ExitCode:
    """Publish the results of nodes with `gpuprov_scheduler: kubernetes`, and print the outcome.

    Raises InventoryError if the run's inventory cannot be read, UsageError if it has no such node.
    """
    fleet = inventory.load(Path(health.inventory))
    of = chosen.load(fleet, {}).of
    clusters = {
        node.node: scheduler
        for node in health.nodes
        if isinstance(scheduler := of.get(node.node), kubernetes.Kubernetes)
    }
    if not clusters:
        raise UsageError(
            f"no node of this run has gpuprov_scheduler: kubernetes in {health.inventory}",
            "set it there; results are published to Kubernetes alone",
        )
    results = {
        node.node: result(health, node, fleet.nodes[node.node])
        for node in health.nodes
        if node.node in clusters
    }
    failed = next(iter(clusters.values())).publish(results)
    done = [name for name in results if name not in failed]
    if options.json:
        document: dict[str, Any] = {"format": 1, "published": done, "failed": failed}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        if done:
            sys.stdout.write(f"published {many(len(done), 'node')}: {fold(done)}\n")
        sys.stdout.writelines(f"not published  {label(name)}: {why}\n" for name, why in failed.items())
    return ExitCode.INCOMPLETE if failed else ExitCode.OK


def result(fleet: FleetHealth, node: NodeHealth, declared: Node) -> kubernetes.Result:
    """Return a node's result for Kubernetes; an incompletely measured node is not healthy."""
    verdict = node.verdict
    absent = missing(fleet, node)
    if verdict in (Verdict.PASS, Verdict.WARN, Verdict.SKIP) and (absent or node.error or node.unreachable):
        verdict = Verdict.ERROR
    sku = str(node.facts.get("sku") or "")
    seen = {"gpuprov_sku": sku} if sku else {}  # a node without its own stack gets its vendor's by SKU
    return kubernetes.Result(
        verdict=verdict.value,
        sku=sku,
        stack=stack.node_stack(declared, seen).name,
        validated_at=fleet.finished or fleet.started,
        message=f"{_found(node, verdict, absent)} (run {fleet.run_id})",
    )


def _found(node: NodeHealth, verdict: Verdict, absent: tuple[str, ...]) -> str:
    """Describe the worst finding (`GPU 3: memory 2 % slower than its peers (and 1 more)`).

    Without one, list the checks that are missing, or that passed."""
    if node.error:
        return one_line(node.error, 300)
    worst = [finding for check in node.checks for finding in check.wrong if finding.verdict is verdict]
    if worst:
        rest = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
        return one_line(_line(worst[0]), 300) + rest
    if absent:
        return f"not measured: {', '.join(absent)}"
    return f"{many(len(node.checks), 'check')} passed: {', '.join(check.check for check in node.checks)}"


def _line(finding: Finding) -> str:
    return f"{finding.device}: {finding.message}"
