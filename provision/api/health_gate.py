"""Health gate between waves: validate's quick checks on the nodes of a wave (`up --gate quick`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.api import validations
from provision.checks.health import NodeHealth
from provision.checks.judge import Verdict
from provision.checks.judging import registry
from provision.events import OnEvent, RunBegan
from provision.fleet import Fleet, Kind
from provision.remote.reach.observe import Reach
from provision.report.causes import silence
from provision.up.options import QUICK, UpOptions
from provision.validate import validation

_SHOWN = 3  # findings listed per node; the report has all


def quick(
    fleet: Fleet,
    overrides: Mapping[str, Any],
    nodes: Sequence[str],
    options: UpOptions,
    on_event: OnEvent,
) -> dict[str, str]:
    """Run the quick stage of `validate` as a separate run on these nodes, which `up` has locked.

    Returns node → finding for nodes that failed or could not be measured, since unknown is not healthy.
    Raises KeyboardInterrupt after an interrupt."""
    part = replace(fleet, nodes={node: fleet.nodes[node] for node in nodes})
    part = replace(part, nodes=part.where(Kind.GPU))
    nodes = list(part.nodes)
    if not nodes:
        return {}
    settings = validation.Settings(
        forks=options.forks,
        vault_password_files=fleet.vault_password_files,
    )
    checks = registry.select(QUICK)
    folder = validation.open_folder(None, part, checks, settings)
    on_event(RunBegan(folder.path))
    limits = (options.timeout, options.connections, fleet.vault_password_files)
    with Reach(part.nodes.values(), *limits, persistent=True) as over:
        health, code = validation.validate(folder, part, overrides, checks, settings, over, on_event)
    validations.reported(folder, health, code, ["html", "json"])
    if health.interrupted:
        raise KeyboardInterrupt
    bad = {node.node: _why(node) for node in health.nodes if node.verdict in (Verdict.FAIL, Verdict.ERROR)}
    silent = set(nodes) - {node.node for node in health.nodes}
    return bad | dict.fromkeys(silent, "the quick checks have no result for it")


def _why(node: NodeHealth) -> str:
    if node.error:
        return f"the quick checks could not be run: {silence(node)}"
    bad = [
        finding
        for check in node.checks
        for finding in check.findings
        if finding.verdict in (Verdict.FAIL, Verdict.ERROR)
    ]
    shown = [f"{finding.device}: {finding.message}" for finding in bad[:_SHOWN]]
    rest = f", and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return f"the quick checks found: {'; '.join(shown)}{rest}" if bad else "the quick checks are not complete"
