"""How a run of `validate` runs its checks, and the programs for nodes, in the form that the playbooks
checks.yml and validate.yml and the module gpuprov_run take."""

from __future__ import annotations

import base64
import functools
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from provision.checks.check import KERNEL_LOG_DELTA, Command
from provision.errors import GpuprovError
from provision.remote import held_locks
from provision.remote.ansible import runner
from provision.remote.reach import partitions
from provision.remote.schedulers.chosen import Schedulers


@dataclass(frozen=True)
class Settings:
    """How to run the checks. `every_pair`: measure all pairs of nodes. `override`: the user's thresholds.
    `timeout`: seconds a node has to answer, and a program beyond its load; None leaves each check its own.
    `schedulers`: who is asked whether jobs run before a node is loaded; None: nobody."""

    burn_seconds: int = 60
    timeout: float | None = None
    forks: int = 50
    every_pair: bool = False
    override: Path | None = None
    vault_password_files: tuple[Path, ...] = ()
    schedulers: Schedulers | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What checks may know of it."""
        return {"burn_seconds": self.burn_seconds, "timeout": self.timeout}


# The task's own limit, over all deadlines of its programs: a killed program has two graces of 5 s, and the
# module is copied over first. A node that is silent longer is given up.
_GRACE_PER_PROGRAM = 15.0
_GRACE = 30.0
_KERNEL_LOG = 40.0  # the kernel log is read before and after, 20 s at most each time


def play_variables(variables: Mapping[str, Any], commands: Sequence[Command]) -> dict[str, Any]:
    """The node's variables for Ansible, with the programs to run and the time the task may take."""
    return {
        **variables,
        "gpuprov_commands": [plain(command) for command in commands],
        "gpuprov_task_timeout": task_timeout(commands),
    }


@dataclass(frozen=True)
class Programs:
    """The programs of one check on a node. `packed`: see the function; `names`: the outputs that a complete
    answer has; `seconds`: the limit of the whole task."""

    packed: str
    names: tuple[str, ...]
    seconds: int


def programs(commands: Sequence[Command]) -> Programs:
    """The programs of a check in the form that playbooks/checks.yml takes."""
    text = packed(json.dumps([plain(command) for command in commands]))
    names = (*(command.name for command in commands), KERNEL_LOG_DELTA)
    return Programs(text, names, task_timeout(commands))


def checks(left: Mapping[str, Programs | None]) -> dict[str, dict[str, Any]]:
    """The variable gpuprov_checks: each of these checks that runs programs, and an empty entry at the end."""
    asked = {check: one for check, one in left.items() if one is not None}
    played = {check: {"programs": one.packed, "seconds": one.seconds} for check, one in asked.items()}
    return {**played, "": {"programs": "", "seconds": 0}}


@functools.lru_cache(256)  # most nodes of a fleet run the same
def packed(data: str | bytes) -> str:
    """A text or a file for a module's parameter, in base64 of zlib, in which Ansible finds no template."""
    plain = data.encode("utf-8", "replace") if isinstance(data, str) else data
    return base64.b64encode(zlib.compress(plain, 9)).decode()


def task_timeout(commands: Sequence[Command]) -> int:
    """The seconds that a task with these programs may take; after that the node is given up."""
    return math.ceil(_GRACE + longest(commands))


def longest(commands: Sequence[Command]) -> float:
    """The most seconds these programs take on a node, with the looks at the kernel log before and after."""
    # What runs beside another takes no time of its own, but may need the graces to end.
    seconds = (
        _GRACE_PER_PROGRAM + (0.0 if command.beside else command.deadline + command.retry_for)
        for command in commands
    )
    return _KERNEL_LOG + sum(seconds)


def plain(command: Command) -> dict[str, Any]:
    """A command in the words of the module gpuprov_run."""
    return {
        "name": command.name,
        "argv": list(command.argv),
        "deadline": command.deadline,
        "cwd": command.cwd,
        "env": dict(command.env),
        "beside": command.beside,
        "port": command.port,
        "retry_on": command.retry_on,
        "retry_for": command.retry_for,
        "keep": list(command.keep),
    }


def play(
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    take: Callable[[str, Mapping[str, Any]], None],
    *,
    places: Sequence[partitions.Run | None] | None = None,
    waiting: int = 0,
    **how: Unpack[runner.PlayOptions],
) -> dict[str, runner.Outcome]:
    """Play this playbook on these nodes (each with its variables) and `take` what each answers; how it ended
    on those that gave no answer. `places`, `waiting`, `how`: see `partitions.run_sharded`. Never raises for
    what Ansible could not do."""
    answered: set[str] = set()

    def on_event(event: runner.Event) -> None:
        answer = event.result.get("gpuprov")
        if event.kind in ("ok", "changed") and isinstance(answer, Mapping):
            answered.add(event.node)
            take(event.node, answer)

    ended = played(playbook, hosts, on_event, places=places, waiting=waiting, **how)
    return {name: outcome for name, outcome in ended.items() if name not in answered}


def played(
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    on_event: Callable[[runner.Event], None],
    *,
    places: Sequence[partitions.Run | None] | None = None,
    waiting: int = 0,
    **how: Unpack[runner.PlayOptions],
) -> dict[str, runner.Outcome]:
    """Play as `play` does, but hand on every event, and return the outcome of every node."""
    runs = {name: held["run"] for held in held_locks.of(hosts) for name in held["nodes"]}
    hosts = {name: {**variables, "gpuprov_lock_run": runs.get(name, "")} for name, variables in hosts.items()}
    try:
        ended = partitions.run_sharded(
            playbook, hosts, on_event=on_event, places=places, waiting=waiting, **how
        )
    except GpuprovError as error:
        ended = {name: runner.Outcome(name, "failed", message=error.what) for name in hosts}
    nothing = "nothing was run on it"
    return {name: ended.get(name) or runner.Outcome(name, "failed", message=nothing) for name in hosts}
