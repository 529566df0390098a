"""Settings of a `validate` run, and programs in the form of its playbooks and of gpuprov_run."""

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
    """Settings for running checks.

    `every_pair`: measure all pairs of nodes. `override`: the user's thresholds. `timeout`: seconds a node has
    to answer, and a program beyond its load; None keeps each check's own. `schedulers`: queried for running
    jobs before a node is loaded; None: no query."""

    burn_seconds: int = 60
    timeout: float | None = None
    forks: int = 50
    every_pair: bool = False
    override: Path | None = None
    vault_password_files: tuple[Path, ...] = ()
    schedulers: Schedulers | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The settings that checks may read."""
        return {"burn_seconds": self.burn_seconds, "timeout": self.timeout}


# Added to the sum of the program deadlines: a killed program gets two grace periods of 5 s, and the module is
# copied first. A node that stays silent longer is given up.
_GRACE_PER_PROGRAM = 15.0
_GRACE = 30.0
_KERNEL_LOG = 40.0  # the kernel log is read before and after, at most 20 s each


def play_variables(variables: Mapping[str, Any], commands: Sequence[Command]) -> dict[str, Any]:
    """Return a node's variables for Ansible, with the programs to run and the task's time limit."""
    return {
        **variables,
        "gpuprov_commands": [plain(command) for command in commands],
        "gpuprov_task_timeout": task_timeout(commands),
    }


@dataclass(frozen=True)
class Programs:
    """The `packed` programs of one check, the `names` of all outputs, the time limit in `seconds`."""

    packed: str
    names: tuple[str, ...]
    seconds: int


def programs(commands: Sequence[Command]) -> Programs:
    """Convert the programs of a check to the form that playbooks/checks.yml takes."""
    text = packed(json.dumps([plain(command) for command in commands]))
    names = (*(command.name for command in commands), KERNEL_LOG_DELTA)
    return Programs(text, names, task_timeout(commands))


def checks(left: Mapping[str, Programs | None]) -> dict[str, dict[str, Any]]:
    """Return the value of gpuprov_checks: each check that runs programs, then an empty end marker."""
    running = {check: one for check, one in left.items() if one is not None}
    played = {check: {"programs": one.packed, "seconds": one.seconds} for check, one in running.items()}
    return {**played, "": {"programs": "", "seconds": 0}}


@functools.lru_cache(256)  # most nodes of a fleet run the same programs
def packed(data: str | bytes) -> str:
    """Compress and base64-encode a module parameter, so that Ansible finds no template in it."""
    plain = data.encode("utf-8", "replace") if isinstance(data, str) else data
    return base64.b64encode(zlib.compress(plain, 9)).decode()


def task_timeout(commands: Sequence[Command]) -> int:
    """Return the seconds a task with these programs may take before its node is given up."""
    return math.ceil(_GRACE + longest(commands))


def longest(commands: Sequence[Command]) -> float:
    """Return the maximum seconds these programs take on a node, including both reads of the kernel log."""
    # A program that runs in parallel adds no time, but may need the grace periods to end.
    seconds = (
        _GRACE_PER_PROGRAM + (0.0 if command.beside else command.deadline + command.retry_for)
        for command in commands
    )
    return _KERNEL_LOG + sum(seconds)


def plain(command: Command) -> dict[str, Any]:
    """Convert a command to the parameters of the module gpuprov_run."""
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
    """Run a playbook on these nodes, pass each answer to `take`, return the outcome of silent nodes.

    `places`, `waiting`, `how`: see `partitions.run_sharded`. Never raises for a failure of Ansible."""
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
    """Run a playbook as `play` does, but pass every event on and return the outcome of every node."""
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
