"""Programs for nodes, in the form that playbooks/validate.yml and the module gpuprov_run take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import Command

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
    }
