"""What Slurm says of a node: the state and the reason in `scontrol show node NAME` (pure).

The form is that of Slurm's src/api/node_info.c (slurm_sprint_node_table): lines of `Name=value` words, and
lines of their own for texts that may have blanks (`Reason=…`). States and flags: node_states and
node_state_flags in its src/common/slurm_protocol_defs.c, joined by `+`; up to Slurm 20.02 a `*` after the
state meant that the node does not respond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.text import one_line

_STATE = re.compile(r"^ +State=(\S{1,200})", re.MULTILINE)
_REASON = re.compile(r"^ +Reason=(.*)$", re.MULTILINE)
_NAME = re.compile(r"^NodeName=(\S+) ", re.MULTILINE)
_WORKING = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_HARMLESS = frozenset({"CLOUD", "COMPLETING", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "PERFCTRS", "PLANNED"})


@dataclass(frozen=True)
class SlurmState:
    """`state`: `IDLE+DRAIN`; `reason`: why somebody set it, with who and when. `error`: why neither is
    known."""

    name: str
    state: str = ""
    reason: str = ""
    error: str = ""

    @property
    def takes_jobs(self) -> bool:
        """Whether Slurm may start a job on it now. A flag that is not known counts as one that keeps jobs
        away: this is asked to warn, and must not warn wrongly."""
        base, *flags = self.state.split("+")
        return base in _WORKING and set(flags) <= _HARMLESS


def parsed(name: str, text: str, problem: str) -> SlurmState:
    """What scontrol printed for `name`. Never raises."""
    named, state = _NAME.search(text), _STATE.search(text)
    if problem or named is None or named[1] != name or state is None:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        why = ": ".join(filter(None, (problem, last))) or "scontrol printed nothing"
        return SlurmState(name, error=one_line(why, 200))
    reason = _REASON.search(text)
    return SlurmState(name, one_line(state[1]), one_line(reason[1], 300) if reason else "")
