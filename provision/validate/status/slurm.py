"""Slurm's state and reason for a node, from `scontrol show node NAME` (pure).

remote/schedulers/slurm_text.py parses the text."""

from __future__ import annotations

from dataclasses import dataclass

from provision.remote.schedulers import slurm_text
from provision.text import one_line


@dataclass(frozen=True)
class SlurmState:
    """State (`IDLE+DRAIN`) and reason (with user and time) of one node, or `error` if unknown."""

    name: str
    state: str = ""
    reason: str = ""
    error: str = ""

    @property
    def takes_jobs(self) -> bool:
        """Whether Slurm may start a job on the node now."""
        return slurm_text.NodeText(self.name, self.state, self.reason, ()).takes_jobs


def parsed(name: str, text: str, problem: str) -> SlurmState:
    """Parse the output of scontrol for `name`. Never raises."""
    parsed_node = slurm_text.nodes(text).get(name)
    if problem or parsed_node is None:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        why = ": ".join(filter(None, (problem, last))) or "scontrol printed nothing"
        return SlurmState(name, error=one_line(why, 200))
    return SlurmState(name, parsed_node.state, parsed_node.reason)
