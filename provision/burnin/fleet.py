"""The segments of a burn-in between nodes: they wait, and a controller that attends measures their pairs.

Each segment keeps what it measured in a folder of its own, `<run>/fleet/<segment>/`, as a validate run does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision import fleet_pairs, pair_campaign
from provision.burnin.campaign import Campaign
from provision.burnin.status import Status
from provision.errors import RunFolderError
from provision.health import CheckResult, NodeHealth
from provision.judge import Finding, unmeasured, worst
from provision.seen import Seen
from provision.store import RunFolder
from provision.terminal import Progress
from provision.validation import Settings

Segments = Mapping[str, Sequence[str]]  # segment → its checks


def segments(profile: Any) -> dict[str, list[str]]:
    """The segments between nodes of a profile, as JSON has it, with their checks."""
    found = {}
    rows = profile.get("segments") if isinstance(profile, Mapping) else None
    for row in rows if isinstance(rows, list | tuple) else ():
        if isinstance(row, Mapping) and row.get("kind") == "fleet":
            found[str(row.get("name"))[:60]] = [str(check) for check in row.get("checks") or ()]
    return found


def ready(found: Iterable[Status], turns: Mapping[str, int], wanted: Segments) -> dict[str, list[str]]:
    """Segment → the nodes that wait in it, for the turns whose nodes all do that still burn."""
    groups: dict[int, list[Status]] = {}
    for one in found:
        if not one.over and not one.error:
            groups.setdefault(turns.get(one.node, 1), []).append(one)
    waiting: dict[str, list[str]] = {}
    for members in groups.values():
        names = {one.holding for one in members}
        if len(names) == 1 and (name := names.pop()) in wanted:
            waiting.setdefault(name, []).extend(one.node for one in members)
    return waiting


def measure(
    run: Campaign,
    segment: str,
    checks: Sequence[str],
    able: Mapping[str, Seen],
    say: Callable[[str], None],
    forks: int,
) -> None:
    """Measure the nodes that wait in a segment, then let them go on, whatever came of it."""
    folder = _folder(run, segment)
    folder.note(asked=list(checks), nodes=list(able), inventory=str(run.folder.meta().get("inventory") or ""))
    settings = Settings(forks=forks, vault_password_files=tuple(run.vault_password_files))
    try:
        with Progress("burnin", total=len(able) * len(checks)) as progress:
            for check in checks:
                pair_campaign.measure(check, folder, able, run.variables, settings, progress)
    finally:
        answers = run.ask("release", list(able), shared={"segment": segment})
        for name, answer in answers.items():
            if answer.error:
                say(f"{name}: could not be told to go on: {answer.error}; it does so by itself")


def _folder(run: Campaign, segment: str) -> RunFolder:
    return RunFolder.adopt(segment, "burnin", {}, run.folder.path / "fleet")


def judge(
    run: Campaign,
    nodes: Sequence[NodeHealth],
    seen: Mapping[str, Seen],
    wanted: Segments,
    passed: Mapping[str, Sequence[str]],
) -> tuple[list[NodeHealth], list[Finding], list[str]]:
    """The nodes with what lies between them; findings of the fabric; what no measurement could tell.
    `passed`: node → the segments it has behind it: one that nobody measured there is an error."""
    judged = list(nodes)
    fabric: list[Finding] = []
    told: list[str] = []
    for segment, checks in wanted.items():
        folder = RunFolder(run.folder.path / "fleet" / segment)
        try:
            members = [str(name) for name in folder.meta().get("nodes", ())]
            bare = [replace(node, checks=()) for node in judged if node.node in members]
            found, more, lines = fleet_pairs.judge(folder, bare, seen)
        except RunFolderError:
            members, found, more, lines = [], (), (), ()
        of = {node.node: node.checks for node in found}
        fabric += more
        told += [f"{segment}: {line}" for line in lines]
        for place, node in enumerate(judged):
            if node.node in of:
                judged[place] = _with(node, segment, of[node.node])
            elif segment in passed.get(node.node, ()):
                said = "nobody attended: gpuprov burnin attach measures it while the nodes wait"
                lost = [
                    CheckResult(check, unmeasured(check, said).verdict, (unmeasured(check, said),), (), 0.0)
                    for check in checks
                ]
                judged[place] = _with(node, segment, lost)
    return judged, fabric, told


def _with(node: NodeHealth, segment: str, more: Iterable[CheckResult]) -> NodeHealth:
    """The node with the findings of a segment; those of one check in several segments together."""
    checks = {check.check: check for check in node.checks}
    for check in more:
        findings = tuple(replace(f, message=f"{segment}: {f.message}") for f in check.findings)
        before = checks.get(check.check)
        if before is not None:
            findings = (*before.findings, *findings)
        verdict = worst(finding.verdict for finding in findings)
        checks[check.check] = replace(check, findings=findings, verdict=verdict)
    verdict = worst([node.verdict, *(check.verdict for check in checks.values())])
    return replace(node, checks=tuple(checks.values()), verdict=verdict)
