"""Judging of a run's pairs from its run folder: findings about nodes and their network.

run.json lists the participants of each check (`pairs`: its nodes, and the others with a reason), pairs.jsonl
the measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import PAIRS
from provision.checks.pairs import groups, pairing
from provision.checks.pairs.judge import CheckBetween, Metric
from provision.checks.pairs.pairing import Outcome, Result, Topology
from provision.desired import vendors
from provision.errors import RunFolderError
from provision.node_names import fold
from provision.runs.store import RunFolder
from provision.text import many, one_line


def topology(nodes: Iterable[str], seen: Mapping[str, NodeFacts]) -> Topology:
    """Return these nodes with their racks. Raises InventoryError."""
    return pairing.topology({node: seen[node].variables for node in nodes})


# Why a node is left out if it is the only one of its vendor.
ALONE = "no other node of the run has GPUs of its vendor, and it is measured with such nodes alone"


@dataclass(frozen=True)
class Team:
    """Nodes measured with each other by `check`, the program for their vendor's GPUs."""

    check: CheckBetween
    nodes: tuple[str, ...]
    vendor: str

    @property
    def name(self) -> str:
        """Return the number of nodes and their GPUs' vendor."""
        vendor = vendors.NAMES.get(self.vendor, "other")
        return f"{many(len(self.nodes), 'node')} with {vendor} GPUs"


def teams(check: str, nodes: Iterable[str], seen: Mapping[str, NodeFacts]) -> list[Team]:
    """Group nodes into teams that are measured together, one per program that their GPUs need.
    Nodes without a program for their GPUs are in no team."""
    teams_by_module: dict[int, Team] = {}
    for node in nodes:
        vendor = seen[node].gpuprov_node["gpu"].get("vendor")
        module = PAIRS.of_vendor(check, vendor)
        if module is not None:
            team = teams_by_module.get(id(module), Team(module, (), str(vendor)))
            teams_by_module[id(module)] = replace(team, nodes=(*team.nodes, node))
    return list(teams_by_module.values())


def apart(found: Sequence[Team]) -> str:
    """Return a line about teams that are measured separately; empty if there is only one."""
    if len(found) < 2:
        return ""
    return f"{' and '.join(team.name for team in found)} are measured apart, each kind among itself"


def of_team(results: Iterable[Result], found: Sequence[Team], place: int) -> list[Result]:
    """Return the results of the team at index `place`; results of unknown nodes go to the first team."""
    where = {node: at for at, team in enumerate(found) for node in team.nodes}
    return [one for one in results if next((where[n] for n in one.nodes if n in where), 0) == place]


def note(folder: RunFolder, check: str, took: Mapping[str, Any]) -> None:
    """Record the participants of a check of pairs in run.json."""
    folder.note(pairs={**noted(folder), check: took})


def keep(folder: RunFolder, check: str, results: Iterable[Result]) -> None:
    """Store a check's measurements of pairs, one line each."""
    for result in results:
        folder.append("pairs", {"check": check, **asdict(result)})


def kept(folder: RunFolder, check: str) -> list[Result]:
    """Return a check's measurements of the run so far. Raises RunFolderError."""
    try:
        rows = [(row.pop("check"), row) for row in folder.read("pairs")]
        return [_result(row) for of, row in rows if of == check]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{folder.path}/pairs.jsonl has a line that is not a result: {error!r}",
            "something else than gpuprov changed the file",
        ) from error


def _result(row: Mapping[str, Any]) -> Result:
    result = Result(**{**row, "nodes": tuple(row["nodes"]), "outcome": Outcome(row["outcome"])})
    texts = (*result.nodes, result.rail, result.unit, result.end, result.said)
    numbers = [one for one in (result.value, result.expected, result.size) if one is not None]
    if not (
        isinstance(row["nodes"], list)
        and type(result.round) is int
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in numbers)
    ):
        raise TypeError("a field is of another type")
    return result


@dataclass(frozen=True)
class Between:
    """Results of a run's pairs; `checks`: of each node (None: the run ended before).
    `fabric`: findings about the network; `told`: lines on what the measurements could not show."""

    checks: tuple[Mapping[str, CheckResult] | None, ...] = ()
    fabric: tuple[Finding, ...] = ()
    told: tuple[str, ...] = ()

    def extended(self, node: NodeHealth) -> NodeHealth:
        """Return the node with the results of its pairs."""
        for checks in self.checks:
            node = _with(node, None if checks is None else checks.get(node.node))
        return node


def between(folder: RunFolder, seen: Mapping[str, NodeFacts]) -> Between:
    """Return the results of the run folder's pairs; empty without pairs. Raises RunFolderError."""
    combined = Between()
    meta = folder.meta()
    for check, of_pairs in PAIRS.items():
        if check in meta.get("asked", ()):
            one = _judged(folder, of_pairs.METRIC, noted(folder).get(check), seen)
            combined = Between(
                (*combined.checks, *one.checks), (*combined.fabric, *one.fabric), (*combined.told, *one.told)
            )
    return combined


def judge(
    folder: RunFolder, nodes: Iterable[NodeHealth], seen: Mapping[str, NodeFacts]
) -> tuple[tuple[NodeHealth, ...], tuple[Finding, ...], tuple[str, ...]]:
    """Return nodes with their pairs' results, findings of the fabric, and lines on what was not measured.
    Nothing changes in a run without pairs."""
    results = between(folder, seen)
    return tuple(map(results.extended, nodes)), results.fabric, results.told


def noted(folder: RunFolder) -> Mapping[str, Any]:
    """Return the participants of each check of pairs from run.json. Raises RunFolderError."""
    participants = folder.meta().get("pairs", {})
    if not isinstance(participants, Mapping):
        raise _not_said(folder, f"a {type(participants).__name__}")
    return participants


def _not_said(folder: RunFolder, why: str) -> RunFolderError:
    return RunFolderError(
        f"{folder.path}/run.json does not list the measured pairs: {why}",
        "something else than gpuprov changed the file",
    )


def _judged(folder: RunFolder, metric: Metric, took: Any, seen: Mapping[str, NodeFacts]) -> Between:
    """Return the results of one check's pairs; `took`: the participants, or None if the run ended before."""
    if took is None:
        return Between((None,))
    able, left_out = took_part(folder, took)
    found_teams = teams(metric.check, [node for node in able if node in seen], seen)
    results = kept(folder, metric.check)
    checks = {node: _left_out(metric, why) for node, why in left_out.items()}
    fabric: tuple[Finding, ...] = ()
    lines_told = (f"{metric.check}: {line}",) if (line := apart(found_teams)) else ()
    for index, team in enumerate(found_teams):
        own, between_them, lines = _of_team(team, of_team(results, found_teams, index), took, seen)
        checks, fabric, lines_told = {**checks, **own}, (*fabric, *between_them), (*lines_told, *lines)
    return Between((checks,), fabric, lines_told)


def _of_team(
    team: Team, results: Sequence[Result], took: Mapping[str, Any], seen: Mapping[str, NodeFacts]
) -> tuple[Mapping[str, CheckResult], tuple[Finding, ...], tuple[str, ...]]:
    metric: Metric = team.check.METRIC
    rounds = max((result.round for result in results), default=0)
    checks, fabric, untold = groups.judged(topology(team.nodes, seen), results, metric)
    versions = took.get("versions")
    own = (
        {node: version for node, version in versions.items() if node in team.nodes}
        if isinstance(versions, Mapping)
        else {}
    )
    lines = (*_several_versions(metric, own), *untold)
    return checks, fabric, (*lines, *_not_met(metric.check, team.nodes, rounds, took.get("round_seconds")))


def _several_versions(metric: Metric, versions: Mapping[Any, Any]) -> Iterator[str]:
    """Yield a warning if the nodes have different versions of the program."""
    nodes: dict[str, list[str]] = {}
    for node, version in versions.items():
        if version:
            nodes.setdefault(str(version), []).append(str(node))
    if len(nodes) > 1:
        each = ", ".join(f"{one_line(version, 40)} on {fold(names, 120)}" for version, names in nodes.items())
        what = f"{metric.program} is of several versions, where both ends should have one"
        yield f"{metric.check}: {what}: {each}"


def _not_met(check: str, members: Sequence[str], rounds: int, seconds: Any) -> Iterator[str]:
    """Yield a line about the cost of measuring the remaining pairs."""
    all_rounds = pairing.exhaustive_rounds(len(members))
    if rounds and rounds < all_rounds and isinstance(seconds, int | float):
        cost = pairing.minutes(all_rounds, seconds)
        yield (
            f"{check}: a link or a path that is bad for one pair alone shows only when that pair meets; "
            f"all pairs take {all_rounds} rounds, about {max(1, round(cost))} min: --pairs all"
        )


def took_part(folder: RunFolder, noted: Any) -> tuple[list[str], dict[str, str]]:
    """Return the nodes to be measured, and the others with a reason. Raises RunFolderError."""
    try:
        left_out = {str(node): str(why) for node, why in noted["left_out"].items()}
        return [str(node) for node in noted["nodes"]], left_out
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_said(folder, repr(error)) from error


def _left_out(metric: Metric, why: str) -> CheckResult:
    skipped = Finding(metric.check, Verdict.SKIP, "node", why, "pairs")
    finding = skipped if why in (metric.no_part, ALONE) else unmeasured(metric.check, why)
    return CheckResult(metric.check, finding.verdict, (finding,), (), 0.0)


def _with(node: NodeHealth, check: CheckResult | None) -> NodeHealth:
    if node.error:
        return node
    if check is None:  # the run ended before: a requested check is missing
        return replace(node, verdict=worst([node.verdict, Verdict.ERROR]))
    alone = [node.verdict] if node.checks else []  # without its own checks a node has no verdict yet
    return replace(node, checks=(*node.checks, check), verdict=worst([*alone, check.verdict]))
