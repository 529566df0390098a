"""Execution of a scheduler's commands, locally or on the first reachable host of a group.

Each call sends all its commands in one round trip. node/scheduler_command.py runs them, both locally and
remotely.
"""

from __future__ import annotations

import binascii
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from provision import foreign_json
from provision.fleet import Fleet, Node
from provision.remote import node_program
from provision.remote.protocol import AnswerError, NodeError, unframed
from provision.remote.reach.observe import Reach, run_programs
from provision.text import one_line

SECONDS = 30.0  # timeout of one command
_CONNECT = 30.0  # extra time to connect to the host
_LARGEST = 64 * 1024 * 1024  # limit of the decompressed answer, in bytes


class CommandsError(Exception):
    """No host could run the commands; the text is the reason, in one line."""


@dataclass(frozen=True)
class Done:
    """The outcome of one command; if it did not finish, `status` is None and `problem` is the reason."""

    status: int | None
    out: str = ""
    err: str = ""
    problem: str = ""

    @property
    def error(self) -> str:
        """Return one line on the failure: `problem`, or else the last line printed; empty on success."""
        if self.problem or self.status == 0:
            return self.problem
        printed = [line for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        return one_line(printed[-1], 200) if printed else f"it ended with status {self.status}"


Command = Sequence[str]
Ask = Callable[[Sequence[Command]], list[Done]]


class Commands:
    """Runner of a scheduler's commands on the first usable host of `group`, or locally if it has none.
    `elsewhere`: whether an outcome means that the next host should be tried."""

    def __init__(
        self, fleet: Fleet, group: str, elsewhere: Callable[[Done], bool], seconds: float = SECONDS
    ) -> None:
        machines = {**fleet.others, **fleet.nodes}
        named = [
            *fleet.groups.get(group, ()),
            *(name for name, node in machines.items() if group in node.groups),
        ]
        self._hosts = [machines[name] for name in dict.fromkeys(named) if name in machines]
        self._files = fleet.vault_password_files
        self._elsewhere = elsewhere
        self._seconds = seconds
        self._reached: dict[str, Reach] = {}  # kept open, since most of the cost of a call is the login
        self._lock = threading.Lock()

    def __call__(self, commands: Sequence[Command]) -> list[Done]:
        """Run commands up to the first that does not finish; return outcomes or raise CommandsError."""
        program = node_program.scheduler_command_program(
            {"commands": [list(words) for words in commands], "seconds": self._seconds}
        )
        limit = _CONNECT + self._seconds * len(commands)
        if not self._hosts:
            return self._understood(_here(program, limit))
        troubles = []
        for host in list(self._hosts):
            try:
                done = self._understood(self._there(host, program, limit))
            except CommandsError as error:
                troubles.append(f"{host.name}: {error}")
                continue
            if not any(self._elsewhere(one) for one in done):
                self._hosts.remove(host)  # try this host first next time
                self._hosts.insert(0, host)
                return done
            troubles.append(f"{host.name}: {next(one.error for one in done if self._elsewhere(one))}")
        raise CommandsError(one_line("; ".join(troubles), 400))

    def _there(self, host: Node, program: str, limit: float) -> bytes:
        with self._lock:
            if host.name not in self._reached:
                limit = max(limit, _CONNECT + self._seconds * 2)
                self._reached[host.name] = Reach([host], limit, 1, self._files, persistent=True)
            answer = run_programs([host], {host.name: program}, over=self._reached[host.name])[host.name]
            if isinstance(answer, NodeError):
                self._reached.pop(host.name).__exit__()
                raise CommandsError(answer.line)
        return answer

    @staticmethod
    def _understood(output: bytes) -> list[Done]:
        try:
            packed = binascii.a2b_base64(foreign_json.read(unframed(output))["done"])
            rows = foreign_json.read(zlib.decompressobj().decompress(packed, _LARGEST))
            return [_done(row) for row in rows]
        except (AnswerError, ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise CommandsError(f"its answer is not as it should be: {one_line(str(error), 100)}") from None


def _done(row: Any) -> Done:
    status = row["status"]
    if status is not None and type(status) is not int:
        raise ValueError("a status that is no number")
    return Done(status, str(row["out"]), str(row["err"]), one_line(str(row["problem"]), 200))


def _here(program: str, limit: float) -> bytes:
    try:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-"],
            input=program.encode("ascii"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandsError(one_line(str(error), 200)) from None
