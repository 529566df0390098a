"""`scontrol` and `squeue` of a Slurm that is a file: slurm_stub.py STATE PROGRAM ARGUMENTS.

It runs no jobs. It knows the requests that gpuprov makes of Slurm, and answers like 24.11: the lines of a
node are those of slurm_sprint_node_table in Slurm's src/api/node_info.c; changes and refusals are those
observed in tests/lab/test_slurm.py. It records each change with its time, for measurements.
Runs on a node's own Python; standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PARTITION = "gpu"
NODE = """\
NodeName={name} Arch=x86_64 CoresPerSocket=48 
   CPUAlloc=0 CPUEfctv=96 CPUTot=96 CPULoad=0.04
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=gpu:h100:8
   NodeAddr={name} NodeHostName={name} Version=24.11.5
   OS=Linux 6.12.57+deb13-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05) 
   RealMemory=2000000 AllocMem=0 FreeMem=1900000 Sockets=2 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
{pools}   BootTime=2026-11-24T10:00:00 SlurmdStartTime=2026-11-24T10:01:00
   LastBusyTime=2026-11-25T09:00:00 ResumeAfterTime=None
   CfgTRES=cpu=96,mem=2000000M,billing=96
   AllocTRES=
   CurrentWatts=0 AveWatts=0
{reason}{comment}
"""  # noqa: W291 - as Slurm prints it


@dataclass(frozen=True)
class Change:
    """One change. `at`: seconds since 1970.
    `kind`: `drain`, `mark` (another reason for a drained node), `resume`, `join` or `leave` (the partition).
    """

    at: float
    kind: str
    node: str


class RefusedError(Exception):
    """The error output of a refused Slurm command."""


class Cluster:
    """The nodes in a file: name → state, reason, partition ("" for none). Safe across processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, serving: Sequence[str], spares: Sequence[str]) -> None:
        """Begin with nodes in service, and spares that are not in a partition yet."""
        rows = {name: {"state": "IDLE", "reason": "", "pool": PARTITION} for name in serving}
        rows |= {name: {"state": "IDLE", "reason": "", "pool": ""} for name in spares}
        self._path.write_text(json.dumps({"nodes": rows, "changes": []}))

    def nodes(self) -> dict[str, dict[str, str]]:
        with self._held() as found:
            return dict(found["nodes"])

    def changes(self) -> list[Change]:
        """Return all changes so far, in order."""
        with self._held() as found:
            return [Change(**one) for one in found["changes"]]

    @contextlib.contextmanager
    def _held(self) -> Iterator[dict[str, Any]]:
        """Yield the file's content under a lock and write back any changes."""
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self._path.read_text()
            found = json.loads(before)
            yield found
            if (after := json.dumps(found)) != before:
                beside = self._path.with_suffix(".new")
                beside.write_text(after)
                beside.replace(self._path)

    def show(self, names: Sequence[str]) -> str:
        """Answer `scontrol show node`. Raises RefusedError, with the known nodes, if any node is unknown."""
        rows = self.nodes()
        text = "".join(_shown(name, rows[name]) for name in names if name in rows)
        if strange := [name for name in names if name not in rows]:
            raise RefusedError(text + "".join(f"Node {name} not found\n" for name in strange))
        return text

    def reservation(self, verb: str, given: Sequence[str]) -> tuple[int, str, str]:
        """Show all reservations, create one or delete one; only their names are kept."""
        name = next((word.partition("=")[2] for word in given if word.startswith("ReservationName=")), "")
        with self._held() as found:
            there = found.setdefault("reservations", [])
            if verb == "show":
                rows = [f"ReservationName={one} StartTime=2026-11-25T23:52:56\n" for one in there]
                return 0, "".join(rows) or "No reservations in the system\n", ""
            if verb == "create" and name in there:
                return 1, "", "Error creating the reservation: Duplicate reservation name\n"
            there[:] = [*there, name] if verb == "create" else [one for one in there if one != name]
        return 0, "", ""

    def update(self, given: Mapping[str, str]) -> None:
        """Apply `scontrol update` to a node or a partition. Raises RefusedError."""
        with self._held() as found:
            rows, changes = found["nodes"], found["changes"]
            if given.get("PartitionName", PARTITION) != PARTITION:
                raise RefusedError("slurm_update error: Invalid partition name specified\n")
            for kind, name in _asked(given, rows):
                row = rows.get(name)
                if row is None:
                    raise RefusedError("slurm_update error: Invalid node name specified\n")
                if kind == "resume" and row["state"] != "IDLE+DRAIN":
                    raise RefusedError("slurm_update error: Invalid node state specified\n")
                if kind == "comment":
                    row["comment"] = given["Comment"]
                    continue
                if kind in ("join", "leave"):
                    row["pool"] = PARTITION if kind == "join" else ""
                else:  # a reason outlives its drain
                    row["state"] = "IDLE" if kind == "resume" else "IDLE+DRAIN"
                    row["reason"] = given.get("Reason") or row["reason"]
                changes.append(asdict(Change(time.time(), kind, name)))


def _shown(name: str, row: Mapping[str, str]) -> str:
    reason, pool = row["reason"], row["pool"]
    return NODE.format(
        name=name,
        state=row["state"],
        pools=f"   Partitions={pool} \n" if pool else "",
        reason=f"   Reason={reason} [root@2026-11-25T23:52:56]\n" if reason else "",
        comment=f"   Comment={row['comment']}\n" if row.get("comment") else "",
    )


def _asked(given: Mapping[str, str], rows: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the changes that an update requests: (kind, node)."""
    for words, kind in (("Nodes+", "join"), ("Nodes-", "leave")):
        if words in given:
            return [(kind, name) for name in given[words].split(",")]
    names = given.get("NodeName", "").split(",")
    if "Comment" in given:
        return [("comment", name) for name in names]
    if given.get("State") == "RESUME":
        return [("resume", name) for name in names]
    if given.get("State") == "DRAIN":
        return [
            ("mark" if "DRAIN" in rows.get(name, {}).get("state", "") else "drain", name) for name in names
        ]
    raise RefusedError("scontrol: error: the benchmark's Slurm does not know this update\n")


def main(cluster: Cluster, words: Sequence[str]) -> tuple[int, str, str]:
    """Run one command and return its exit status, output and error output."""
    match list(words):
        case ["squeue", *options]:
            listed = next((word for word in options if word.startswith("--nodelist=")), "--nodelist=")
            known = cluster.nodes()
            strange = [name for name in listed[11:].split(",") if name not in known]
            return (1, "", f"squeue: error: Invalid node name {strange[0]}\n") if strange else (0, "", "")
        case ["scontrol", "show", "node", names]:
            try:
                return 0, cluster.show(names.split(",")), ""
            except RefusedError as error:
                return 1, str(error), ""
        case ["scontrol", "update", *given]:
            try:
                cluster.update(dict(word.partition("=")[::2] for word in given))
            except RefusedError as error:
                return 1, "", str(error)
            return 0, "", ""
        case ["scontrol", "show", "partition", _]:
            return 0, f"PartitionName={PARTITION}\n   TotalCPUs=1 TotalNodes={len(cluster.nodes())}\n", ""
        case ["scontrol", ("show" | "create" | "delete") as verb, *given]:
            return cluster.reservation(verb, given)
    return 1, "", f"{words[0]}: error: the benchmark's Slurm does not know this command\n"


if __name__ == "__main__":
    status, said, wrong = main(Cluster(Path(sys.argv[1])), sys.argv[2:])
    sys.stdout.write(said)
    sys.stderr.write(wrong)
    sys.exit(status)
