"""The process on a worker: takes its nodes from the controller, runs Ansible on them, reports the events.

Started over SSH (`python -m provision.remote.workers.worker_entry`). Nothing of the share is written but
into a 0700 folder
in memory, which is removed; when the controller goes away or falls silent, Ansible is ended in order.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_runner.streaming import Worker

from provision import paths
from provision.errors import GpuprovError
from provision.fleet import Node
from provision.remote import observe
from provision.remote.ansible import handover, runner
from provision.remote.ansible.runner import Interrupts
from provision.remote.protocol import NodeError
from provision.remote.workers import worker_stream

_END = 30.0  # seconds to end in order once the controller is gone


class GoneError(OSError):
    """The controller does not take what is said to it any more."""


class _Output:
    """Standard output as it was, written with an end to the wait: what else prints here goes to stderr."""

    name = "controller"

    def __init__(self) -> None:
        self._file = os.dup(1)
        os.dup2(2, 1)
        os.set_blocking(self._file, False)

    def write(self, data: bytes) -> None:
        deadline = time.monotonic() + worker_stream.SILENCE
        while data:
            if not select.select([], [self._file], [], 1.0)[1]:
                if time.monotonic() > deadline:
                    raise GoneError("the controller takes nothing")
                continue
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(self._file, data) :]

    def flush(self) -> None:
        """Nothing is kept back."""


class _Speaker(Worker):  # type: ignore[misc]
    """ansible-runner's worker, as far as it speaks: events, signs of life, the end. It starts nothing."""

    def __init__(self, output: _Output) -> None:
        super().__init__(
            _output=output, keepalive_seconds=worker_stream.BEAT, private_data_dir="/nonexistent"
        )
        self._events = 0
        self._begin_keepalive()

    def event(self, raw: Mapping[str, Any]) -> None:
        """Send an event, without what nobody there reads."""
        self._events += 1
        self.event_handler(worker_stream.slim(raw))

    def output(self, node: str, said: bytes | bytearray | NodeError, seconds: float) -> None:
        """Send what a program of ours printed on a node."""
        data: dict[str, Any] = {"host": node, "seconds": seconds}
        if isinstance(said, NodeError):
            data["error"] = [said.kind, said.what, said.fix]
        else:
            data["output"] = base64.b64encode(said).decode()
        self._events += 1
        about = {"event": worker_stream.OUTPUT, "counter": self._events, "uuid": f"output-{self._events}"}
        self.event_handler({**about, "event_data": data})

    def end(self, trouble: str = "") -> None:
        """Say how it ended, with the number of events, so that a cut stream is known for one."""
        status = {"status": "error", "job_explanation": trouble} if trouble else {"status": "successful"}
        self.status_handler({**status, "gpuprov_events": self._events}, None)
        self.finished_callback(None)


def _watch_controller() -> None:
    """Ask this process to end when the controller has closed the connection, or is silent for too long."""
    heard = time.monotonic()
    while time.monotonic() - heard < worker_stream.SILENCE:
        if select.select([0], [], [], 1.0)[0]:
            if not os.read(0, 4096):
                break
            heard = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_END)
    os._exit(1)  # the kernel ends Ansible with us


def main() -> int:
    """Exit status 0 when the share was done and told, whatever became of its nodes."""
    output = _Output()
    keep = {name: os.environ[name] for name in (*handover.KEPT, "PATH") if name in os.environ}
    os.environ.clear()
    os.environ.update(keep)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handover.remove_orphans()
    output.write(f"{worker_stream.HELLO}{json.dumps(worker_stream.versions())}\n".encode())
    share = _received()
    if share is None:
        return 0  # the controller wanted to know no more than who we are
    threading.Thread(target=_watch_controller, daemon=True).start()
    speaker = _Speaker(output)
    trouble = ""
    try:
        with _vault_files(share["vault_passwords"]) as files:
            (_ask if "programs" in share else _play)(share, speaker, files)
    except (KeyboardInterrupt, GoneError):
        trouble = "it was stopped"
    except GpuprovError as error:
        trouble = error.what
    except Exception as error:
        trouble = f"a bug in gpuprov: {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        speaker.end(trouble)
    return 0


def _received() -> dict[str, Any] | None:
    """The share, as `ansible-runner transmit` sends it; None when it does not come. Read without a buffer:
    what follows are signs of life."""
    said, lines = bytearray(), 0
    while lines < 2:
        if not select.select([0], [], [], worker_stream.SILENCE)[0]:
            return None
        data = os.read(0, 1 << 16)
        if not data:
            return None
        said += data
        lines += data.count(b"\n")
    share: dict[str, Any] = json.loads(said.split(b"\n", 1)[0])["kwargs"]
    return share


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
    name = str(share["playbook"])
    if Path(name).name != name or not (paths.PLAYBOOKS / name).is_file():
        raise GpuprovError(f"there is no playbook {name!r}", "")
    interrupts = Interrupts()
    with interrupts.noted():
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


class _Relay:
    """Programs as the controller sent them; what they print goes back to it."""

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
    nodes = [Node(name, (), variables) for name, variables in share["inventory"].items()]
    observe.put_to(
        nodes, _Relay(share, speaker), share["timeout"], share["connections"], vault_password_files
    )


if __name__ == "__main__":
    sys.exit(main())
