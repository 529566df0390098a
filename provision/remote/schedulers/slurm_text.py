"""Parsers for the output of Slurm's commands (pure): nodes, jobs, partitions, host lists, errors.

`scontrol show node` and `show partition` print blocks of lines with `Name=value` words; a text that may have
blanks (`Reason=…`) has its own line (src/api/node_info.c, slurm_sprint_node_table, and partition_info.c). The
format is the same from 20.11 to 24.11; `--json` came with 21.08 and needs a plugin. States and flags are
joined by `+` (node_states, node_state_flags in src/common/slurm_protocol_defs.c); up to 20.02, `*` after the
state meant that the node does not respond. Slurm 24.11 was observed in tests/lab/test_slurm.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from provision.remote.schedulers import PREFIX, REASON, Holder, Job
from provision.text import clean, one_line

# Reasons that slurmctld sets itself for a node that it lost (src/slurmctld/ping_nodes.c, node_mgr.c): not a
# person's decision, and ReturnToService returns the node automatically.
LOST = ("Not responding", "Node unexpectedly rebooted")
FORMAT = "%i|%u|%M|%N"  # format of squeue: job, user, elapsed time, nodes
_DOWN = frozenset({"DOWN", "ERROR", "UNKNOWN"})
_WORKING = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_TAKEN_OUT = frozenset({"DRAIN", "FAIL"})
_HARMLESS = frozenset({"CLOUD", "COMPLETING", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "PERFCTRS", "PLANNED"})
_BEFORE = re.compile(
    re.escape(PREFIX.strip()) + r" \(was DOWN(?:: (?P<lost>Not responding|Node unexpectedly rebooted))?\)"
)
_WHO = re.compile(r" \[[^\]@ ]{1,64}@[^\]]{1,40}\]$")
_HOST_LIST = 4096  # maximum number of names expanded from one host list
_RANGE = 40  # maximum length of a range of numbers, `0001-0128`


@dataclass(frozen=True)
class NodeText:
    """One node of `scontrol show node`; `reason` includes user and time, `why` does not."""

    name: str
    state: str
    reason: str
    pools: tuple[str, ...]
    comment: str = ""

    @property
    def words(self) -> tuple[str, frozenset[str]]:
        """Return the base state and the flags."""
        base, *flags = self.state.replace("*", "+NOT_RESPONDING").split("+")
        return base, frozenset(flags)

    @property
    def why(self) -> str:
        return _WHO.sub("", self.reason)

    @property
    def down(self) -> bool:
        base, flags = self.words
        return base in _DOWN or "NOT_RESPONDING" in flags

    @property
    def holder(self) -> Holder:
        """Return who keeps jobs away, judged by the reason of a drain or of a DOWN state.
        If slurmctld itself set a lost node DOWN, the holder is NOBODY."""
        base, flags = self.words
        ours = self.why.startswith(PREFIX)
        if flags & _TAKEN_OUT:
            return Holder.US if ours and "FAIL" not in flags else Holder.OTHERS
        # RESUME keeps the reason, so it outlives its drain (24.11). gpuprov sets no node DOWN.
        by_a_person = base == "DOWN" and self.why and not ours and not self.why.startswith(LOST)
        return Holder.OTHERS if by_a_person else Holder.NOBODY

    @property
    def takes_jobs(self) -> bool:
        """Return whether the node may start jobs; an unknown flag counts as one that keeps jobs away."""
        base, flags = self.words
        return base in _WORKING and flags <= _HARMLESS

    @property
    def busy(self) -> bool:
        """Return whether the node's state shows running jobs, even if squeue hides them."""
        base, flags = self.words
        return base in ("ALLOCATED", "MIXED") or "COMPLETING" in flags


def nodes(text: str) -> dict[str, NodeText]:
    """Parse nodes from `scontrol show node`; returns name → node."""
    parsed = {}
    for block in re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE):
        name = re.match(r"NodeName=(\S+)", block)
        state = re.search(r"^ +State=(\S{1,200})", block, re.MULTILINE)
        if name is None or state is None:
            continue
        reason = re.search(r"^ +Reason=(.*)$", block, re.MULTILINE)
        pools = re.search(r"^ +Partitions=(\S+)", block, re.MULTILINE)
        comment = re.search(r"^ +Comment=(.*)$", block, re.MULTILINE)
        parsed[name[1]] = NodeText(
            name[1],
            one_line(state[1]),
            one_line(reason[1], 2 * REASON) if reason else "",
            tuple(one_line(pools[1]).split(",")) if pools else (),
            clean(comment[1]) if comment else "",
        )
    return parsed


def jobs(text: str, wanted: Collection[str]) -> dict[str, list[Job]]:
    """Parse squeue output in FORMAT into node → jobs. Raises ValueError for a malformed line."""
    result: dict[str, list[Job]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        fields = line.strip().split("|")
        if len(fields) != 4:
            raise ValueError(f"squeue printed {one_line(line, 80)!r}")
        job = Job(one_line(fields[0], 40), one_line(fields[1], 40), seconds(fields[2]))
        for name in hosts(fields[3]):
            if name in wanted:
                result.setdefault(name, []).append(job)
    return result


def seconds(text: str) -> int | None:
    """Parse `1-02:03:04`, `2:03:04` or `3:04` into seconds; None for anything else (INVALID).

    >>> seconds("1-02:03:04")
    93784
    """
    form = re.fullmatch(r"(?:(?:(\d{1,5})-)?(\d{1,2}):)?(\d{1,2}):(\d{2})", text.strip())
    if form is None:
        return None
    days, hours, minutes, rest = (int(number or 0) for number in form.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def hosts(text: str) -> Iterator[str]:
    """Expand a host list into at most 4096 names.

    >>> list(hosts("gpu-[01-02,7],login"))
    ['gpu-01', 'gpu-02', 'gpu-7', 'login']
    """
    count = 0
    for part in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        for name in _expanded(part):
            yield name
            count += 1
            if count >= _HOST_LIST:
                return


def _expanded(part: str) -> Iterator[str]:
    bracket = re.search(r"\[([^\[\]]*)\]", part)
    if bracket is None:
        yield part
        return
    for piece in bracket[1].split(","):
        first, _, last = piece.partition("-")
        numbers = (
            (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
            if first.isdecimal() and last.isdecimal() and len(piece) <= _RANGE
            else iter([piece])
        )
        for number in numbers:
            yield from _expanded(part[: bracket.start()] + number + part[bracket.end() :])


def reason_for(why: str, before: NodeText) -> str:
    """Return the reason to set: one line, bounded, without control characters.
    For a DOWN node it also records that state and slurmctld's own reason, for any later run to restore."""
    was = ""
    if before.holder is Holder.US:
        kept = _BEFORE.match(before.why)
        was = kept[0][len(PREFIX) :] + " " if kept else ""
    elif before.words[0] == "DOWN":
        lost = next((reason for reason in LOST if before.why.startswith(reason)), "")
        was = f"(was DOWN{': ' + lost if lost else ''}) "
    return one_line(PREFIX + was + why, REASON)


def put_back(node: NodeText) -> list[str]:
    """Return scontrol arguments that resume a node which gpuprov drained.
    A node that was DOWN before stays DOWN, with slurmctld's own reason; RESUME would make it IDLE."""
    was = _BEFORE.match(node.why)
    if was is None:
        return ["State=RESUME"]
    return ["State=UNDRAIN", f"Reason={was['lost']}"] if was["lost"] else ["State=UNDRAIN"]
