"""How a run of `validate` runs its checks, and the programs for nodes, in the form that
playbooks/validate.yml and the module gpuprov_run take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from provision.checks.check import Command
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
        "gpuprov_task_timeout": math.ceil(_GRACE + longest(commands)),
    }


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
    runs = {name: held["run"] for held in held_locks.of(hosts) for name in held["nodes"]}
    hosts = {name: {**variables, "gpuprov_lock_run": runs.get(name, "")} for name, variables in hosts.items()}

    def on_event(event: runner.Event) -> None:
        answer = event.result.get("gpuprov")
        if event.kind in ("ok", "changed") and isinstance(answer, Mapping):
            answered.add(event.node)
            take(event.node, answer)

    try:
        ended = partitions.run_sharded(
            playbook, hosts, on_event=on_event, places=places, waiting=waiting, **how
        )
    except GpuprovError as error:
        ended = {name: runner.Outcome(name, "failed", message=error.what) for name in hosts}
    nothing = "nothing was run on it"
    return {
        name: ended.get(name) or runner.Outcome(name, "failed", message=nothing)
        for name in hosts
        if name not in answered
    }
