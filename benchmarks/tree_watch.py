"""Looks at a command's processes and at light nodes while it runs: who takes memory, who is at work."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PAUSE = 0.25  # seconds between looks, each of which reads all of /proc
OURS, ANSIBLE, WORKER = "gpuprov", "ansible-playbook", "worker of ansible-playbook"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Seen:
    """`memory`: peak MB of the largest process, and `cpu`: seconds of all, both by kind (OURS, ANSIBLE,
    WORKER). CPU is that of the processes themselves, up to the last look at each: of workers, which live
    for less, it says nothing. `working`: how many nodes ran a program, at each look."""

    memory: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    working: list[int] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the time, in which at least one node was at work."""
        return sum(map(bool, self.working)) / max(1, len(self.working))

    @property
    def at_once(self) -> float:
        """Nodes at work, while any was."""
        busy = [count for count in self.working if count]
        return sum(busy) / max(1, len(busy))


@dataclass(frozen=True)
class Process:
    parent: int
    name: str
    cpu: float  # seconds, without its children's


@contextlib.contextmanager
def watched(fleet: int) -> Iterator[Seen]:
    """Look at all processes below this one; `fleet`: the process below which light nodes with own roots
    are. What was seen is complete when it is left."""
    seen, left = Seen(), threading.Event()
    spent: dict[int, tuple[str, float]] = {}

    def look_on() -> None:
        while not left.wait(PAUSE):
            every = dict(processes())
            nodes = below(every, fleet)
            for pid in below(every, os.getpid()) - nodes:
                _note(pid, every, seen, spent)
            seen.working.append(len(_at_work(every, nodes, fleet)))

    thread = threading.Thread(target=look_on, name="watch", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        left.set()
        thread.join()
        for kind, seconds in spent.values():
            seen.cpu[kind] = seen.cpu.get(kind, 0.0) + seconds


def processes() -> Iterator[tuple[int, Process]]:
    """All of this machine."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 (several hundred names, many times a second)
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                head, _, tail = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")
                fields = tail.split()
                cpu = (int(fields[11]) + int(fields[12])) / _TICKS
                yield int(entry), Process(int(fields[1]), head.partition("(")[2], cpu)


def below(every: Mapping[int, Process], root: int) -> set[int]:
    """The descendants of a process."""
    children: dict[int, list[int]] = {}
    for pid, process in every.items():
        children.setdefault(process.parent, []).append(pid)
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return set(found)


def _at_work(every: Mapping[int, Process], nodes: set[int], fleet: int) -> set[int]:
    """The nodes, each by its first process, that run something else than SSH servers."""
    keepers = {pid for pid in nodes if every[pid].parent == fleet}
    found = set()
    for pid in nodes - keepers:
        if every[pid].name != "sshd":
            while every[pid].parent not in keepers and every[pid].parent in nodes:
                pid = every[pid].parent
            found.add(pid)
    return found


def _note(pid: int, every: Mapping[int, Process], seen: Seen, spent: dict[int, tuple[str, float]]) -> None:
    kind = _kind(pid)
    if kind == ANSIBLE and _kind(every[pid].parent) == ANSIBLE:
        kind = WORKER
    if kind:
        spent[pid] = kind, every[pid].cpu
        with contextlib.suppress(OSError, IndexError):
            peak = int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
            seen.memory[kind] = max(peak, seen.memory.get(kind, 0.0))


def _kind(pid: int) -> str:
    """By its command line; what stands before a command to watch or to start it is none of them."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    if words[1:3] == ["-m", "provision.cli"]:
        return OURS
    return ANSIBLE if any(word.endswith("/ansible-playbook") for word in words[:2]) else ""
