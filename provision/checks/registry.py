"""Checks from outside: a distribution names them in the entry point group `gpuprov.checks`.

docs/own-checks.md walks through one.

They are looked for when somebody asks for more than a shipped check by its name, so that a command that needs
none does not pay for it. One that cannot be used stops the run with its distribution's name: left out
silently, it would be a check that everybody believes to have passed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from provision import threshold_metrics
from provision.checks.check import Check, CheckNode, Command, Measurement, Output
from provision.checks.modules import Modules
from provision.errors import GpuprovError, ParseError
from provision.judge import ACTIONS, Finding, Verdict
from provision.thresholds import Threshold

GROUP = "gpuprov.checks"
SCOPES = ("node", "pair", "group")
STAGES = ("quick", "standard", "burnin")
_DIRECTIONS = ("at_least", "at_most", "equal")
_ARGUMENTS = {"commands": 2, "parse": 2, "judge": 3}


class OwnCheckError(GpuprovError):
    """A check from outside that cannot be used."""


class Checks(MutableMapping[str, Check]):
    """The shipped checks, and after them those from outside, as soon as somebody looks beyond the shipped."""

    def __init__(self, shipped: Modules) -> None:
        self._shipped = shipped
        self._others: dict[str, Check] = {}
        self._complete = False

    def _load(self) -> dict[str, Check]:
        if not self._complete:
            self._others.update(found(frozenset(self._shipped)))
            self._complete = True
        return self._others

    @property
    def stages(self) -> dict[str, str]:
        """Each check's stage, in the order they run; shipped ones are not imported for it."""
        return self._shipped.stages | {name: check.STAGE for name, check in self._load().items()}

    def __getitem__(self, name: str) -> Check:
        return cast("Check", self._shipped[name]) if name in self._shipped else self._load()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._shipped or name in self._load()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._shipped.stages, **self._load()})

    def __len__(self) -> int:
        return len(self._shipped) + len(self._load())

    def __setitem__(self, name: str, check: Check) -> None:
        self._load()[name] = check

    def __delitem__(self, name: str) -> None:
        del self._load()[name]


def found(taken: frozenset[str]) -> dict[str, Check]:
    """Every check that an installed distribution offers, by id. `taken`: ids that are ours.

    Raises OwnCheckError, naming the distribution.
    """
    checks: dict[str, Check] = {}
    sources: dict[str, str] = {}
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        if entry.name in taken or entry.name in sources:
            owner = sources.get(entry.name, "gpuprov itself")
            _refuse(entry.name, source, f"{owner} has a check of that name")
        try:
            module = entry.load()
        except Exception as error:  # whatever a stranger's module does when it is imported
            _refuse(entry.name, source, f"it cannot be imported: {type(error).__name__}: {error}")
        check = _verified(entry.name, source, module)
        for metric, limit in _metrics(entry.name, source, module).items():
            threshold_metrics.declare(f"{entry.name}.{metric}", limit)
        checks[entry.name], sources[entry.name] = check, source
    return checks


def source_of(check: Check) -> str:
    """The distribution a check comes from, `gpuprov-own-check 1.0`; empty for a shipped one."""
    return str(getattr(check, "SOURCE", ""))


def _refuse(name: str, source: str, problem: str) -> NoReturn:
    raise OwnCheckError(
        f"the check {name} of {source} cannot be used: {problem}".split("\n")[0],
        f"upgrade or remove it (pip uninstall {source.split(' ')[0]}); docs/own-checks.md describes the form",
    )


def _verified(name: str, source: str, module: Any) -> Check:
    """The module behind a guard, once it has the shape of a check."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        _refuse(name, source, "its name must be lower case letters, digits and _")
    needs, facts = getattr(module, "NEEDS", None), getattr(module, "FACTS", ())
    for constant, good, wanted in (
        ("SUMMARY", bool(_text(module, "SUMMARY")), "one sentence for a user"),
        ("SCOPE", _text(module, "SCOPE") in SCOPES, f"one of {', '.join(SCOPES)}"),
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


def _metrics(name: str, source: str, module: Any) -> dict[str, threshold_metrics.Metric]:
    """What the module's METRICS say may be limited: name → {unit, direction}."""
    declared = getattr(module, "METRICS", {})
    try:
        found = {str(metric): threshold_metrics.Metric(**row) for metric, row in declared.items()}
    except (AttributeError, TypeError):
        found = {}
    good = all(
        isinstance(row.unit, str) and row.direction in _DIRECTIONS and re.fullmatch(r"[a-z]\w*", metric)
        for metric, row in found.items()
    )
    if not good or (declared and not found):
        _refuse(name, source, f"METRICS must map names to a unit and a direction ({', '.join(_DIRECTIONS)})")
    return found


def _guarded(name: str, source: str, module: Any) -> Check:
    """The check, with what it gives checked: a mistake in it costs its own verdict and nothing else."""

    def wrong(what: str) -> ParseError:
        return ParseError(f"{name} ({source}): {what}", "report it to its author")

    def listed(function: Callable[..., Any], kind: type, *arguments: Any) -> list[Any]:
        try:
            given = list(function(*arguments))
        except ParseError:
            raise
        except Exception as error:  # a stranger's code, on strange output
            raise wrong(f"{function.__name__} failed: {type(error).__name__}: {error}") from error
        if not all(isinstance(one, kind) for one in given):
            raise wrong(f"{function.__name__} gave something else than {kind.__name__}s")
        return given

    def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
        return listed(module.commands, Command, node, options)

    def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
        return listed(module.parse, Measurement, node, outputs)

    def judge(
        node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
    ) -> list[Finding]:
        findings: list[Finding] = listed(module.judge, Finding, node, measurements, thresholds)
        if not findings:
            raise wrong("judge gave no finding")
        for finding in findings:
            if not isinstance(finding.verdict, Verdict) or finding.action not in ACTIONS:
                raise wrong(f"judge gave the verdict {finding.verdict!r} with the action {finding.action!r}")
            if finding.verdict not in (Verdict.PASS, Verdict.SKIP) and finding.action == "none":
                raise wrong(f"judge gave {finding.verdict} without an action")
        return findings

    constants = {word: getattr(module, word) for word in ("SUMMARY", "SCOPE", "STAGE", "NEEDS")}
    guarded = SimpleNamespace(
        **constants, FACTS=getattr(module, "FACTS", ()), SOURCE=source,
        commands=commands, parse=parse, judge=judge,
    )  # fmt: skip
    return cast("Check", guarded)
