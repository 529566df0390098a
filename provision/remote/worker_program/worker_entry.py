"""The process on a worker that does the work of one Receptor unit and reports its events.

Receptor starts it as the command of its work type gpuprov-worker (`python -P -m
provision.remote.worker_program.worker_entry`). Clear text of the unit is written only to a 0700 folder in
memory, which is removed. The process outlives its controller and the connection to it, and renews the run's
locks on its nodes meanwhile. It ends cleanly at its deadline, when another run has locked one of its nodes,
and, if others can take over, when the mesh has had no route to the controller for too long.

Modules are imported only where needed, as imports are most of the cost of a short unit.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from provision import bug_file, paths
from provision.errors import GpuprovError
from provision.fleet import Node
from provision.remote.ansible import handover
from provision.remote.protocol import NodeError
from provision.remote.workers import sealed, worker_stream
from provision.remote.workers.control import Control

_END = 30.0  # seconds for a clean end
_FLUSH = 1.0  # seconds between writes: Receptor syncs its file to disk for each
_GATHERED = 256 * 1024  # bytes buffered until a write
_LOOK = 10.0  # seconds between checks for a route to the controller
_NO_DISK = 74  # exit status if answers cannot be written (EX_IOERR of sysexits.h)


class _Output:
    """The original standard output, in sealed frames; other prints of this process go to stderr."""

    def __init__(self, key: bytes) -> None:
        self._file = os.dup(1)
        os.dup2(2, 1)
        self._sealer = sealed.Sealer(key)
        self._lock = threading.Lock()
        self._gathered = bytearray()
        threading.Thread(target=self._flush_often, daemon=True).start()

    def write(self, data: bytes) -> None:
        with self._lock:
            self._gathered += data
            if len(self._gathered) > _GATHERED:
                self._send()

    def close(self) -> None:
        """Send buffered data now instead of within _FLUSH."""
        with self._lock:
            self._send()

    def _flush_often(self) -> None:
        while True:
            time.sleep(_FLUSH)
            with self._lock:
                self._send()

    def _send(self) -> None:
        if not self._gathered:
            return
        frame = self._sealer.frame(bytes(self._gathered))
        self._gathered.clear()
        try:
            while frame:
                frame = frame[os.write(self._file, frame) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(2, f"answers cannot be written: {error.strerror}\n".encode())
            _end_soon(_NO_DISK if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else 1)


def _end_soon(status: int) -> None:
    """Interrupt this process, and force its exit after _END. (The kernel ends Ansible with it.)"""

    def end() -> None:
        time.sleep(_END)
        os._exit(status)

    if _ending:
        return
    threading.Thread(target=end, daemon=True).start()
    _ending.append(status)
    os.kill(os.getpid(), signal.SIGINT)


_ending: list[int] = []  # the exit status, once the end was requested


class _Stream:
    """Writer of lines as in `ansible-runner worker`, with a heartbeat when idle.
    (ansible-runner's own class needs imports that would double the start time of a unit.)"""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self._writing = threading.Lock()
        self._wrote = time.monotonic()
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def event_handler(self, said: Mapping[str, Any]) -> None:
        line = json.dumps(said).encode() + b"\n"
        with self._writing:
            self._output.write(line)
            self._wrote = time.monotonic()

    def _keep_alive(self) -> None:
        while True:
            left = self._wrote + worker_stream.BEAT - time.monotonic()
            if left > 0:
                time.sleep(left)
            else:
                self.event_handler({"event": "keepalive", "counter": 0, "uuid": 0})


class _Speaker(_Stream):
    """Writer of a unit's messages: events, heartbeats, and the end."""

    def __init__(self, output: _Output) -> None:
        super().__init__(output)
        self._events = 0
        self._answers = worker_stream.Answers()

    def begin(self) -> None:
        """Report the start and wait until it is written, so that a silent unit has done nothing."""
        self.event_handler({"event": "keepalive", "counter": 0, "uuid": 0})
        self._output.close()

    def event(self, raw: Mapping[str, Any]) -> None:
        """Send an event, reduced to the fields that the controller uses."""
        self._events += 1
        self.event_handler(worker_stream.slim(raw))

    def output(self, node: str, said: bytes | bytearray | NodeError, seconds: float) -> None:
        """Send the output of one of gpuprov's programs on a node."""
        data: dict[str, Any] = {"host": node, "seconds": round(seconds, 3)}
        if isinstance(said, NodeError):
            data["error"] = [said.kind, said.what, said.fix]
        else:
            data |= self._answers.packed(said)
        self._events += 1
        about = {"event": worker_stream.OUTPUT, "counter": self._events, "uuid": f"output-{self._events}"}
        self.event_handler({**about, "event_data": data})

    def lost(self, node: str, why: str) -> None:
        """Report that work on a node was ended because another run has its lock."""
        data = {"host": node, "task": "Keep the lock of the node", "res": {"msg": why}}
        number = self._events + 1
        about = {"event": "runner_on_failed", "counter": number, "uuid": f"lock-{number}"}
        self.event({**about, "event_data": data})

    def end(self, trouble: str = "") -> None:
        """Report the end, with the number of events, so that a truncated stream is detected."""
        status = {"status": "error", "job_explanation": trouble} if trouble else {"status": "successful"}
        self.event_handler({**status, "gpuprov_events": self._events})
        self.event_handler({"eof": True})


def _keep_limits(about: Mapping[str, Any]) -> None:
    """End the process at its deadline, or if the controller is unreachable for longer than the lease."""
    end = time.monotonic() + float(about["seconds"])
    lease, mesh = about["lease"], Control(str(about["socket"]))
    reached = time.monotonic()
    while time.monotonic() < end:
        time.sleep(min(_LOOK, max(0.1, end - time.monotonic())))
        if lease is None:
            continue
        with contextlib.suppress(GpuprovError):
            if about["controller"] in (mesh.status().get("RoutingTable") or {}):
                reached = time.monotonic()
        if time.monotonic() - reached > float(lease):
            break
    _end_soon(1)


def main() -> int:
    """Do the unit's work; exit status 0 if it was done and reported, even if its nodes failed."""
    keep = {name: os.environ[name] for name in (*handover.KEPT, "PATH") if name in os.environ}
    os.environ.clear()
    os.environ.update(keep)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handover.remove_orphans()
    try:
        header = sealed.header_of(line := sys.stdin.buffer.readline(_LINE))
        if isinstance(header.get("hello"), dict):
            _greet(header["hello"])
            return 0
        if header.get("versions") != worker_stream.digest():
            return _refuse(
                "python", "its gpuprov is not the one that greeted: it was changed meanwhile", "run again"
            )
        plain = sealed.opened(line + sys.stdin.buffer.read())[1]
    except sealed.MissingKeyError:
        return _refuse("key", "it was started anew since it greeted", "run again")
    except (sealed.SealError, GpuprovError) as error:
        return _refuse("garbage", f"its unit cannot be opened: {error}", "run again")
    about, share = (json.loads(one) for one in plain.split(b"\n")[:2])
    return _work(about, share["kwargs"])


_LINE = 64 * 1024  # limit of a header, in bytes


def _greet(question: Mapping[str, Any]) -> None:
    """Report this worker's versions and key."""
    answer: dict[str, Any] = {**worker_stream.versions(), "key": sealed.worker_public_key()}
    try:
        Control(str(question.get("socket"))).status()
    except GpuprovError as error:
        answer["socket"] = error.what
    _print(f"{worker_stream.HELLO}{json.dumps(answer)}\n")


def _refuse(kind: str, what: str, fix: str) -> int:
    _print(f"{worker_stream.REFUSED}{json.dumps({'kind': kind, 'what': what, 'fix': fix})}\n")
    return 1


def _print(line: str) -> None:
    os.write(1, line.encode())


def _work(about: Mapping[str, Any], share: Mapping[str, Any]) -> int:
    output = _Output(base64.b64decode(about["answer_key"]))
    threading.Thread(target=_keep_limits, args=(about,), daemon=True).start()
    speaker = _Speaker(output)
    trouble = ""
    try:
        speaker.begin()
        with _vault_files(share["vault_passwords"]) as files:
            (_ask if "programs" in share else _play)(share, speaker, files)
    except KeyboardInterrupt:
        trouble = worker_stream.STOPPED
    except GpuprovError as error:
        trouble = error.what
    except Exception as error:
        kept = f"{bug_file.report(error)} on the worker"
        trouble = f"a bug in gpuprov: {type(error).__name__}: {error}: {kept}"
    with contextlib.suppress(KeyboardInterrupt):
        speaker.end(trouble)
        output.close()
    return _ending[0] if _ending else 0


@contextlib.contextmanager
def _vault_files(passwords: list[str]) -> Iterator[list[Path]]:
    with handover.private_folder() as folder:
        files = []
        for number, password in enumerate(passwords):
            file = folder / f"vault-{number}"
            file.touch(mode=0o600)
            file.write_text(password, encoding="utf-8")
            files.append(file)
        yield files


def _play(share: Mapping[str, Any], speaker: _Speaker, vault_password_files: list[Path]) -> None:
    from provision.remote.ansible import runner
    from provision.remote.reach import observe
    from provision.remote.reach.fleet_lock import FleetLock

    name = str(share["playbook"])
    if Path(name).name != name or not (paths.PLAYBOOKS / name).is_file():
        raise GpuprovError(f"there is no playbook {name!r}", "")
    interrupts = runner.Interrupts()
    lost: dict[str, str] = {}

    def stop(node: str, why: str) -> None:
        lost[node] = why
        _end_soon(1)

    def ask(programs: Mapping[str, str]) -> Mapping[str, bytes | NodeError]:
        nodes = [Node(name, (), share["inventory"][name]) for name in programs]
        return observe.run_programs(nodes, programs, vault_password_files=vault_password_files)

    with _lost_said(lost, speaker), contextlib.ExitStack() as confirmed, interrupts.noted():
        for lent in share["locks"]:
            confirmed.enter_context(FleetLock.borrowed(lent, ask, stop))
        runner.play(
            paths.PLAYBOOKS / name,
            share["inventory"],
            speaker.event,
            runner.Stop(None, interrupts),
            extra_vars=share["extravars"],
            forks=share["forks"],
            check_mode=share["check_mode"],
            diff=share["diff"],
            verbosity=share["verbosity"],
            tags=share["tags"],
            skip_tags=share["skip_tags"],
            vault_password_files=vault_password_files,
        )


@contextlib.contextmanager
def _lost_said(lost: Mapping[str, str], speaker: _Speaker) -> Iterator[None]:
    """Report nodes with lost locks as failed when the work is ended; the other nodes count as stopped."""
    try:
        yield
    except KeyboardInterrupt:
        for node, why in lost.items():
            speaker.lost(node, f"{why}: work on it was ended")
        if lost:
            raise GpuprovError(f"{worker_stream.STOPPED}: {next(iter(lost.values()))}", "") from None
        raise


class _Relay:
    """Relay of the controller's programs to nodes, and of their output back."""

    def __init__(self, share: Mapping[str, Any], speaker: _Speaker) -> None:
        self._share = share
        self._speaker = speaker
        self._told: set[str] = set()

    def program(self, node: str, limit: int | None = None) -> str:
        direct, through_ansible = self._share["asked"][node]
        return str(self._share["programs"][through_ansible if limit else direct])

    def take(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> None:
        if node not in self._told:
            self._told.add(node)
            self._speaker.output(node, output, seconds)


def _ask(share: Mapping[str, Any], speaker: _Speaker, vault_password_files: list[Path]) -> None:
    from provision.remote.reach import observe

    nodes = [Node(name, (), variables) for name, variables in share["inventory"].items()]
    relay = _Relay(share, speaker)
    observe.put_to(nodes, relay, share["timeout"], share["connections"], vault_password_files)


if __name__ == "__main__":
    sys.exit(main())
