"""Persistent state of the watch: one file for each incident, and the state derived from all of them.

    incidents/<id>.json    a failed node, and the progress of its replacement
    last-number            number of the last change of a node's role
    returns/<id>.json      progress of `gpuprov return` for that node
    lease.json             identity of this watch in its leases (lease.py), and the watch it follows
    nodes.json             the watched nodes and their inventory
    validated.json         time and verdict of each spare's last validation
    history.jsonl          each change of a node's health
    outbox/<id>.json       a message not yet delivered to all receivers (tell.py)
    alerts/<id>.json       an open alert in Alertmanager (alerts.py)

An incident's `step` names the **next** action, and is written before it is done. Every step is idempotent, so
a watch that was killed resumes each incident at its step. Files are replaced atomically; people may read
them, and a newer format is refused."""

from __future__ import annotations

import contextlib
import datetime
import enum
import fcntl
import hashlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from provision import atomic_file, paths
from provision.errors import GpuprovError, RunFolderError
from provision.fleet import Fleet, sources
from provision.node_names import fold
from provision.remote.schedulers import PREFIX

FORMAT = 1
SPARE = "spare"  # a waiting spare's reason in its scheduler
_NODES = "nodes.json"
_HISTORY = 64 * 1024 * 1024  # bytes of history.jsonl before it is rotated; one old file is kept


class Step(enum.StrEnum):
    """The next action."""

    DRAIN = "drain"
    CHOOSE = "choose"  # a spare; waits here until one is ready
    VERIFY = "verify"
    PLACE = "place"
    EVIDENCE = "evidence"
    REPAIR = "repair"  # the node waits for people: `gpuprov return`
    CLOSED = "closed"


@dataclass(frozen=True)
class Incident:
    """One failed node. Times are seconds since 1970.

    `cause`: one line for people; `action`, `device`, `serial`: of the finding. `spare`: the node that takes
    its place (chosen from step `verify` on); `tried`: rejected spares; `pools`: those the spare was added to.
    `was_spare`: it failed while waiting, so nothing replaces it. `placed`, `closed`, `returned`: times.
    `note`: reason for the current step. `returning`: progress of `gpuprov return`, part → time it passed.
    `number`, `placed_number`, `returned_number`: order of role changes, independent of the clock
    (Store.next_number); 0 in incidents of an earlier gpuprov, whose changes come first, by time."""

    id: str
    node: str
    opened: float
    step: Step
    cause: str
    action: str = "investigate"
    device: str = "node"
    serial: str = ""
    spare: str = ""
    tried: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    was_spare: bool = False
    drained: float | None = None
    placed: float | None = None
    closed: float | None = None
    note: str = ""
    returned: float | None = None
    returning: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    placed_number: int = 0
    returned_number: int = 0

    @property
    def reason(self) -> str:
        """Reason for the scheduler; the id comes first, so that each watch recognises its drains."""
        return f"{self.id} {self.cause}"

    @property
    def is_open(self) -> bool:
        """Whether the watch has work left for it."""
        return self.step not in (Step.REPAIR, Step.CLOSED)

    @property
    def holds_node(self) -> bool:
        """Whether the node is out of service because of it."""
        return self.step is not Step.CLOSED and self.returned is None

    @property
    def holds_spare(self) -> bool:
        """Whether its spare is about to go into service, after which it is an ordinary node."""
        return bool(self.spare) and self.is_open and self.placed is None


def new(node: str, at: float, cause: str, **more: Any) -> Incident:
    """Create an incident named after time and node.

    Random bits distinguish it from another watch's incident for the same node in the same second."""
    stamp = datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", node)[:60]
    return Incident(f"{stamp}-{plain}-{secrets.token_hex(4)}", node, at, Step.DRAIN, cause, **more)


# A reason set by a run of gpuprov: of an `up`, a burn-in, a spare or an incident of the watch.
_OF_A_RUN = re.compile(r"(?:\([^)]*\) )?(?:up |burn-in |spare\b|\d{8}T\d{6}Z-)")


def by_the_node_itself(reason: str) -> bool:
    """Return whether a node was drained by its own health program (role slurm_health, NHC).

    Its reason begins like every reason of gpuprov. The watch continues from there."""
    return reason.startswith(PREFIX) and _OF_A_RUN.match(reason, len(PREFIX)) is None


def place_of(fleet: Fleet) -> Path:
    """Return the watch's folder for this inventory."""
    whole = fleet.place
    if len(sources(fleet.source)) > 1:
        whole = ",".join(sorted(whole.split(",")))  # independent of the order of inventories
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", Path(whole).name)[:60]
    return paths.state_home() / "watch" / f"{plain}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def elsewhere(place: Path, fleet: Fleet) -> tuple[str, str]:
    """Return nodes of `fleet` that a running watch with another folder has, and its inventory options.

    Both are "" if there is none. Each choice of inventories has its own folder, so two watches share no
    state."""
    mine = _reached(fleet)
    for path in sorted(place.parent.glob(f"*/{_NODES}")):
        with contextlib.suppress(RunFolderError, OSError, KeyError, TypeError, AttributeError):
            said = _read(path)
            both = [name for name, address in said["nodes"].items() if mine.get(name) == address]
            if both and path.parent != place and is_locked(path.parent / "lock"):
                options = [word for file in sources(Path(said["inventory"])) for word in ("-i", str(file))]
                return fold(both, 200), shlex.join(options)
    return "", ""


def _reached(fleet: Fleet) -> dict[str, str]:
    return {name: str(node.variables.get("ansible_host") or name) for name, node in fleet.nodes.items()}


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Store:
    """The folder of one watch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # modification times of the folders, and their incidents at that time
        self._known: tuple[tuple[int, ...], list[Incident]] = ((), [])
        self.damaged: dict[str, str] = {}  # incident → why its file cannot be read

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other watches on this machine; the kernel unlocks it if we are killed."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                raise GpuprovError(
                    f"this fleet is already watched by process {holder or 'unknown'}",
                    "stop that one first: systemctl stop gpuprov-watch",
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            for folder in ("incidents", "outbox", "alerts", "returns"):
                (self.path / folder).mkdir(exist_ok=True, mode=0o700)
            # Remove files left half-written by a kill. (In `returns` another process may be writing now.)
            for folder in ("incidents", "outbox", "alerts"):
                for half in self.path.glob(f"{folder}/.*.json.*"):
                    half.unlink(missing_ok=True)
            yield
        finally:
            os.close(descriptor)

    def is_watched(self) -> bool:
        """Return whether a watch of this machine holds the folder now."""
        with contextlib.suppress(OSError):
            return is_locked(self.path / "lock")
        return False

    def announce(self, fleet: Fleet) -> None:
        """Record the nodes watched from here. Raises GpuprovError if another watch has one."""
        self._replace(_NODES, {"format": FORMAT, "inventory": fleet.place, "nodes": _reached(fleet)})
        names, options = elsewhere(self.path, fleet)
        if names:
            raise GpuprovError(
                f"{names}: already watched, with {options}",
                "stop that watch first, or name the same inventories",
            )

    def incidents(self) -> list[Incident]:
        """Return readable incidents by time; `damaged` has the others. Raises RunFolderError if too new."""
        folder, returns = self.path / "incidents", self.path / "returns"
        # Each file is replaced by renaming, which changes its folder's modification time.
        changed = tuple(one.stat().st_mtime_ns if one.is_dir() else 0 for one in (folder, returns))
        if changed != self._known[0] or self.damaged:  # a file may be repaired in place
            found, damaged = [], {}
            for path in sorted(folder.glob("[!.]*.json")):
                try:
                    found.append(_incident(path, returns / path.name))
                except _DamagedError as error:
                    damaged[path.stem] = f"{error.what}; {error.fix}"
            self._known = (changed, sorted(found, key=lambda one: (one.number, one.opened, one.id)))
            self.damaged = damaged
        return list(self._known[1])

    def next_number(self) -> int:
        """Return a number above all earlier ones, to order role changes despite clock steps.

        Raises RunFolderError if it cannot be stored."""
        path = self.path / "last-number"
        known = [max(one.number, one.placed_number, one.returned_number) for one in self.incidents()]
        with _kept(path), path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # `gpuprov return` is a separate process
            file.seek(0)
            text = file.read().strip()
            number = max([int(text) if text.isdecimal() else 0, *known]) + 1
            file.truncate(0)
            file.write(f"{number}\n")
            file.flush()
            os.fsync(file.fileno())
        return number

    def write(self, incident: Incident) -> None:
        """Store the incident. Raises RunFolderError if that fails."""
        document = {name: value for name, value in asdict(incident).items() if name not in _OF_RETURN}
        self._replace(f"incidents/{incident.id}.json", {"format": FORMAT, **document})

    def write_return(self, incident: Incident) -> None:
        """Store the progress of the node's return, in a separate file because a watch may write the other."""
        document = {name: value for name, value in asdict(incident).items() if name in _OF_RETURN}
        self._replace(f"returns/{incident.id}.json", {"format": FORMAT, **document})

    def validated(self) -> dict[str, dict[str, Any]]:
        """Return spare → {at, verdict, run} of its last validation; empty (all are due) if unreadable."""
        try:
            found = _read(self.path / "validated.json")
        except _DamagedError:
            return {}
        return {str(name): one for name, one in found.get("nodes", {}).items() if isinstance(one, dict)}

    def write_validated(self, node: str, at: float, verdict: str, run: str) -> None:
        nodes = {**self.validated(), node: {"at": at, "verdict": verdict, "run": run}}
        self._replace("validated.json", {"format": FORMAT, "nodes": nodes})

    def lease(self) -> dict[str, Any]:
        """Return the data stored by `write_lease`; empty before that. Raises RunFolderError."""
        return _read(self.path / "lease.json")

    def write_lease(self, document: Mapping[str, Any]) -> None:
        self._replace("lease.json", {"format": FORMAT, **document})

    def remember(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append to the history of health."""
        path = self.path / "history.jsonl"
        with _kept(path):
            if path.exists() and path.stat().st_size > _HISTORY:
                path.replace(path.with_suffix(".1.jsonl"))
            with path.open("ab+") as file:
                if (end := file.seek(0, os.SEEK_END)) and os.pread(file.fileno(), 1, end - 1) != b"\n":
                    file.write(b"\n")  # terminates a line cut off by a kill or a full disk
                file.write("".join(json.dumps(row) + "\n" for row in rows).encode("ascii"))

    def _replace(self, name: str, document: Mapping[str, Any]) -> None:
        path = self.path / name
        with _kept(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_file.write(path, json.dumps(document, indent=2) + "\n")


@contextlib.contextmanager
def _kept(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror}",
            "free some space, or make the folder writable for this user",
        ) from None


class _DamagedError(RunFolderError):
    pass


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise _DamagedError(f"{path} cannot be read: {error}", "restore it, or move it away") from None
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise _DamagedError(f"{path} was not written by gpuprov", "move it away")
    if document["format"] > FORMAT:
        raise RunFolderError(f"{path} was written by a newer gpuprov", "update gpuprov here")
    return document


_KNOWN = {one.name for one in fields(Incident)}
_OF_RETURN = ("returned", "returning", "returned_number")
_TEXTS = ("node", "cause", "action", "device", "serial", "spare", "note")
_NUMBERS = ("number", "placed_number", "returned_number")
_TIMES = ("drained", "placed", "closed", "returned")


def _incident(path: Path, back: Path) -> Incident:
    document, more = _read(path), _read(back)
    document |= {name: more[name] for name in _OF_RETURN if name in more}
    try:
        known = {name: value for name, value in document.items() if name in _KNOWN}
        known |= {name: tuple(known.get(name, ())) for name in ("tried", "pools")}
        known["step"] = Step(known["step"])
        found = Incident(**known)
        texts = [getattr(found, name) for name in _TEXTS]
        times = [at for name in _TIMES if (at := getattr(found, name)) is not None]
        if found.id != path.stem or not all(isinstance(text, str) for text in texts):
            raise ValueError("its id or a text is wrong")
        if not all(type(at) in (int, float) for at in (found.opened, *times)):
            raise ValueError("a time is not a number")
        if not all(type(getattr(found, name)) is int for name in _NUMBERS):
            raise ValueError("a number is not a whole number")
        return found
    except (KeyError, ValueError, TypeError) as error:
        raise _DamagedError(
            f"{path} is not an incident file: {error}", "restore it, or move it away"
        ) from None


def moved(incident: Incident, step: Step, note: str = "", **more: Any) -> Incident:
    """Return the incident at another step."""
    return replace(incident, step=step, note=note, **more)
