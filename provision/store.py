"""The run folder and the history index: plain files, append-only JSON lines, flushed per record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1  # written into run.json; a newer one is refused politely


class RunFolder:
    """One invocation's folder: `<runs>/<UTC time>-<verb>/`.

    run.json (format, verb, arguments, started, finished, exit code) · plan.json · events.jsonl · facts.jsonl ·
    drifts.jsonl · raw/<node>/<check>.json · measurements.jsonl · findings.jsonl · report.json/html/md/xml
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, verb: str, arguments: Mapping[str, Any], runs: Path | None = None) -> RunFolder:
        """A new folder below `runs` (default: GPUPROV_RUNS, else the state folder), mode 0700."""
        raise NotImplementedError

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing one. Raises RunFolderError when unreadable or of a newer format."""
        raise NotImplementedError

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """One line to `<name>.jsonl`, flushed to the kernel before returning."""
        raise NotImplementedError

    def read(self, name: str) -> Iterator[dict[str, Any]]:
        """The records of `<name>.jsonl`; a last line cut by a kill is passed over."""
        raise NotImplementedError

    def write(self, name: str, text: str) -> Path:
        """A whole file at once (written beside, then renamed). `name` may hold a subfolder."""
        raise NotImplementedError

    def finish(self, exit_code: int) -> None:
        """Note the end in run.json and one row in the history index."""
        raise NotImplementedError


def latest(verb: str | None = None, runs: Path | None = None) -> RunFolder:
    """The newest run (of `verb`). Raises RunFolderError when there is none."""
    raise NotImplementedError
