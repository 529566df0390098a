"""The faulty devices of each run: one small file per node beside the run folders, with a line per run.

What a run knew of earlier ones is kept in its own folder, so that judging it again gives the same report.
The index of the runs (run_index.py) cannot answer this: these files outlive the run folders, and know a run
that did not measure a node, or was interrupted, from one that found it well. Whatever is damaged in the
history is passed over: it costs an escalation, never a report.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from provision import offenders
from provision.errors import GpuprovError
from provision.health import NodeHealth
from provision.offenders import Past
from provision.store import RunFolder, file_name

FOLDER = "offenders"
_RECALLED = "earlier_runs"
_BLOCK = 4096  # bytes read at once, from the end: a few dozen runs


def recall(folder: RunFolder, nodes: Iterable[NodeHealth]) -> None:
    """Keep in the run folder what earlier runs found on these nodes: all of it or, after a kill, nothing."""
    if (folder.path / f"{_RECALLED}.jsonl").exists():
        return  # a run that goes on: what it knew at first still holds
    home = folder.path.parent / FOLDER
    rows = [
        {"node": node.node, "run": past.run, "bad": sorted(past.bad)}
        for node in nodes
        for past in _read(home / f"{file_name(node.node)}.jsonl", folder.path.name)
    ]
    if rows:
        folder.write(f"{_RECALLED}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def recalled(folder: RunFolder) -> dict[str, list[Past]]:
    """Node → its earlier runs as `recall` kept them, oldest first."""
    found: dict[str, list[Past]] = {}
    with contextlib.suppress(GpuprovError, KeyError, TypeError):
        for record in folder.read(_RECALLED):
            past = Past(str(record["run"]), frozenset(map(str, record["bad"])))
            found.setdefault(str(record["node"]), []).append(past)
    return found


def remember(folder: RunFolder, nodes: Iterable[NodeHealth]) -> None:
    """Add this run to the history of each node that it measured."""
    home = RunFolder(folder.path.parent / FOLDER)
    for node in nodes:
        if node.checks:
            home.append(file_name(node.node), {"run": folder.path.name, "bad": offenders.bad(node)})


def _read(path: Path, present: str) -> Sequence[Past]:
    """The last runs but this one, oldest first; of a run that was resumed, its last word."""
    wanted = offenders.rules().runs - 1
    runs: dict[str, Past] = {}
    with contextlib.suppress(OSError):
        for line in _from_end(path):
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                record = json.loads(line)
                run = str(record["run"])
                if run != present and run not in runs:
                    runs[run] = Past(run, frozenset(map(str, record["bad"])))
            if len(runs) == wanted:
                break
    return list(reversed(runs.values()))


def _from_end(path: Path) -> Iterator[bytes]:
    """The lines of a file, the last one first: of a history of years only the last few runs matter."""
    with path.open("rb", buffering=0) as file:
        start = file.seek(0, os.SEEK_END)
        rest = b""
        while start > 0:
            start, end = max(0, start - _BLOCK), start
            rest, *lines = (os.pread(file.fileno(), end - start, start) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest
