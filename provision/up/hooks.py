"""Hooks of the site: programs that drain nodes before a change and return them to service afterwards.

They run on the controller, without a shell, with the node's name (or all of a wave's names) as arguments,
JSON on standard input and a clean environment. docs/hooks.md is their manual."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.errors import InventoryError
from provision.fleet import Fleet, folder_of
from provision.text import one_line

DRAIN, UNDRAIN = "drain", "undrain"
TIMEOUT = 600.0  # seconds; gpuprov_hook_timeout overrides it
AT_ONCE = 16  # concurrent hooks, to avoid flooding a scheduler
OUTPUT = 256 * 1024  # bytes stored of a hook's output
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("HOME", "USER", "LOGNAME", "TZ")


@dataclass(frozen=True)
class Hook:
    """One program; `per_wave`: called once with all nodes of a wave, else once per node."""

    path: Path
    timeout: float = TIMEOUT
    per_wave: bool = False


@dataclass(frozen=True)
class Called:
    """The outcome of one call. `problem`: one line, "" on success."""

    hook: str
    nodes: tuple[str, ...]
    problem: str
    status: int | None
    seconds: float
    output: str


def load(fleet: Fleet, overrides: Mapping[str, Any]) -> dict[str, dict[str, Hook]]:
    """Return each node's hook by event (DRAIN, UNDRAIN). Raises InventoryError for an unusable hook."""
    by_event: dict[str, dict[str, Hook]] = {DRAIN: {}, UNDRAIN: {}}
    checked: dict[Path, None] = {}
    for node in fleet.nodes.values():
        given = {**node.variables, **overrides}
        for event, hooks in by_event.items():
            name = f"gpuprov_{event}_hook"
            if not given.get(name):
                continue
            path = placed(str(given[name]), fleet.source)
            if path not in checked:
                refuse_unusable(path, f"{name} ({node.name})")
                checked[path] = None
            timeout = float(given.get("gpuprov_hook_timeout") or TIMEOUT)
            hooks[node.name] = Hook(path, timeout, given.get("gpuprov_hook_scope") == "wave")
    return by_event


def placed(named: str, source: Path) -> Path:
    """Resolve a path relative to the inventory that names it."""
    return (folder_of(source, named) / Path(named).expanduser()).absolute()


def refuse_unusable(path: Path, where: str) -> None:
    if not path.exists():
        raise InventoryError(f"{where}: there is no {path}", "paths are relative to the inventory's folder")
    if not path.is_file():
        raise InventoryError(f"{where}: {path} is not a file", "name the program itself")
    if not os.access(path, os.X_OK):
        raise InventoryError(f"{where}: {path} is not executable", f"chmod +x {path}")
    if what := changeable(path):
        raise InventoryError(f"{where}: {what[0]}", what[1])


def changeable(path: Path) -> tuple[str, str] | None:
    """Return how users other than root and this one could change the program, with the remedy, or None.

    Checks each folder, link and file on its path. A world-writable folder (/tmp) is safe if it is sticky, as
    for sudo and ssh. Raises OSError if there is no such file."""
    path.stat()  # raises an error for circular links
    trusted = {0, os.geteuid(), int(os.environ.get("SUDO_UID") or 0)}
    for part in (*reversed(path.parents), path):
        status = part.lstat()
        if status.st_uid not in trusted:
            what = f"{part} belongs to uid {status.st_uid}, neither root nor the user who runs gpuprov"
            return what, "keep the program, with the folders above it, where only these can change it"
        if stat.S_ISLNK(status.st_mode):
            return changeable(part.parent / part.readlink() / path.relative_to(part))
        if status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
            who = "everybody" if status.st_mode & 0o002 else "a group"
            return f"{who} may change {part}", f"chmod go-w {part}"
    return None


@dataclass
class Runner:
    """Runner of hooks. `run`: the run's name; `about`: node → data passed to its hook.

    `begun` is called before any hook, `heard` for every call that ended, both in the caller's thread."""

    hooks: Mapping[str, Mapping[str, Hook]]
    run: str
    inventory: Path
    begun: Callable[[str, Sequence[str]], None]
    heard: Callable[[Called], None]
    about: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    def call(self, event: str, nodes: Sequence[str], wave: int, kind: str) -> dict[str, str]:
        """Call these nodes' hooks, if any; return each failure's reason. An interrupt ends running hooks."""
        hooks = self.hooks.get(event, {})
        calls: dict[tuple[Any, ...], list[str]] = {}
        for node in nodes:
            if node in hooks:
                key = (hooks[node],) if hooks[node].per_wave else (hooks[node], node)
                calls.setdefault(key, []).append(node)
        if not calls:
            return {}
        self.begun(event, [node for names in calls.values() for node in names])
        problems: dict[str, str] = {}
        with concurrent.futures.ThreadPoolExecutor(min(AT_ONCE, len(calls))) as pool:
            futures = [
                pool.submit(self._one, event, key[0], tuple(names), wave, kind)
                for key, names in calls.items()
            ]
            try:
                for future in concurrent.futures.as_completed(futures):
                    called = future.result()
                    self.heard(called)
                    problems.update(dict.fromkeys(called.nodes, called.problem))
            except BaseException:
                self._stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {node: problem for node, problem in problems.items() if problem}

    def _stop(self) -> None:
        with self._guard:
            self._stopped = True
            for group in self._running:
                _signal(group, signal.SIGKILL)

    def _one(self, event: str, hook: Hook, nodes: tuple[str, ...], wave: int, kind: str) -> Called:
        started = time.monotonic()
        document = {
            "format": 1,
            "hook": event,
            "run": self.run,
            "wave": wave,
            "kind": kind,
            "nodes": [{"name": node, **self.about.get(node, {})} for node in nodes],
        }
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | {
            "PATH": PATH,
            "LC_ALL": "C.UTF-8",
            "GPUPROV_HOOK": event,
            "GPUPROV_RUN": self.run,
            "GPUPROV_WAVE": str(wave),
            "GPUPROV_INVENTORY": str(self.inventory.absolute()),
        }
        reasons = [str(self.about.get(node, {}).get("reason") or "") for node in nodes]
        if any(reasons):
            environment["GPUPROV_REASON"] = one_line("; ".join(filter(None, reasons)), 200)
        with tempfile.TemporaryFile() as given:  # a file, because a hook need not read its input
            given.write(json.dumps(document).encode() + b"\n")
            given.seek(0)
            try:
                if what := changeable(hook.path):  # checked again: much time may have passed since loading
                    raise PermissionError(0, f"{what[0]}: {what[1]}")
                process = self._started([str(hook.path), *nodes], given, environment, hook.path.parent)
            except OSError as error:
                why = f"it could not be started: {error.strerror}"
                return Called(event, nodes, f"its {event} hook: {why}", None, 0.0, "")
        try:
            status, output = end_of(process, hook.timeout)
        finally:
            with self._guard:
                self._running.discard(process.pid)
        seconds = time.monotonic() - started
        return Called(event, nodes, _problem(event, status, output, hook.timeout), status, seconds, output)

    def _started(
        self, words: Sequence[str], given: Any, environment: Mapping[str, str], folder: Path
    ) -> subprocess.Popen[bytes]:
        with self._guard:
            if self._stopped:
                raise OSError(0, "stopped")
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )
            self._running.add(process.pid)
        return process


def end_of(process: subprocess.Popen[bytes], timeout: float) -> tuple[int | None, str]:
    """Run a process group to its end, forced after `timeout`; return status (None if killed) and output."""
    kept = bytearray()
    reader = threading.Thread(target=_read, args=(process.stdout, kept), daemon=True)
    reader.start()
    status: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(timeout)
    if status is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        _signal(process.pid, signal.SIGKILL)
        process.wait()
    reader.join(1)
    if reader.is_alive():  # a child it left behind keeps the output open
        _signal(process.pid, signal.SIGKILL)
        reader.join(1)
    return status, bytes(kept).decode("utf-8", "replace")


def _read(stream: Any, kept: bytearray) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        while data := stream.read1(1 << 16):
            kept += data[: max(0, OUTPUT - len(kept))]


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _problem(event: str, status: int | None, output: str, timeout: float) -> str:
    if status == 0:
        return ""
    lines = [line for line in output.splitlines() if line.strip()]
    last = f": {one_line(lines[-1], 200)}" if lines else ""
    if status is None:
        return f"its {event} hook did not end within {timeout:g} s, and was killed{last}"
    if status < 0:
        return f"its {event} hook was killed by signal {-status}{last}"
    return f"its {event} hook ended with status {status}{last}"


def left_drained(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the nodes still drained, from the hook records of a run and earlier runs."""
    drained: dict[str, bool] = {}
    for record in records:
        for node in record.get("nodes") or ():
            if record.get("hook") == DRAIN:
                drained[str(node)] = True  # even after a failure, since it may have had an effect
            elif record.get("hook") == UNDRAIN and record.get("status") == 0:
                drained[str(node)] = False
    return frozenset(node for node, still in drained.items() if still)
