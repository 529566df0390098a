"""A failing node under `gpuprov watch`, and the required outcome: drained, one spare in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.costs import FailedError
from benchmarks.slurm_stub import PARTITION, Change
from benchmarks.watched_fleet import WatchedFleet
from provision.remote.schedulers import PREFIX
from provision.up.watch.incidents import Incident, Step

MOMENTS = ("noticed", "drained", "a spare in the partition", "the spare takes jobs")
Rows = Mapping[str, Mapping[str, str]]  # Slurm's nodes: slurm_stub.Cluster.nodes


@dataclass(frozen=True)
class Substitution:
    """One replaced node.
    `at`: when its result reported `gpu` as lost, in seconds since 1970. `changes`: Slurm's since then."""

    node: str
    gpu: int
    at: float
    incident: Incident
    changes: tuple[Change, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds from the fault to each of MOMENTS."""
        when = {change.kind: change.at for change in self.changes}
        moments = (self.incident.opened, when["drain"], when["join"], when["resume"])
        return dict(zip(MOMENTS, (moment - self.at for moment in moments), strict=True))

    def wrong(self, before: Rows, after: Rows) -> str:
        """Return the first deviation from the required outcome, or ""."""
        one, spare = self.incident, self.incident.spare
        if (one.node, one.step) != (self.node, Step.REPAIR) or f"gpu{self.gpu} " not in one.cause:
            return f"the incident is of {one.node}: {one.step}: {one.cause}"
        if not spare or spare not in waiting(before):
            return f"{spare or 'no node'} took its place; {', '.join(waiting(before))} waited"
        done = [(change.kind, change.node) for change in self.changes]
        if done != [("drain", self.node), ("mark", spare), ("join", spare), ("resume", spare)]:
            return f"Slurm was told {done}"
        drained = {**before[self.node], "state": "IDLE+DRAIN", "reason": f"{PREFIX}{one.reason}"}
        placed = {**after[spare], "state": "IDLE", "pool": PARTITION}  # the reason outlives its drain
        wanted = {**before, self.node: drained, spare: placed}
        leases = {name: {"comment": row["comment"]} for name, row in after.items() if "comment" in row}
        odd = {name: row for name, row in after.items() if row != {**wanted[name], **leases.get(name, {})}}
        return f"Slurm has {odd}" if odd else ""


def waiting(rows: Rows) -> list[str]:
    """Return the nodes that are drained as spares."""
    return [name for name, row in rows.items() if (row["state"], row["pool"]) == ("IDLE+DRAIN", "")]


def substituted(fleet: WatchedFleet, node: str, gpu: int) -> Substitution:
    """Let the node lose the GPU and return the outcome. Raises FailedError if it is wrong."""
    rows, changes = fleet.slurm.nodes(), len(fleet.slurm.changes())
    known = {one.id for one in fleet.store.incidents()}
    at = fleet.results.write(node, lost=gpu)
    opened: list[Incident] = []

    def ended() -> bool:
        opened[:] = [one for one in fleet.store.incidents() if one.id not in known]
        return bool(opened) and not any(one.is_open for one in opened)

    fleet.until(ended, f"{node} is replaced")
    one = Substitution(node, gpu, at, opened[0], tuple(fleet.slurm.changes()[changes:]))
    wrong = one.wrong(rows, fleet.slurm.nodes()) or ("it has several incidents" if opened[1:] else "")
    if wrong:
        raise FailedError(f"{node} was not replaced as it must be: {wrong}")
    return one
