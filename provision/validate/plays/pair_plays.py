"""Plays of pair and group checks: programs on all nodes of a step at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision import paths
from provision.checks.check import Command, Output
from provision.checks.judging import node_judge
from provision.runs import store
from provision.runs.store import RunFolder
from provision.validate.plays import node_commands
from provision.validate.plays.node_commands import Settings

Outputs = dict[str, dict[str, Output]]  # by node and output name
_ADDRESS = "gpuprov_address"  # inventory variable


@dataclass(frozen=True)
class Plays:
    """The plays of one check. `folder` stores their raw output; `variables`: by node."""

    check: str
    folder: RunFolder
    variables: Mapping[str, Mapping[str, Any]]
    settings: Settings

    def address(self, node: str) -> str:
        """Return the address at which other nodes reach this one."""
        stated = (self.variables[node].get(key) for key in (_ADDRESS, "ansible_host", "ansible_ssh_host"))
        return str(next(filter(None, stated), node))

    def run(
        self, label: str, commands: Mapping[str, Sequence[Command]], *, together: int = 2
    ) -> tuple[Outputs, dict[str, str]]:
        """Run these programs on all nodes at once and store the raw output as `<check>.<label>`.

        Returns outputs by node and name, and reasons for failures. `together`: number of nodes that
        wait for one another."""
        timeout = self.settings.timeout
        todo = {
            node: node_commands.play_variables(self.variables[node], node_judge.within(programs, timeout))
            for node, programs in commands.items()
            if programs
        }
        outputs: Outputs = {}
        unclear: dict[str, str] = {}

        def take(node: str, answer: Mapping[str, Any]) -> None:
            names = [command.name for command in commands[node]]
            raw = node_judge.raw_from_answer(node, f"{self.check}.{label}", answer, "", names)
            store.keep_raw(self.folder, raw)
            outputs[node] = {output.name: output for output in raw.outputs}
            if raw.error:
                unclear[node] = raw.error

        silent = self.play("validate.yml", todo, take, together=together)
        return outputs, {**silent, **unclear}

    def play(
        self,
        playbook: str,
        hosts: Mapping[str, Mapping[str, Any]],
        take: Callable[[str, Mapping[str, Any]], None],
        *,
        together: int = 1,
    ) -> dict[str, str]:
        """Run a playbook and pass answers to `take`; return why other nodes gave none. Never raises."""
        if not hosts:
            return {}
        limit = max(one["gpuprov_task_timeout"] for one in hosts.values())
        # Whole pairs only, so that a server never waits for a queued client.
        forks = max(together, self.settings.forks - self.settings.forks % together)
        silent = node_commands.play(
            paths.PLAYBOOKS / playbook,
            hosts,
            take,
            waiting=together,
            forks=forks,
            timeout=math.ceil(len(hosts) / forks) * (limit + 60) + 60,
            vault_password_files=self.settings.vault_password_files,
        )
        return {node: outcome.message for node, outcome in silent.items()}
