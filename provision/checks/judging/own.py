"""Users' own checks, which a distribution declares in the entry point group `gpuprov.checks`.

docs/own-checks.md is a tutorial. A request for shipped checks by name does not look for own checks, so that
commands that need none do not pay for it. An unusable check stops the run and names its distribution: if
it were skipped silently, everybody would believe that it passed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any, NoReturn, cast, get_args

from provision import bug_file
from provision.checks import thresholds
from provision.checks.check import Check, CheckNode, Command, Measurement, Output
from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.checks.judging.table import BUILT_IN, OWN, STAGES, Entry, Scope
from provision.checks.thresholds import Threshold
from provision.errors import GpuprovError, ParseError

_DIRECTIONS = ("at_least", "at_most", "equal")
_ARGUMENTS = {"commands": 2, "parse": 2, "judge": 3}


class OwnCheckError(GpuprovError):
    """Error in a user's own check."""


def found() -> dict[str, Entry]:
    """Return the checks of all installed distributions by id; raise OwnCheckError for an unusable one."""
    taken = {one.id: "gpuprov itself" for one in BUILT_IN}
    checks: dict[str, Entry] = {}
    for entry in sorted(metadata.entry_points(group=OWN), key=lambda entry: entry.name):
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        if owner := taken.get(entry.name):
            _refuse(entry.name, source, f"{owner} has a check of that name")
        try:
            module = entry.load()
        except Exception as error:  # third-party code may raise anything on import
            _refuse(entry.name, source, f"it cannot be imported: {type(error).__name__}: {error}")
        check = _verified(entry.name, source, module)
        for metric, limit in _metrics(entry.name, source, module).items():
            thresholds.declare(f"{entry.name}.{metric}", limit)
        taken[entry.name] = source
        checks[entry.name] = Entry(entry.name, module.SCOPE, module.STAGE, entry.value, check, source)
    return checks


def _refuse(name: str, source: str, problem: str) -> NoReturn:
    raise OwnCheckError(
        f"the check {name} of {source} cannot be used: {problem}".split("\n")[0],
        f"upgrade or remove it (pip uninstall {source.split(' ')[0]}); docs/own-checks.md describes the form",
    )


def _verified(name: str, source: str, module: Any) -> Check:
    """Validate the shape of a module and return it as a guarded check."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        _refuse(name, source, "its name must be lower case letters, digits and _")
    needs, facts = getattr(module, "NEEDS", None), getattr(module, "FACTS", ())
    for constant, good, wanted in (
        ("SUMMARY", bool(_text(module, "SUMMARY")), "one sentence for a user"),
        ("SCOPE", _text(module, "SCOPE") in get_args(Scope), f"one of {', '.join(get_args(Scope))}"),
        ("STAGE", _text(module, "STAGE") in STAGES, f"one of {', '.join(STAGES)}"),
        ("NEEDS", _words(needs), "a tuple of program names"),
        ("FACTS", _words(facts), "a tuple of fact names"),
    ):
        if not good:
            _refuse(name, source, f"{constant} must be {wanted}")
    for function, count in _ARGUMENTS.items():
        try:
            inspect.signature(getattr(module, function)).bind(*range(count))
        except (AttributeError, TypeError, ValueError):
            _refuse(name, source, f"{function} must be a function of {count} arguments")
    return _guarded(name, source, module)


def _text(module: Any, constant: str) -> str:
    value = getattr(module, constant, None)
    return value.strip() if isinstance(value, str) else ""


def _words(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(word, str) and word for word in value)


def _metrics(name: str, source: str, module: Any) -> dict[str, thresholds.Metric]:
    """Parse the module's METRICS, which may have limits: name → {unit, direction}."""
    declared = getattr(module, "METRICS", {})
    try:
        metrics = {str(metric): thresholds.Metric(**row) for metric, row in declared.items()}
    except (AttributeError, TypeError):
        metrics = {}
    good = all(
        isinstance(row.unit, str) and row.direction in _DIRECTIONS and re.fullmatch(r"[a-z]\w*", metric)
        for metric, row in metrics.items()
    )
    if not good or (declared and not metrics):
        _refuse(name, source, f"METRICS must map names to a unit and a direction ({', '.join(_DIRECTIONS)})")
    return metrics


def _guarded(name: str, source: str, module: Any) -> Check:
    """Wrap a check so that its mistakes cost only its own verdict."""

    def wrong(what: str) -> ParseError:
        return ParseError(f"{name} ({source}): {what}", "report it to its author")

    def listed(function: str, kind: type, *arguments: Any) -> list[Any]:
        try:
            returned = list(getattr(module, function)(*arguments))
        except ParseError:
            raise
        except Exception as error:  # third-party code, on unexpected output
            kept = bug_file.report(error)
            raise wrong(f"{function} failed: {type(error).__name__}: {error}; {kept}") from error
        if not all(isinstance(one, kind) for one in returned):
            raise wrong(f"{function} gave something else than {kind.__name__}s")
        return returned

    def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
        return listed("commands", Command, node, options)

    def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        return listed("parse", Measurement, node, outputs)

    def judge(
        node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        findings: list[Finding] = listed("judge", Finding, node, measurements, thresholds)
        if not findings:
            raise wrong("judge gave no finding")
        for finding in findings:
            if not isinstance(finding.verdict, Verdict) or finding.action not in ACTIONS:
                raise wrong(f"judge gave the verdict {finding.verdict!r} with the action {finding.action!r}")
            if finding.verdict not in (Verdict.PASS, Verdict.SKIP) and finding.action == "none":
                raise wrong(f"judge gave {finding.verdict} without an action")
        return findings

    guarded = SimpleNamespace(
        SUMMARY=module.SUMMARY, NEEDS=module.NEEDS, FACTS=getattr(module, "FACTS", ()),
        commands=commands, parse=parse, judge=judge,
    )  # fmt: skip
    return cast("Check", guarded)
