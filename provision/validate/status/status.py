"""The state of a node in service, judged by the health result that its own program wrote (pure).

A result counts while it is fresh. Its age comes from the node's clock since boot, which neither
administrators nor time servers change, so jumps of the wall clock do not affect it."""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from provision import __version__, foreign_json
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict, worst
from provision.checks.on_node.document import LARGEST, stale
from provision.fleet import Fleet
from provision.remote.protocol import AnswerError, NodeError, state_word, unframed
from provision.report.causes import overall
from provision.text import one_line, spelled
from provision.validate.status import slurm
from provision.validate.status.health_document import DocumentError, HealthDocument, HeldFinding, read
from provision.validate.status.slurm import SlurmState

_FUTURE = 5.0  # seconds a result may be ahead of the node's clock, since both are rounded
TIMER = "systemctl status gpuprov-node-health.timer"
ABSENT = "no health result: the role node_health is not applied"
_LATEST = 250_000_000_000  # seconds since 1970; the largest valid date
_DIGITS = re.compile(r"\d+")
_MORE = "log in and look at /run/gpuprov/health.json"


@dataclass(frozen=True)
class NodeStatus:
    """State of one node. `state`: answered, unreachable or unreadable.

    `trouble`: why no result counts, one line; `action`: the remedy if `trouble` names none. `document`: the
    result, even if stale; `age` in seconds, if known."""

    node: str
    verdict: Verdict
    state: str = "answered"
    trouble: str = ""
    action: str = "none"
    age: float | None = None
    written: float | None = None
    document: HealthDocument | None = None
    slurm: SlurmState | None = None

    @property
    def counts(self) -> bool:
        """Whether the result counts, that is, exists, was parsed and is fresh."""
        return self.document is not None and not self.trouble

    @property
    def held(self) -> tuple[HeldFinding, ...]:
        """The findings of a result that counts."""
        return self.document.findings if self.document is not None and self.counts else ()

    @property
    def health(self) -> NodeHealth:
        """The node as in health reports: its findings without pending ones, or its trouble."""
        document = self.document
        gpus, facts = (document.gpus, document.facts) if document else ((), {})
        if self.state != "answered":
            gone = self.state == "unreachable"
            why = self.trouble if gone else f"{self.state}: {self.trouble}"
            return NodeHealth(self.node, self.verdict, (), gpus, facts, why, gone)
        found = [each.finding for each in self.held if each.state != "pending"]
        if self.trouble:
            found = [Finding("", Verdict.ERROR, "node", self.trouble, action=self.action)]
        by_check: dict[str, list[Finding]] = {}
        for finding in found:
            by_check.setdefault(finding.check, []).append(finding)
        checks = [
            CheckResult(check, worst(one.verdict for one in findings), tuple(findings), (), 0.0)
            for check, findings in by_check.items()
        ]
        if self.verdict is not Verdict.PASS and self.verdict not in {one.verdict for one in checks}:
            checks.append(CheckResult("", self.verdict, (), (), 0.0))  # reported as a check without findings
        return NodeHealth(self.node, self.verdict, tuple(checks), gpus, facts)


def judged(node: str, output: bytes | NodeError, before: SlurmState | None = None) -> NodeStatus:
    """Judge a node by its program's output or error; `before`: Slurm's last state, if not queried now."""
    if isinstance(output, NodeError):
        return NodeStatus(node, Verdict.ERROR, state_word(output.unreachable), output.line)
    try:
        answer = _Answer(output)
    except AnswerError as error:
        line = f"{error} → log in and check its python3"
        return NodeStatus(node, Verdict.ERROR, state_word(False), line)
    status = _judged(node, answer)
    return replace(status, slurm=answer.slurm or before)


def _judged(node: str, answer: _Answer) -> NodeStatus:
    if answer.problem == "absent":
        return NodeStatus(node, Verdict.ERROR, trouble=ABSENT)
    if answer.problem:
        words = {
            "refused": "the health result is not believed",
            "unreadable": "the health result cannot be read",
        }
        trouble = f"{words[answer.problem]}: {answer.detail}"
        return NodeStatus(node, Verdict.ERROR, trouble=trouble, action="investigate")
    try:
        document = read(answer.text())
    except DocumentError as error:
        return NodeStatus(node, Verdict.ERROR, trouble=f"the health result {error}: {_MORE}")
    age = answer.uptime - document.uptime
    if document.boot_id != answer.boot_id:
        reason = f"the health result is from before the last boot, {spelled(int(answer.uptime))} ago"
        verdict, trouble = Verdict.ERROR, _stale(reason, document)
    elif age < -_FUTURE:
        reason = f"the health result is ahead of the node's clock since boot by {spelled(int(-age))}"
        verdict, trouble = Verdict.ERROR, f"{reason}: {_MORE}"
    elif stale(age, document.interval):
        verdict, trouble = Verdict.ERROR, _stale(f"the health result is {int(age // 60)} min old", document)
    else:
        verdict, trouble = _verdict(document)
    known = max(0.0, age) if document.boot_id == answer.boot_id and age >= -_FUTURE else None
    return NodeStatus(node, verdict, trouble=trouble, age=known, written=answer.written, document=document)


def _stale(said: str, document: HealthDocument) -> str:
    if document.verdict in (Verdict.PASS, Verdict.SKIP):
        return f"{said}: {TIMER}"
    return f"{said} (it says {document.verdict}): {TIMER}"


def _verdict(document: HealthDocument) -> tuple[Verdict, str]:
    """Return a fresh result's verdict, no better than its findings, and a reason if it proves nothing."""
    if document.error:
        return Verdict.ERROR, f"the health program could not judge the node: {document.error}"
    if not document.checks and document.verdict is not Verdict.FAIL:
        return Verdict.ERROR, "the health program ran no check: journalctl -u gpuprov-node-health.service"
    counted = [each.finding.verdict for each in document.findings if each.state != "pending"]
    return worst([document.verdict, *counted]), ""


class _Answer:
    """Parsed output of the program on the node. Raises AnswerError for output it cannot have written."""

    def __init__(self, output: bytes) -> None:
        try:
            fields: Any = foreign_json.read(unframed(output))
            self.problem = str(fields["problem"])
            self.detail = one_line(str(fields["detail"]), 300)
            self.boot_id = str(fields["boot_id"])
            self.uptime = float(fields["uptime"])
            self.written = None if fields["written"] is None else float(fields["written"])
            self._health = str(fields["health"])
            self.slurm = self._slurm(fields["slurm"])
            uid = int(fields["uid"])
        except (ValueError, TypeError, KeyError, OverflowError):
            raise AnswerError("its answer is not of the form expected") from None
        expected = self.problem in ("", "absent", "refused", "unreadable")
        if not expected or not 0 <= self.uptime < 1e12 or not 0 <= (self.written or 0) < _LATEST:
            raise AnswerError("its answer is not of the form expected")
        if "permission denied" in self.detail and uid:
            self.detail += f" (run as uid {uid}, without sudo: ansible_become is off)"

    @staticmethod
    def _slurm(fields: Any) -> SlurmState | None:
        if fields is None:
            return None
        texts = {name: str(fields[name]) for name in ("name", "text", "problem")}
        return slurm.parsed(one_line(texts["name"], 100), texts["text"], one_line(texts["problem"], 200))

    def text(self) -> bytes:
        """Decompress the result, to at most one byte above the size limit. Raises DocumentError."""
        try:
            return zlib.decompressobj().decompress(binascii.a2b_base64(self._health), LARGEST + 1)
        except (ValueError, binascii.Error, zlib.error):
            raise DocumentError("did not come through whole") from None


@dataclass(frozen=True)
class Watched:
    """State of a node in `gpuprov watch`.

    `role`: failed (the watch is acting on it), repair (waits for people), replaces (spare in service in place
    of `other`), spare. `incident`: its id, with its next `step` and `cause`; `other`: for a failed node its
    spare; `next`: a command for a person."""

    role: str
    incident: str = ""
    step: str = ""
    other: str = ""
    cause: str = ""
    next: str = ""


@dataclass(frozen=True)
class FleetStatus:
    """The nodes of a fleet at one moment (`at`: ISO 8601 UTC).

    `watched`: nodes that `gpuprov watch` took out of service, put into service or keeps as spares."""

    fleet: Fleet = field(repr=False)  # contains passwords
    at: str
    nodes: Mapping[str, NodeStatus] = field(default_factory=dict)
    watched: Mapping[str, Watched] = field(default_factory=dict)

    @property
    def repair(self) -> dict[str, str]:
        """Nodes that wait for people, each with the spare in its place, if there is one."""
        return {name: one.other for name, one in self.watched.items() if one.role == "repair"}

    @cached_property
    def health(self) -> FleetHealth:
        """The state as a health report."""
        nodes = tuple(status.health for status in self.nodes.values())
        return FleetHealth("", __version__, str(self.fleet.source), self.at, self.at, (), nodes)

    @property
    def verdict(self) -> Verdict:
        return overall(self.health)

    @property
    def oldest(self) -> NodeStatus | None:
        """The node with the oldest result that counts."""
        fresh = [status for status in self.nodes.values() if status.counts]
        return max(fresh, key=lambda status: status.age or 0.0, default=None)

    @property
    def pending(self) -> dict[str, list[HeldFinding]]:
        """The findings that do not count yet, by node."""
        pending = {
            name: [each for each in status.held if each.state == "pending"]
            for name, status in self.nodes.items()
        }
        return {name: held for name, held in pending.items() if held}

    @property
    def other_versions(self) -> dict[str, list[str]]:
        """Nodes with another version of the health program than this gpuprov, by that version."""
        by_version: dict[str, list[str]] = {}
        for name, status in self.nodes.items():
            if status.document is not None and status.document.gpuprov != __version__:
                by_version.setdefault(status.document.gpuprov, []).append(name)
        return by_version

    @property
    def still_used(self) -> list[str]:
        """Failed nodes to which Slurm still assigns jobs."""
        return [
            name
            for name, status in self.nodes.items()
            if status.verdict is Verdict.FAIL and status.slurm is not None and status.slurm.takes_jobs
        ]

    @property
    def signature(self) -> list[Any]:
        """The state without times and ages, for comparison: a difference is a change worth showing."""
        return [
            (
                name,
                status.verdict,
                _DIGITS.sub("#", status.trouble),
                [
                    (
                        held.finding.check,
                        held.finding.device,
                        held.finding.metric,
                        held.finding.verdict,
                        held.state,
                    )
                    for held in status.held
                ],
                status.slurm,
                status.document and status.document.gpuprov,
                self.watched.get(name),
            )
            for name, status in self.nodes.items()
        ]
