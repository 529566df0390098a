"""Drift as SARIF 2.1.0 (OASIS) for code scanning: a rule per role and fact, a result per node."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from provision import __version__
from provision.drift.diagnosis import NODES, Arguments
from provision.drift.drift_report import DriftReport, Finding
from provision.errors import ExitCode
from provision.fleet import sources

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_INCOMPLETE = "node/unreachable"


def render(report: DriftReport) -> str:
    """Render the log: findings become results of kind fail, nodes without an answer notifications."""
    found = report.findings
    rules: dict[str, Finding] = {}
    for each in found:
        if each.rule != _INCOMPLETE:
            rules.setdefault(each.rule, each)
    index = {rule: number for number, rule in enumerate(rules)}
    silent = [each for each in found if each.rule == _INCOMPLETE]
    uri = sources(report.seen.fleet.source)[0].name
    run = {
        "tool": {
            "driver": {
                "name": "gpuprov drift",
                "version": __version__,
                "rules": [_rule(rule, first) for rule, first in rules.items()],
            }
        },
        "invocations": [
            {
                "executionSuccessful": report.code is not ExitCode.INCOMPLETE and not silent,
                "exitCode": int(report.code),
                "toolExecutionNotifications": [_notification(each) for each in silent],
            }
        ],
        "results": [_result(each, index, uri, report.seen.arguments) for each in found if each.rule in index],
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _rule(rule: str, first: Finding) -> dict[str, Any]:
    return {
        "id": rule,
        "name": rule.replace("/", "-"),
        "shortDescription": {"text": rule},
        "fullDescription": {"text": first.more.replace(NODES, "INVENTORY --nodes NODES") or rule},
        "defaultConfiguration": {"level": first.level},
    }


def _result(found: Finding, index: dict[str, int], uri: str, arguments: Arguments) -> dict[str, Any]:
    nodes = list(found.nodes)
    who = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    identity = "\n".join([found.rule, *sorted(nodes)])
    return {
        "ruleId": found.rule,
        "ruleIndex": index[found.rule],
        "level": found.level,
        "message": {"text": f"{who}: {found.text} ({found.advice(arguments)})"},
        # The inventory declares the node's state, and is a file that a viewer can open.
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}},
                "logicalLocations": [
                    {"name": node, "fullyQualifiedName": node, "kind": "resource"} for node in nodes
                ],
            }
        ],
        # The same fault of the same node stays the same alert even if the value changes.
        "partialFingerprints": {"gpuprovDrift/v1": hashlib.sha256(identity.encode()).hexdigest()},
    }


def _notification(found: Finding) -> dict[str, Any]:
    return {
        "descriptor": {"id": found.rule},
        "level": "error",
        "message": {"text": f"{found.nodes[0]}: {found.text}"},
        "locations": [{"logicalLocations": [{"name": found.nodes[0], "kind": "resource"}]}],
    }
