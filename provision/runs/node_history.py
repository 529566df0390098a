"""History of nodes: their newest result of each check, their last runs, and every run's verdicts.

It consists of two files. `verdicts.json` in a run folder has the run's verdicts, and is deleted with the
folder. `validated/<node>.json` next to the run folders outlives them: the node's newest results, each with
the fingerprint it depends on, and the bad devices of its last runs. One lock guards these files.

A run's view of earlier runs is stored in its own folder (earlier_runs.jsonl), so that judging it again gives
the same report. Damaged files cost a comparison or an escalation, never a report; only `read` reports them,
because "damaged" must not be taken for "never validated".
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.checks import health
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.checks.judging import offenders
from provision.checks.judging.offenders import Past
from provision.errors import GpuprovError, RunFolderError
from provision.node_names import file_name
from provision.runs import fingerprint
from provision.runs.fingerprint import Fingerprint, Result
from provision.runs.store import RunFolder, runs_home

FORMAT = 1  # of both files; a newer one is rejected with advice
FOLDER = "validated"
FOLDER_OF_OLD = "offenders"  # folder of older versions: <node>.jsonl, a line for each run
VERDICTS = "verdicts.json"
BAD = (Verdict.FAIL, Verdict.ERROR)  # unknown is not healthy
_EARLIER_RUNS = "earlier_runs"
_RUNS = 20  # runs kept per node: more than data/offenders.yml uses
_LOOKED = 100  # earlier runs to search by their run.json
_READ = 5  # earlier runs that are loaded, since a run of some nodes hides the others' last verdict
_DAMAGED = (GpuprovError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


# --- records of one run


def note_look(folder: RunFolder, node: str, known: Fingerprint) -> None:
    """Record the observed state of a node in the run folder."""
    folder.append("fingerprints", {"node": node, "digest": known.digest, **known.record()})


def note_result(folder: RunFolder, node: str, check: str, known: Fingerprint, at: str) -> None:
    """Record in the run folder which fingerprint a check's measurements belong to."""
    folder.append("fingerprints", {"node": node, "check": check, "digest": known.digest, "at": at})


def record(
    folder: RunFolder, verdicts: Mapping[tuple[str, str], str], fleet: FleetHealth | None = None
) -> None:
    """Add a run to the history of its nodes. Raises RunFolderError if it cannot be written.

    `verdicts`: (node, check) → verdict; a measured result becomes the newest unless a newer one is stored
    (after a late resumption). `fleet`: the report, once the run is over.
    """
    looked: dict[str, dict[str, Any]] = {}
    fresh: dict[str, dict[str, Any]] = {}
    for row in folder.read("fingerprints"):
        node, digest = str(row["node"]), str(row["digest"])
        if "check" not in row:
            looked.setdefault(node, {})[digest] = {"values": row["values"], "unknown": row["unknown"]}
        elif (verdict := verdicts.get((node, row["check"]))) and digest in looked.get(node, {}):
            result = {"digest": digest, "at": str(row["at"]), "verdict": verdict, "run": folder.path.name}
            fresh.setdefault(node, {})[row["check"]] = result
    name = folder.path.name
    nodes = [node for node in fleet.nodes if node.checks] if fleet else []
    past = {node.node: offenders.past_from(name, node, _names(node)).record() for node in nodes}
    home = folder.path.parent
    with _locked(home / FOLDER):
        for node in dict.fromkeys((*fresh, *past)):
            run = [past[node]] if node in past else []
            _merge(home, node, fresh.get(node, {}), looked.get(node, {}), run)
    if fleet is not None and not fleet.interrupted:
        _keep_verdicts(folder, fleet)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(home / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RunFolderError(
            f"{home} cannot be written: {error.strerror}", "GPUPROV_RUNS sets the folder of the runs"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _merge(
    home: Path, node: str, fresh: Mapping[str, Any], looked: Mapping[str, Any], run: list[dict[str, Any]]
) -> None:
    path = _file(home, node)
    document = _document(path)
    checks: dict[str, Any] = {}
    known: dict[str, Any] = {}
    with contextlib.suppress(*_DAMAGED):
        if document["format"] > FORMAT:
            return
        known = dict(document["fingerprints"])
        checks = {c: one for c, one in document["checks"].items() if one["at"] and one["digest"] in known}
    for check, one in fresh.items():
        if check not in checks or checks[check]["at"] <= one["at"]:
            checks[check] = one
    used = {one["digest"] for one in checks.values()}
    runs = [past.record() for past in _past(home, node, document, run)]
    document = {
        "format": FORMAT,
        "node": node,
        "checks": checks,
        "fingerprints": {name: one for name, one in {**known, **looked}.items() if name in used},
        "runs": runs[-_RUNS:],
    }
    text = json.dumps(document, separators=(",", ":"), default=str)
    atomic_file.write(path, text, sync=False)  # not synced: up to ten thousand files


def _names(node: NodeHealth) -> list[str]:
    return [check.check for check in node.checks]


def _file(home: Path, node: str) -> Path:
    return home / FOLDER / f"{file_name(node)}.json"


def _document(path: Path) -> dict[str, Any]:
    """Return a node's file; empty if missing or unreadable."""
    with contextlib.suppress(*_DAMAGED):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


# --- the newest result of each check


def read(nodes: Collection[str], runs: Path | None = None) -> dict[str, dict[str, Result]]:
    """Return node → check → newest result; empty for a node never validated. Raises RunFolderError."""
    home = runs or runs_home()
    return {node: _results(_file(home, node)) for node in nodes}


def _results(path: Path) -> dict[str, Result]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] > FORMAT:
            raise RunFolderError(f"{path} was written by a newer gpuprov", "upgrade gpuprov")
        fingerprints = {name: fingerprint.from_record(one) for name, one in document["fingerprints"].items()}
        return {
            str(check): Result(
                str(check), str(one["verdict"]), str(one["at"]), str(one["run"]), fingerprints[one["digest"]]
            )
            for check, one in document["checks"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error!r}", "remove it; the next validate writes it"
        ) from None


# --- the last runs of each node, to find devices that fail repeatedly


def recall(folder: RunFolder, nodes: Iterable[str]) -> None:
    """Store earlier runs' findings on these nodes in the run folder, atomically."""
    if (folder.path / f"{_EARLIER_RUNS}.jsonl").exists():
        return  # a resumed run keeps its first view
    home, few = folder.path.parent, offenders.rules().runs - 1
    rows: list[dict[str, Any]] = []
    for node in nodes:
        past = [one for one in _past(home, node, _document(_file(home, node))) if one.run != folder.path.name]
        count = _RUNS if any(one.bad for one in past) else few  # a node that was never bad is not escalated
        rows += ({"node": node, **one.record()} for one in past[-count:])
    if rows:
        folder.write(f"{_EARLIER_RUNS}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def recalled(folder: RunFolder) -> dict[str, list[Past]]:
    """Return node → earlier runs as stored by `recall`, oldest first."""
    pasts: dict[str, list[Past]] = {}
    with contextlib.suppress(GpuprovError, KeyError, TypeError):
        for row in folder.read(_EARLIER_RUNS):
            pasts.setdefault(str(row["node"]), []).append(offenders.past_of(row))
    return pasts


def _past(home: Path, node: str, document: Mapping[str, Any], more: Sequence[Any] = ()) -> list[Past]:
    """Return the runs in a node's `document` and in `more`, oldest first; a resumed run counts once."""
    rows = document.get("runs")
    if not isinstance(rows, list):
        rows = _old_rows(home / FOLDER_OF_OLD / f"{file_name(node)}.jsonl")
    by_run: dict[str, Past] = {}
    for row in (*rows, *more):
        with contextlib.suppress(KeyError, TypeError):
            past = offenders.past_of(row)
            by_run.pop(past.run, None)
            by_run[past.run] = past
    return list(by_run.values())


def _old_rows(path: Path) -> Iterator[Any]:
    """Yield rows of an older version, until this version first writes the node's file."""
    with contextlib.suppress(OSError):
        for line in path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


# --- the verdicts of each run


@dataclass(frozen=True)
class Earlier:
    """Results of earlier runs of the same checks on the same inventory.

    `fleet`: each node as last judged, with its non-passing findings only; `run_id` and `started` are from the
    newest run. `names`: the nodes of the newest run. `since`: bad node → start (ISO 8601 UTC) of the first of
    the consecutive runs that found it bad.
    """

    fleet: FleetHealth
    names: frozenset[str]
    since: Mapping[str, str]


def _keep_verdicts(folder: RunFolder, fleet: FleetHealth) -> None:
    """Store the verdicts for the next run, since loading a whole report of ten thousand nodes is slow."""
    before = earlier(folder, fleet)
    known = before.since if before else {}
    since = {node.node: known.get(node.node, fleet.started) for node in fleet.nodes if node.verdict in BAD}
    report = health.to_json(replace(fleet, nodes=tuple(_short(node) for node in fleet.nodes)))
    folder.write_json(VERDICTS, {"format": FORMAT, "since": since, "report": report})


def _short(node: NodeHealth) -> NodeHealth:
    """Return a node reduced to its non-passing findings."""
    checks = []
    for check in node.checks:
        wrong = [replace(f, evidence=()) for f in check.wrong]
        if wrong:
            checks.append(replace(check, findings=tuple(wrong), measurements=()))
    # Later runs compare which device it was, and in which boot.
    gpus, kept = (node.gpus, {"boot"} & node.facts.keys()) if checks else ((), set())
    return replace(node, checks=tuple(checks), gpus=gpus, facts={key: node.facts[key] for key in kept})


def earlier(folder: RunFolder, fleet: FleetHealth) -> Earlier | None:
    """Return the results of earlier runs for these nodes; None if there is no comparable run."""
    missing = {node.node for node in fleet.nodes}
    newest: Earlier | None = None
    nodes: dict[str, NodeHealth] = {}
    since: dict[str, str] = {}
    for _, earlier_run in zip(range(_READ), _before(folder, fleet), strict=False):
        newest = newest or earlier_run
        for node in earlier_run.fleet.nodes:
            if node.node not in nodes and (node.node in missing or earlier_run is newest):
                nodes[node.node] = node
                if node.node in earlier_run.since:
                    since[node.node] = earlier_run.since[node.node]
        missing -= earlier_run.names
        if not missing:
            break
    if newest is None:
        return None
    return Earlier(replace(newest.fleet, nodes=tuple(nodes.values())), newest.names, since)


def _before(folder: RunFolder, fleet: FleetHealth) -> Iterator[Earlier]:
    """Yield earlier runs of the same checks on the same inventory, newest first."""
    verb = folder.path.name.partition("Z-")[2]
    earlier = [path for path in _runs(folder.path.parent, verb) if path.name < folder.path.name]
    for path in reversed(earlier[-_LOOKED:]):
        with contextlib.suppress(*_DAMAGED):
            meta = RunFolder(path).meta()
            if meta.get("inventory") == fleet.inventory and set(meta.get("asked", ())) == set(fleet.asked):
                document = _verdicts(path)
                before = health.from_json(document["report"])
                since = {str(node): str(moment) for node, moment in document["since"].items()}
                yield Earlier(before, frozenset(node.node for node in before.nodes), since)


def _runs(home: Path, verb: str = "*") -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(home.glob(f"*Z-{verb}"))
    return []


def _verdicts(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / VERDICTS).read_text(encoding="utf-8"))
    if document["format"] != FORMAT:
        raise ValueError("written by another version")
    return document


# --- all runs together


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run's result for a node. `started`: ISO 8601 UTC."""

    run: str
    started: str
    verdict: str
    past: Past


@dataclass(frozen=True)
class Repeat:
    """A device's fault (check.metric) that appeared `times` times in `runs` runs that measured it."""

    node: str
    device: str
    fault: str
    times: int
    runs: int


def node_runs(home: Path | None = None) -> dict[str, list[NodeRun]]:
    """Return node → results of each completed run, oldest first."""
    runs: dict[str, list[NodeRun]] = {}
    for path in _runs(home or runs_home()):
        with contextlib.suppress(*_DAMAGED):
            report = _verdicts(path)["report"]
            started, checks = str(report["started"]), tuple(map(str, report["asked"]))
            results = {
                str(node["node"]): NodeRun(
                    path.name,
                    started,
                    Verdict(node["verdict"]).value,
                    offenders.past_from(path.name, health.node_from(node), checks),
                )
                for node in report["nodes"]
            }
            for name, one in results.items():
                runs.setdefault(name, []).append(one)
    return runs


def flips(runs: Sequence[NodeRun]) -> int:
    """Count the changes of a node's verdict from run to run; skipped runs do not count."""
    verdicts = [run.verdict for run in runs if run.verdict != Verdict.SKIP]
    return sum(one != other for one, other in itertools.pairwise(verdicts))


def repeats(node: str, runs: Sequence[NodeRun]) -> list[Repeat]:
    """Return faults that recurred often enough after a repair to be investigated, most frequent first."""
    use = offenders.rules()
    past = [run.past for run in runs[-_RUNS:]]
    repeated = []
    for name in {name for one in past for name in one.bad}:
        times = len(offenders.appearances(name, past, use))
        if times >= use.investigate:
            device, _, kind = name.rpartition(" ")
            check = kind.partition(".")[0]
            measured = sum(name in one.bad or check in one.measured for one in past)
            repeated.append(Repeat(node, device, kind, times, measured))
    return sorted(repeated, key=lambda one: (-one.times, one.device, one.fault))
