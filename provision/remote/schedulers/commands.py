"""Runs a scheduler's own commands: here, or on the first host of a group that answers.

Each call is one round trip with all its commands. node/scheduler_command.py runs them, here as there.
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

SECONDS = 30.0  # for one command
_CONNECT = 30.0  # to get to the host, on top of that
_LARGEST = 64 * 1024 * 1024  # bytes of an answer, unpacked


class CommandsError(Exception):
    """Why no host could run the commands: one line."""


@dataclass(frozen=True)
class Done:
    """What came of one command. `status` is None when it did not run to its end; `problem` says why."""

    status: int | None
    out: str = ""
    err: str = ""
    problem: str = ""

    @property
    def error(self) -> str:
        """One line when it failed: its own last words; empty when it went well."""
        if self.problem or self.status == 0:
            return self.problem
        said = [line for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        return one_line(said[-1], 200) if said else f"it ended with status {self.status}"


Command = Sequence[str]
Ask = Callable[[Sequence[Command]], list[Done]]


class Commands:
    """The way to a scheduler's commands. `group`: the inventory's group of its hosts, tried in their order;
    without a member they run here. `elsewhere`: whether an answer means that another host should be asked."""

    def __init__(
        self, fleet: Fleet, group: str, elsewhere: Callable[[Done], bool], seconds: float = SECONDS
    ) -> None:
        every = {**fleet.others, **fleet.nodes}
        named = [
            *fleet.groups.get(group, ()),
            *(name for name, node in every.items() if group in node.groups),
        ]
        self._hosts = [every[name] for name in dict.fromkeys(named) if name in every]
        self._files = fleet.vault_password_files
        self._elsewhere = elsewhere
        self._seconds = seconds
        self._reached: dict[str, Reach] = {}  # whoever asks once asks again, and a login costs most of it
        self._lock = threading.Lock()

    def __call__(self, commands: Sequence[Command]) -> list[Done]:
        """What came of each command; they end at the first that cannot be run to its end. Raises
        CommandsError."""
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
                self._hosts.remove(host)  # the next question goes there first
                self._hosts.insert(0, host)
                return done
            troubles.append(f"{host.name}: {next(one.error for one in done if self._elsewhere(one))}")
        raise CommandsError(one_line("; ".join(troubles), 400))

    def _there(self, host: Node, program: str, limit: float) -> bytes:
        with self._lock:
            if host.name not in self._reached:
                limit = max(limit, _CONNECT + self._seconds * 2)
                self._reached[host.name] = Reach([host], limit, 1, self._files, persistent=True)
            said = run_programs([host], {host.name: program}, over=self._reached[host.name])[host.name]
            if isinstance(said, NodeError):
                self._reached.pop(host.name).__exit__()
                raise CommandsError(said.line)
        return said

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
