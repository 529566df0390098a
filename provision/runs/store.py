"""Run folders and the history index: plain files and append-only JSON lines, flushed per record.

A kill -9 loses at most the record being written. Only JSON and text are ever read back.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from provision import __version__, atomic_file, bug_file, paths
from provision import text as wording
from provision.errors import RunFolderError
from provision.secrets_mask import HIDDEN, is_secret_name

if TYPE_CHECKING:
    from provision.checks.check import Raw

FORMAT = 1  # format in run.json; a newer one is rejected with advice

HISTORY = "history.jsonl"
_HISTORY_FIELDS = ("verb", "started", "finished", "exit_code", "inventory", "counts")


def runs_home() -> Path:
    """Return the folder of run folders: GPUPROV_RUNS, else `runs` in the state folder."""
    chosen = os.environ.get("GPUPROV_RUNS")
    return Path(chosen) if chosen else paths.state_home() / "runs"


class RunFolder:
    """One invocation's folder: `<runs>/<UTC time>-<verb>/`.

    run.json (format, verb, arguments, started, finished, exit code) · plan.json · events.jsonl · facts.jsonl
    · drifts.jsonl · raw/<node>/<check>.json · measurements.jsonl · findings.jsonl · report.json/html/md/xml
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        """Return the run's name on nodes and for hooks, unique even if two controllers start together."""
        return f"{self.path.name}@{self.meta().get('controller', '')}"

    @classmethod
    def create(cls, verb: str, arguments: Mapping[str, Any], runs: Path | None = None) -> RunFolder:
        """Create a folder below `runs` (default: GPUPROV_RUNS, else the state folder), mode 0700."""
        home = runs or runs_home()
        with _folders_of(home):
            _make_folder(home)
            folder = cls(_new_folder(home, verb))
            folder._begin(verb, arguments, wording.now())
        bug_file.keep_in(folder.path)
        return folder

    @classmethod
    def adopt(cls, name: str, verb: str, arguments: Mapping[str, Any], runs: Path | None = None) -> RunFolder:
        """Return the local folder for a run that another machine started under `name`; create it if missing.
        The caller must ensure that the name is safe."""
        home = runs or runs_home()
        with _folders_of(home):
            _make_folder(home / name)
            folder = cls(home / name)
            if not (folder.path / "run.json").exists():
                folder._begin(verb, arguments, None)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing folder. Raises RunFolderError if it is unreadable or of a newer format."""
        folder = cls(Path(path))
        written = folder.meta().get("format")
        if not isinstance(written, int):
            raise RunFolderError(f"{path}/run.json has no format number", "is this a gpuprov run folder?")
        if written > FORMAT:
            raise RunFolderError(
                f"{path} was written by a newer gpuprov (format {written}, this one reads up to {FORMAT})",
                "upgrade gpuprov: pip install --upgrade gpuprov",
            )
        return folder

    def meta(self) -> dict[str, Any]:
        """Return run.json: format, verb, arguments, started, finished, exit_code, and noted fields."""
        try:
            document = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(f"{self.path} is not a run folder: it has no run.json") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{self.path}/run.json cannot be read: {error}") from error
        if not isinstance(document, dict):
            raise RunFolderError(f"{self.path}/run.json is not an object", "is this a gpuprov run folder?")
        return document

    def note(self, **fields: Any) -> None:
        """Add fields to run.json (the inventory, the nodes, the point of failure) of the current run."""
        bug_file.keep_in(self.path)
        self._write_meta({**self.meta(), **fields})

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Append one line to `<name>.jsonl`, flushed to the kernel before returning."""
        self.append_all(name, [record])

    def append_all(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Append a line per record, without lines of other processes in between.
        Opening and locking the file costs several times as much as a line; a check has a hundred."""
        with self.lines(name) as lines:
            lines.append(without_secrets(record) for record in records)

    def lines(self, name: str) -> Lines:
        """Open `<name>.jsonl` for many records, which must have passed `without_secrets`."""
        path = self._inside(f"{name}.jsonl")
        _make_folder(path.parent)
        return Lines(path)

    def read(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the records of `<name>.jsonl`, without a truncated last line; nothing if it is missing."""
        return (record for _, record in self.placed(name))

    def placed(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield records as `read` does, each with its byte offset for `record_at`."""
        path = self._inside(f"{name}.jsonl")
        try:
            with path.open("rb") as lines:
                yield from records(path, lines)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error

    def record_at(self, name: str, place: int) -> dict[str, Any]:
        """Return the record of `<name>.jsonl` at a byte offset. Raises RunFolderError."""
        path = self._inside(f"{name}.jsonl")
        try:
            with path.open("rb") as lines:
                lines.seek(place)
                return dict(json.loads(lines.readline().decode(errors="replace")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunFolderError(f"{path} was changed while it was read: {error}") from error

    def write(self, name: str, text: str | Iterable[str]) -> Path:
        """Write a whole file atomically, from its text or pieces of it; `name` may contain a subfolder."""
        path = self._inside(name)
        _make_folder(path.parent)
        return atomic_file.write(path, text)

    def write_json(self, name: str, document: Mapping[str, Any]) -> Path:
        """Write a whole JSON file atomically; values of keys named like secrets are hidden."""
        return self.write(name, json.dumps(without_secrets(document), indent=1, default=str) + "\n")

    def finish(self, exit_code: int) -> None:
        """Record the end in run.json and add a row to the history index."""
        meta = {**self.meta(), "finished": wording.now(), "exit_code": int(exit_code)}
        self._write_meta(meta)
        row = {key: meta.get(key) for key in _HISTORY_FIELDS}
        with Lines(self.path.parent / HISTORY) as lines:
            lines.append([{"run": self.path.name, **row}])

    def _begin(self, verb: str, arguments: Mapping[str, Any], started: str | None) -> None:
        meta = {"format": FORMAT, "gpuprov": __version__, "verb": verb, "arguments": dict(arguments)}
        meta |= {"controller": os.uname().nodename, "started": started, "finished": None, "exit_code": None}
        self._write_meta(meta)

    def _write_meta(self, meta: Mapping[str, Any]) -> None:
        self.write_json("run.json", meta)

    def _inside(self, name: str) -> Path:
        """Return the path of `name` below this folder.
        A name with `..` is a bug of the caller, since node names pass through file_name."""
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise ValueError(f"not a name inside a run folder: {name!r}")
        return self.path.joinpath(*parts)


def latest(verb: str | None = None, runs: Path | None = None) -> RunFolder:
    """Return the newest run (of `verb`). Raises RunFolderError if none is stored."""
    home = runs or runs_home()
    folders = sorted((path for path in home.glob("*Z-*") if (path / "run.json").is_file()), reverse=True)
    for path in folders:
        if verb is None or path.name.partition("Z-")[2] == verb:
            return RunFolder.open(path)
    raise RunFolderError(
        f"there is no {verb + ' ' if verb else ''}run in {home}",
        "set GPUPROV_RUNS if the runs are in another folder",
    )


@contextlib.contextmanager
def _folders_of(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot make a run folder in {home}: {error.strerror}",
            "point GPUPROV_RUNS to a folder you may write",
        ) from error


def _new_folder(home: Path, verb: str) -> Path:
    while True:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
        path = home / f"{stamp}Z-{verb}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            time.sleep(0.001)  # the name has milliseconds, and names sort by time
            continue
        return path


def _make_folder(path: Path) -> None:
    """Create a folder like `mkdir -p`, but with mode 0700 at every level."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


_SCALARS = frozenset((str, int, bool, float, type(None)))  # most values: 10,000 nodes have millions


def without_secrets(value: Any) -> Any:
    """Return `value` with the values of keys named like secrets hidden; a last line of defence."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {
            str(key): HIDDEN
            if isinstance(inner, str) and inner and is_secret_name(str(key))
            else inner
            if type(inner) in _SCALARS
            else without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return value


# --- files of JSON lines: whole lines are appended, and read back line by line. A kill -9 loses at most the
# line being written, and several processes may append to one file.


class Lines:
    """An append-only file of records, kept open for several appends and created with the first record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append a line per record, without lines of other processes in between.
        The lines are in the kernel before it returns, so a kill loses at most the one being written."""
        text = "".join(json.dumps(record, separators=(",", ":"), default=str) + "\n" for record in records)
        if not text:
            return
        left = text.encode()
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            _drop_torn_tail(self._file)
            while left:
                left = left[os.write(self._file, left) :]
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _drop_torn_tail(file: int) -> None:
    """Remove a last line that a kill left unfinished, so that the next line does not become part of it."""
    end = os.fstat(file).st_size
    if end == 0 or os.pread(file, 1, end - 1) == b"\n":
        return
    position, keep = end, 0
    while position > 0:
        start = max(0, position - 65536)
        newline = os.pread(file, position - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        position = start
    os.ftruncate(file, keep)


def records(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record of an open file with its byte offset, without a truncated last line.

    Raises RunFolderError for an earlier line that is not JSON.
    """
    torn: int | None = None
    offset = 0
    for number, line in enumerate(lines, 1):
        begin, offset = offset, offset + len(line)
        if torn is not None:
            raise RunFolderError(f"{path}:{torn} is not JSON", "something else than gpuprov changed the file")
        try:
            record = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            torn = number  # only the last line may be truncated
            continue
        if isinstance(record, dict):
            yield begin, record


# --- the raw output of checks: stored before it is judged, and read again


def keep_raw(folder: RunFolder, raw: Raw) -> None:
    """Store raw output before it is judged."""
    folder.write_json(raw.path, {"format": 1, **asdict(raw)})


def read_raw(folder: RunFolder, node: str, check: str) -> Raw | None:
    """Return raw output stored by an earlier run; None if it is missing.
    For a damaged file the result has an `error`. Raises RunFolderError for a file of a newer gpuprov."""
    from provision.checks.check import (  # imported here, because `up` stores runs without any check
        Output,
        Raw,
        raw_path,
    )

    path = folder.path / raw_path(node, check)
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
        if document.pop("format") > 1:
            raise RunFolderError(f"{path} was written by a newer gpuprov", "upgrade gpuprov")
        outputs = tuple(Output(**{**row, "argv": tuple(row["argv"])}) for row in document.pop("outputs"))
        if not all(isinstance(text, str) for one in outputs for text in (one.name, one.stdout, one.stderr)):
            raise TypeError("an output is not text")
        return Raw(**{**document, "node": node, "check": check, "outputs": outputs})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Raw(node, check, error=f"{path} is damaged: {error!r}; validate --resume measures it again")
