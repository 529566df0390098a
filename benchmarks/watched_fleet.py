"""Light nodes under `gpuprov watch`, each with its own health result, in one Slurm that is a file.

Real are the command, its SSH connections, the reader of the health result on each node, and the whole path to
Slurm: over SSH to the host of the group `gpuprov_slurm`, whose programs are stand-ins (slurm_stub.py). The
nodes have no GPUs and are declared to have none, so `gpuprov validate` on a spare logs in, observes the node
and judges it, but has nothing to measure.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import health_results
from benchmarks.costs import FailedError, environment, gpuprov
from benchmarks.nodes import Nodes, light
from benchmarks.slurm_stub import Cluster
from provision import atomic_file
from provision.desired import inventory
from provision.errors import ExitCode
from provision.fleet import Fleet
from provision.up.watch import incidents
from provision.up.watch.incidents import Store
from provision.up.watch.policy import SPARES

INTERVAL = 60  # seconds between two results of a node, the default of the role node_health
_STUB = Path(__file__).with_name("slurm_stub.py")
_GROUP = "gpu_nodes"
_SLURM = "slurm.json"
_PATIENCE = 120.0  # seconds


class Results(contextlib.AbstractContextManager["Results"]):
    """The health results of nodes, each rewritten once per INTERVAL, one node after another."""

    def __init__(self, nodes: Nodes, names: Sequence[str]) -> None:
        if nodes.own is None:
            raise FailedError("these nodes have no folder of their own")
        self._own = nodes.own
        self._lost: dict[str, int | None] = {}
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, args=(names,), daemon=True)
        for name in names:
            self.write(name)

    def __enter__(self) -> Results:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def write(self, node: str, lost: int | None = None) -> float:
        """Write a healthy result, or one with this GPU lost; return its time in seconds since 1970."""
        with self._guard:
            self._lost[node] = lost
            return self._write(node)

    def _write(self, node: str) -> float:
        gpu = self._lost[node]
        found = (
            health_results.healthy(node, INTERVAL)
            if gpu is None
            else health_results.lost(gpu, node, INTERVAL)
        )
        # Replaced atomically, as a node's own program does.
        atomic_file.write(self._own(node) / health_results.FILE, json.dumps(found), sync=False)
        return time.time()

    def _renew(self, names: Sequence[str]) -> None:
        for node in itertools.cycle(names):
            if self._ended.wait(INTERVAL / len(names)):
                return
            with self._guard:
                self._write(node)


@dataclass(frozen=True)
class WatchedFleet:
    """A watched fleet. `serving`, `spares`: at the start. `watching`: the process, `log`: its output."""

    nodes: Nodes
    results: Results
    serving: tuple[str, ...]
    spares: tuple[str, ...]
    fleet: Fleet
    slurm: Cluster
    store: Store
    watching: subprocess.Popen[bytes]
    log: Path
    start: float = 0.0  # seconds from the start of the watch until it had a result of each node

    @property
    def memory(self) -> float:
        """The peak memory of the watch so far in MB, without the checks that it starts."""
        status = Path(f"/proc/{self.watching.pid}/status").read_text("ascii")
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024

    def known(self) -> set[str]:
        """Return the nodes of which the watch has a result."""
        with contextlib.suppress(FileNotFoundError):
            whole = (self.store.path / "history.jsonl").read_text("ascii").rpartition("\n")[0]
            return {json.loads(line)["node"] for line in whole.splitlines()}
        return set()

    def validated(self) -> set[str]:
        """Return the spares that the watch has validated."""
        return {name for name, one in self.store.validated().items() if one["verdict"] == "pass"}

    def until(
        self, holds: Callable[[], bool], what: str, limit: float = _PATIENCE, pause: float = 0.1
    ) -> None:
        """Wait until `holds()`, polling every `pause` seconds.

        Raises FailedError after `limit` seconds, or when the watch has ended."""
        end = time.monotonic() + limit
        while not holds():
            if self.watching.poll() is not None or time.monotonic() > end:
                why = "the watch has ended" if self.watching.poll() is not None else f"not after {limit:g} s"
                last = self.log.read_text(errors="replace").splitlines()[-3:]
                raise FailedError(f"{what}: {why}: {' | '.join(last)}")
            time.sleep(pause)


@contextlib.contextmanager
def watched(serving: int, spares: int, folder: Path, policy: dict[str, Any]) -> Iterator[WatchedFleet]:
    """Start a watched fleet of nodes in service and validated spares, all known to the watch.
    `policy`: the variable gpuprov_watch."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(light(serving + spares + 1, own=health_results.FOLDER))
        *every, head = nodes.names
        source = _inventory(nodes, folder, every[serving:], head, policy)
        slurm = _slurm(nodes, head)
        slurm.begin(every[:serving], every[serving:])
        results = stack.enter_context(Results(nodes, every))
        fleet = inventory.select(inventory.load(source), _GROUP)
        log = folder / "watch.log"
        _set_aside(source, folder, every[serving:])
        began = time.monotonic()
        process = stack.enter_context(_watching(source, folder, log))
        store = Store(_state(fleet, folder))
        place = (tuple(every[:serving]), tuple(every[serving:]))
        one = WatchedFleet(nodes, results, *place, fleet, slurm, store, process, log)
        one.until(lambda: one.known() >= set(every), "every node has told its result", 600, 0.5)
        one = replace(one, start=time.monotonic() - began)
        one.until(lambda: one.validated() >= set(one.spares), "the spares are validated", 60.0 * spares)
        yield one


def _set_aside(source: Path, folder: Path, spares: Sequence[str]) -> None:
    """Drain the spares for the watch, which leaves that to the operator. Raises FailedError."""
    command = gpuprov("watch", "spare", str(source), "--nodes", ",".join(spares))
    around = {**os.environ, **environment(folder)}
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode != ExitCode.OK:
        raise FailedError(f"gpuprov watch spare: {done.stderr[-300:]}")


@contextlib.contextmanager
def _watching(source: Path, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the watch. Raises FailedError unless it exits cleanly."""
    command = gpuprov("watch", str(source), "--nodes", _GROUP, "--timeout", f"{_PATIENCE:g}")
    around = {**os.environ, **environment(folder)}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=around)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode != ExitCode.OK:
        raise FailedError(f"the watch ended with {process.returncode}: {log.read_text()[-300:]}")


def _inventory(nodes: Nodes, folder: Path, spares: Sequence[str], head: str, policy: dict[str, Any]) -> Path:
    """Write an inventory of the nodes with the host of Slurm's commands in a separate group."""
    source = nodes.inventory(
        folder,
        gpuprov_roles=[],
        gpuprov_scheduler="slurm",
        gpuprov_watch=policy,
        gpuprov_expected_gpus=0,
        nvidia_driver_require_gpu=False,
    )
    declared = json.loads(source.read_text())
    groups = {_GROUP: [name for name in nodes.names if name != head], SPARES: spares, "gpuprov_slurm": [head]}
    declared["all"]["children"] = {
        group: {"hosts": {name: {} for name in members}} for group, members in groups.items()
    }
    source.write_text(json.dumps(declared, indent=1))
    return source


def _slurm(nodes: Nodes, head: str) -> Cluster:
    """Install Slurm's commands in the shared root; their state is in the own folder of `head`."""
    if nodes.own is None:
        raise FailedError("these nodes have no folder of their own")
    for program in ("scontrol", "squeue"):
        path, state = f"/usr/local/bin/{program}", f"{health_results.FOLDER}/{_SLURM}"
        start = f'exec /usr/bin/python3 -I -S "$0.py" {state} {program} "$@"'
        nodes.run(head, f"cat > {path}.py", given=_STUB.read_text())
        nodes.run(head, f"cat > {path} && chmod 755 {path}", given=f"#!/bin/sh\n{start}\n")
    return Cluster(nodes.own(head) / _SLURM)


def _state(fleet: Fleet, folder: Path) -> Path:
    """Return the watch's state folder, which is below `folder` according to its environment."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = environment(folder)["XDG_STATE_HOME"]
    try:
        return incidents.place_of(fleet)
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
