"""A fleet for the watch, and a scheduler in a file, which survives the watch."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.checks.judge import Verdict
from provision.fleet import Fleet, Node
from provision.remote.schedulers import PREFIX, BreakerError, Holder, Job, Scheduled
from provision.remote.schedulers.lease import Lease, put, read
from provision.remote.schedulers.slurm_breaker import limit
from provision.up.watch.policy import SPARES
from provision.up.watch.seen import Seen

GOOD: dict[str, Any] = {"verdict": Verdict.PASS}
LOST: dict[str, Any] = {
    "verdict": Verdict.FAIL,
    "fatal": True,
    "cause": "gpu3 has fallen off the bus (Xid 79)",
    "device": "gpu3",
    "serial": "1650923004321",
    "action": "power-cycle",
}
SILENT: dict[str, Any] = {"verdict": Verdict.ERROR, "silent": True, "trouble": "no answer"}


def fleet(nodes: int = 8, spares: int = 2, **variables: Any) -> Fleet:
    """Return a fleet of gpu-01, … in racks of four, and spare-1, …, one in each rack."""
    found: dict[str, Node] = {}
    same = {"gpuprov_sku": "h100-sxm", "gpuprov_stack": "r580", **variables}
    for number in range(nodes):
        name = f"gpu-{number + 1:02d}"
        found[name] = Node(name, ("gpu_nodes",), {**same, "gpuprov_rack": f"r{number // 4 + 1}"})
    for number in range(spares):
        name = f"spare-{number + 1}"
        found[name] = Node(name, ("gpu_nodes", SPARES), {**same, "gpuprov_rack": f"r{number + 1}"})
    waiting = tuple(name for name in found if name.startswith("spare"))
    return Fleet(Path("/inventory/nodes.yml"), found, {"gpu_nodes": tuple(found), SPARES: waiting})


def seen(node: str, since: float = 0.0, **how: Any) -> Seen:
    return Seen(node, since=since, **{**GOOD, **how})


class FileScheduler:
    """A scheduler with its nodes and effective changes in a file.

    `broken`: method → node → the error that it returns."""

    kind = "slurm"
    settle = 0.0

    def __init__(self, path: Path, broken: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.path = path
        self._done: list[str] = []
        self.broken = {method: dict(nodes) for method, nodes in (broken or {}).items()}

    def begin(self, fleet: Fleet, pools: Mapping[str, Sequence[str]] | None = None) -> None:
        """Put every node into service in the partition `gpu`; drain the spares, which are in no partition."""
        rows: dict[str, Any] = {}
        for name in fleet.nodes:
            spare = name in fleet.groups[SPARES]
            named = list((pools or {}).get(name, [] if spare else ["gpu"]))
            rows[name] = {"reason": f"{PREFIX}spare" if spare else "", "pools": named, "jobs": []}
        atomic_file.write(self.path, json.dumps({"rows": rows, "done": []}))

    @contextmanager
    def rows(self) -> Iterator[dict[str, Any]]:
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.path.read_text()
            whole = json.loads(before)
            self._done = whole["done"]
            yield whole["rows"]
            if (after := json.dumps(whole)) != before:
                atomic_file.write(self.path, after)

    def done(self) -> list[str]:
        """Return the changes in order."""
        return [str(line) for line in json.loads(self.path.read_text())["done"]]

    def set(self, node: str, **row: Any) -> None:
        with self.rows() as rows:
            rows[node].update(row)

    def leases(self) -> dict[str, str]:
        """Return node → the text of its lease, for nodes with a lease."""
        path = self.path.with_suffix(".leases")
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        problems = dict(self.broken.get("lease", {}))
        with self.rows():  # for its lock
            texts = self.leases()
            for name, lease in leases.items():
                if read(texts.get(name, "")) != before[name]:
                    problems[name] = "another watch changed its lease just now"
                elif name not in problems:
                    texts[name] = put("", lease)
            atomic_file.write(self.path.with_suffix(".leases"), json.dumps(texts))
        return {name: why for name, why in problems.items() if name in leases}

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        found = {}
        with self.rows() as rows:
            leases = self.leases()
            for name in nodes:
                if error := self.broken.get("look", {}).get(name):
                    found[name] = Scheduled(name, error=error)
                    continue
                row = rows[name]
                reason, down = row["reason"], bool(row.get("down"))
                mine = reason.startswith(PREFIX)
                holder = Holder.US if mine else Holder.OTHERS if reason else Holder.NOBODY
                state = "IDLE+DRAIN" if reason else "DOWN" if down else "IDLE"
                jobs = tuple(Job(one) for one in row["jobs"])
                free = not reason and not down
                pools = tuple(row["pools"] or row.get("left", ()))
                lease = read(leases.get(name, ""))
                found[name] = Scheduled(name, state, reason, holder, free, down, pools, jobs, lease=lease)
        return found

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        with self.rows() as rows:
            for name, why in reasons.items():
                if name not in self.broken.get("drain", {}) and not rows[name]["reason"]:
                    rows[name]["reason"] = f"{PREFIX}{why}"
                    self._done.append(f"drain {name}")
        return {name: why for name, why in self.broken.get("drain", {}).items() if name in reasons}

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        with self.rows() as rows:
            for name in nodes:
                if name not in self.broken.get("resume", {}) and rows[name]["reason"].startswith(PREFIX):
                    rows[name]["reason"] = ""
                    self._done.append(f"resume {name}")
        return {name: why for name, why in self.broken.get("resume", {}).items() if name in nodes}

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        problems = {}
        with self.rows() as rows:
            for name, why in reasons.items():
                if not rows[name]["reason"].startswith(PREFIX):
                    problems[name] = "not drained by gpuprov"
                elif rows[name]["reason"] != f"{PREFIX}{why}":
                    rows[name]["reason"] = f"{PREFIX}{why}"
                    self._done.append(f"mark {name}")
        return problems

    # The breaker of all drains: a file with the reason why it is open, and one with a line per drain.

    def breaker(self) -> str | None:
        if why := self.broken.get("breaker", {}).get("read"):
            raise BreakerError(why)
        path = self.path.with_suffix(".breaker")
        return path.read_text() if path.exists() else None

    def permit(self, node: str, share: float, least: int) -> str:
        if (why := self.breaker()) is not None:
            return f"open: {why}"
        with self.rows() as rows, self.path.with_suffix(".permits").open("a+") as permits:
            size = sum(rows[node]["pools"][:1] == row["pools"][:1] for row in rows.values())
            permits.seek(0)
            if len(permits.readlines()) >= limit(size, share, least):
                self.open_breaker("the limit")
                return "open: the limit"
            permits.write(f"{node}\n")
        return ""

    def open_breaker(self, why: str) -> None:
        self.path.with_suffix(".breaker").write_text(why)

    def close_breaker(self) -> None:
        for suffix in (".permits", ".breaker"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:  # noqa: ARG002 - as the protocol has it
        if problem := self.broken.get("join", {}).get(node):
            return problem
        with self.rows() as rows:
            for pool in pools:
                if pool not in rows[node]["pools"]:
                    rows[node]["pools"].append(pool)
                    self._done.append(f"join {node} {pool}")
        return ""


class PooledScheduler(FileScheduler):
    """A scheduler in which failed nodes leave their pools, as in Kubernetes."""

    def leave(self, node: str) -> str:
        return self._moved(node, "pools", "left")

    def rejoin(self, node: str) -> str:
        return self._moved(node, "left", "pools")

    def _moved(self, node: str, away: str, to: str) -> str:
        if problem := self.broken.get(to, {}).get(node):
            return problem
        with self.rows() as rows:
            if rows[node].get(away):
                rows[node] |= {to: rows[node][away], away: []}
                self._done.append(f"{to} {node}")
        return ""
