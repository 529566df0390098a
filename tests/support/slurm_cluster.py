"""A Slurm cluster in memory for `Slurm(…, ask=…)`; answers like 24.11.5 (tests/lab/test_slurm.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from provision.remote.schedulers.commands import Command, CommandsError, Done


@dataclass
class Cluster:
    """A cluster. `nodes`: name → [state, reason]; `jobs`: squeue's lines; `pools`: partition → nodes.
    `denied`: error for every update; `down`: error while slurmctld does not answer."""

    nodes: dict[str, list[str]]
    jobs: list[str] = field(default_factory=list)
    pools: dict[str, list[str]] = field(default_factory=dict)
    denied: str = ""
    down: str = ""
    adds: bool = True  # whether it supports Nodes+=
    comments: dict[str, str] = field(default_factory=dict)
    updates: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, commands: Sequence[Command]) -> list[Done]:
        if self.down:
            raise CommandsError(self.down)
        return [self._one(tuple(words)) for words in commands]

    def _one(self, words: tuple[str, ...]) -> Done:
        if words[0] == "squeue":
            asked = next(word for word in words if word.startswith("--nodelist=")).partition("=")[2]
            strange = [name for name in asked.split(",") if name not in self.nodes]
            if strange:
                return Done(1, "", f"squeue: error: Invalid node name {strange[0]}\n")
            return Done(0, "".join(f"{job}\n" for job in self.jobs))
        if words[1] == "show" and words[2] == "node":
            known = [name in self.nodes for name in words[3].split(",")]
            return Done(0 if all(known) else 1, "".join(map(self._shown, words[3].split(","))))
        if words[1] == "show":
            return Done(0, f"PartitionName={words[3]}\n   Nodes={','.join(self.pools[words[3]])}\n")
        self.updates.append(words[2:])
        if self.denied:
            return Done(1, "", f"slurm_update error: {self.denied}\n")
        given = dict(word.partition("=")[::2] for word in words[2:])
        return self._partition(given) if "PartitionName" in given else self._node(given)

    def _shown(self, name: str) -> str:
        if name not in self.nodes:
            return f"Node {name} not found\n"
        state, reason = self.nodes[name]
        pools = ",".join(pool for pool, members in self.pools.items() if name in members)
        lines = [f"NodeName={name} Arch=x86_64 ", f"   State={state} ThreadsPerCore=1"]
        lines += [f"   Partitions={pools} "] if pools else []
        lines += [f"   Reason={reason} [root@2026-11-25T23:52:56]"] if reason else []
        lines += [f"   Comment={self.comments[name]}"] if self.comments.get(name) else []
        return "\n".join([*lines, "", ""])

    def _node(self, given: dict[str, str]) -> Done:
        for name in given["NodeName"].split(","):  # the nodes listed before an unknown one are changed
            if name not in self.nodes:
                return Done(1, "", "slurm_update error: Invalid node name specified\n")
            if "Comment" in given:
                self.comments[name] = given["Comment"]
                continue
            state, reason = self.nodes[name]
            flags = [flag for flag in state.split("+") if flag != "DRAIN"]
            if given.get("State") == "RESUME" and "DRAIN" not in state:
                return Done(1, "", "slurm_update error: Invalid node state specified\n")
            if given.get("State") == "DRAIN":
                flags.append("DRAIN")
            elif given.get("State") == "RESUME" and flags[0] == "DOWN":
                flags[0] = "IDLE"
            self.nodes[name] = ["+".join(flags), given.get("Reason") or reason]
        return Done(0)

    def _partition(self, given: dict[str, str]) -> Done:
        members = self.pools[given["PartitionName"]]
        if "Nodes+" in given and not self.adds:
            text = f"scontrol: error: Update of this parameter is not supported: Nodes+={given['Nodes+']}\n\n"
            return Done(1, "", f"{text}scontrol: error: Request aborted\n")
        if "Nodes+" in given:
            members.append(given["Nodes+"])
        else:
            self.pools[given["PartitionName"]] = given["Nodes"].split(",")
        return Done(0)
