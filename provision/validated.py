"""The newest result of every check on every node: one small file per node beside the run folders.

So what stands of a fleet's validation is found by reading as many files as there are nodes, however many
runs there were. The run folders hold the same (fingerprints.jsonl), run by run; the index of the runs
(run_index.py) holds neither fingerprints nor verdicts check by check, and forgets a run that was removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from provision import fingerprint
from provision.errors import RunFolderError
from provision.fingerprint import Change, Fingerprint
from provision.store import RunFolder, file_name, runs_home

FORMAT = 1  # of a node's file; a newer one is refused politely
FOLDER = "validated"


@dataclass(frozen=True)
class Result:
    """The newest result of one check on one node. `at`: when it was measured, ISO 8601 UTC; `run`: the name
    of the run folder; `known`: the fingerprint of the node then."""

    check: str
    verdict: str
    at: str
    run: str
    known: Fingerprint

    @property
    def vouches(self) -> bool:
        """Whether it speaks for the node: a warning asks for a look and not for a repair."""
        return self.verdict in ("pass", "warn")


@dataclass(frozen=True, slots=True)
class Standing:
    """What one check says of one node now. `result` is None when it never ran there; `changes`: why a result
    no longer counts; `judged`: whether any check judged the node: then one that did not apply is not missed.
    """

    node: str
    check: str
    result: Result | None
    changes: tuple[Change, ...] = ()
    judged: bool = True

    @property
    def holds(self) -> bool:
        if self.result is None or self.changes:
            return False
        return self.result.vouches or (self.result.verdict == "skip" and self.judged)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        result = self.result
        return {
            "node": self.node,
            "check": self.check,
            "verdict": result.verdict if result else None,
            "at": result.at if result else None,
            "run": result.run if result else None,
            "holds": self.holds,
            "changes": [{**asdict(change), "text": str(change)} for change in self.changes],
        }


def standings(
    node: str, checks: Sequence[str], results: Mapping[str, Result], now: Fingerprint
) -> list[Standing]:
    """What the results of a node are worth now (pure): one for each of `checks` and of those that ran."""
    found = []
    judged = any(result.verdict != "skip" for result in results.values())
    for check in dict.fromkeys([*checks, *results]):
        result = results.get(check)
        gone = fingerprint.changes(check, result.known, now) if result else ()
        found.append(Standing(node, check, result, tuple(gone), judged))
    return found


def read(nodes: Collection[str], runs: Path | None = None) -> dict[str, dict[str, Result]]:
    """Node → check → newest result; a node that was never validated has none. Raises RunFolderError."""
    home = (runs or runs_home()) / FOLDER
    return {node: _results(home / f"{file_name(node)}.json") for node in nodes}


def _results(path: Path) -> dict[str, Result]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] > FORMAT:
            raise RunFolderError(f"{path} was written by a newer gpuprov", "upgrade gpuprov")
        known = {name: fingerprint.from_record(record) for name, record in document["fingerprints"].items()}
        return {
            str(check): Result(
                str(check), str(one["verdict"]), str(one["at"]), str(one["run"]), known[one["digest"]]
            )
            for check, one in document["checks"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error!r}", "remove it; the next validate writes it"
        ) from None


def note_look(folder: RunFolder, node: str, known: Fingerprint) -> None:
    """Keep, in the run folder, what a node was like when a run looked at it."""
    folder.append("fingerprints", {"node": node, "digest": known.digest, **known.record()})


def note_result(folder: RunFolder, node: str, check: str, known: Fingerprint, at: str) -> None:
    """Keep, in the run folder, which fingerprint a check's measurements belong to."""
    folder.append("fingerprints", {"node": node, "check": check, "digest": known.digest, "at": at})


def publish(folder: RunFolder, verdicts: Mapping[tuple[str, str], str]) -> None:
    """Make a run's results the newest of their nodes: (node, check) → verdict, of what the run measured.

    A result that is older than the one known does not replace it (a run that was resumed late).
    """
    known: dict[str, dict[str, dict[str, Any]]] = {}
    measured: dict[str, dict[str, dict[str, Any]]] = {}
    for record in folder.read("fingerprints"):
        node, digest = str(record["node"]), str(record["digest"])
        if "check" in record:
            measured.setdefault(node, {})[str(record["check"])] = {"digest": digest, "at": str(record["at"])}
        else:
            known.setdefault(node, {})[digest] = {"values": record["values"], "unknown": record["unknown"]}
    home = folder.path.parent / FOLDER
    with _locked(home):
        for node, checks in measured.items():
            fresh = {
                check: {**one, "verdict": verdicts[node, check], "run": folder.path.name}
                for check, one in checks.items()
                if (node, check) in verdicts and one["digest"] in known.get(node, {})
            }
            if fresh:
                _merge(home / f"{file_name(node)}.json", node, fresh, known[node])


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
    path: Path, node: str, fresh: Mapping[str, dict[str, Any]], known: Mapping[str, dict[str, Any]]
) -> None:
    checks: dict[str, dict[str, Any]] = {}
    kept: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError, TypeError):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] > FORMAT:
            return
        checks, kept = dict(document["checks"]), dict(document["fingerprints"])
    for check, one in fresh.items():
        if check not in checks or checks[check]["at"] <= one["at"]:
            checks[check] = one
    used = {one["digest"] for one in checks.values()}
    fingerprints = {name: record for name, record in {**kept, **known}.items() if name in used}
    document = {"format": FORMAT, "node": node, "checks": checks, "fingerprints": fingerprints}
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, separators=(",", ":"), default=str))
    beside.replace(path)
