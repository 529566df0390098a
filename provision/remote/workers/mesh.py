"""The mesh as seen by this process: which workers are usable, and which nodes each of them gets.

A worker is usable if the mesh has a route to it, its Receptor allows our work type, and its versions match
the controller's. All workers are checked concurrently before any work is sent, and the results are cached.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from provision.remote.protocol import NodeError
from provision.remote.workers import (
    Link,
    Worker,
    assignment,
    causes,
    greetings,
    leftovers,
    units,
    worker_stream,
)
from provision.remote.workers.control import Control, ControlError
from provision.remote.workers.units import Way

HELLO = 60.0  # seconds for a worker to answer a greeting
_KEPT = 600.0  # seconds until a greeting expires; each unit compares versions again
_REFUSED = 30.0  # seconds until an unusable worker is tried again
_AVOIDED = 600.0  # seconds in which a lost worker gets no nodes that others can take
_ROUTE = 3.0  # seconds until a routing table expires
_NEW = 15.0  # seconds for a newly started Receptor to find its routes
_AT_ONCE = 64  # concurrent greetings


@dataclass(frozen=True)
class Share:
    """The work of one worker: its hosts with their variables, and the Link of each."""

    way: Way
    hosts: dict[str, Mapping[str, Any]]
    links: dict[str, Link] = field(repr=False)

    @property
    def worker(self) -> str:
        return self.way.worker

    @property
    def alone(self) -> bool:
        """Return whether no other worker reaches any of the hosts."""
        return all(len(link.workers) == 1 for link in self.links.values())

    @property
    def mesh(self) -> Mesh:
        return mesh_of(next(iter(self.links.values())))


# Hosts that a worker left undone, and why; other workers may take over.
Left = Mapping[str, NodeError]


class Mesh:
    """The workers behind one Receptor of this machine. Thread-safe."""

    def __init__(self, socket: str, tls_client: str) -> None:
        self._control = Control(socket)
        self._tls_client = tls_client
        self._greeted: dict[str, tuple[float, Way | NodeError]] = {}
        self._avoided: dict[str, float] = {}
        self._routes: tuple[float, frozenset[str]] = (0.0, frozenset())
        self._controller = ""
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()
        self._counting = threading.Lock()  # separate, since the other lock is held while workers are greeted

    def assign(
        self,
        hosts: Mapping[str, Mapping[str, Any]],
        links: Mapping[str, Link],
        without: Collection[str] = (),
    ) -> tuple[list[Share], dict[str, NodeError]]:
        """Assign hosts to usable workers except `without`; return shares, and host → error for the rest."""
        candidates = {name: found for name in hosts if (found := self._preferred(links[name], without))}
        ways = self._usable({worker.name: worker for found in candidates.values() for worker in found})
        unusable = {worker: state for worker, state in ways.items() if isinstance(state, NodeError)}
        with self._counting:
            busy = dict(self._busy)
        chosen, stranded = assignment.spread(
            {name: [worker.name for worker in found] for name, found in candidates.items()}, unusable, busy
        )
        shares = []
        for worker, names in chosen.items():
            way = ways[worker]
            assert isinstance(way, Way)  # noqa: S101
            shares.append(Share(way, {n: hosts[n] for n in names}, {n: links[n] for n in names}))
        return shares, {name: unusable[worker] for name, worker in stranded.items()}

    def busy(self, worker: str, nodes: int) -> None:
        """Add `nodes`, which may be negative, to the number of nodes assigned to this worker."""
        with self._counting:
            self._busy[worker] += nodes

    def avoid(self, worker: str) -> None:
        """Prefer other workers to this lost worker for a while, and greet it again before its next use."""
        with self._lock:
            self._avoided[worker] = time.monotonic() + _AVOIDED
            _, greeted = self._greeted.pop(worker, (0.0, None))
            if isinstance(greeted, Way):
                greetings.forget(*_identity(greeted))

    def _preferred(self, link: Link, without: Collection[str]) -> list[Worker]:
        now = time.monotonic()
        allowed = [worker for worker in link.workers if worker.name not in without]
        return [worker for worker in allowed if self._avoided.get(worker.name, 0.0) < now] or allowed

    def _usable(self, wanted: Mapping[str, Worker]) -> dict[str, Way | NodeError]:
        """Return how to reach each worker, or why it is unusable; greet workers concurrently."""
        with self._lock:
            now = time.monotonic()
            known = {
                w: self._greeted[w][1] for w in wanted if w in self._greeted and self._greeted[w][0] > now
            }
            # A unit for a worker that has become unreachable would wait for its whole TTL.
            known = {w: said for w, said in known.items() if isinstance(said, NodeError) or self.has_route(w)}
            to_greet = [worker for worker in wanted if worker not in known]
            if not to_greet:
                return known
            leftovers.sweep()
            with ThreadPoolExecutor(min(_AT_ONCE, len(to_greet))) as threads:
                answers = threads.map(lambda worker: self._greet(wanted[worker]), to_greet)
            for worker, said in zip(to_greet, answers, strict=True):
                kept = _REFUSED if isinstance(said, NodeError) else _KEPT
                self._greeted[worker] = (time.monotonic() + kept, said)
                known[worker] = said
            return known

    def _greet(self, worker: Worker) -> Way | NodeError:
        name = worker.name
        try:
            refused = self._not_in_mesh(name)
        except ControlError as error:
            return causes.no_receptor(name, error)
        if refused is not None:
            return refused
        way = Way(self._control, self._tls_client, self._controller, name, worker.socket)
        way = replace(
            way, route=functools.partial(self.has_route, name), again=lambda: self._ask(worker, way)
        )
        key = greetings.recalled(*_identity(way))
        return self._ask(worker, way) if key is None else replace(way, public_key=key)

    def _ask(self, worker: Worker, way: Way) -> Way | NodeError:
        """Greet a worker, bypassing the cache."""
        name = worker.name
        answer, trouble = units.hello(way, HELLO)
        if answer is None or trouble is not None:
            return trouble or causes.of_words(name, b"")
        what, fix = worker_stream.differences(answer, worker.python)
        if what:
            return NodeError("python", f"worker {name}: {what}", fix)
        if answer.get("socket"):
            return causes.no_socket(name, str(answer["socket"]))
        way = replace(way, public_key=str(answer.get("key")))
        greetings.remember(way.public_key, *_identity(way))
        self._greeted[name] = (time.monotonic() + _KEPT, way)
        return way

    def _not_in_mesh(self, worker: str) -> NodeError | None:
        """Return why this machine's Receptor cannot send work to a worker. Raises ControlError."""
        end = time.monotonic() + _NEW
        while True:
            status = self._control.status()
            routes = status.get("RoutingTable")
            if routes or time.monotonic() > end:
                break
            time.sleep(1.0)
        self._controller = str(status.get("NodeID"))
        if not isinstance(routes, Mapping) or worker not in routes:
            return causes.no_route(worker)
        for advert in status.get("Advertisements") or ():
            types = advert.get("WorkCommands") if isinstance(advert, Mapping) else None
            if not isinstance(types, list) or advert.get("NodeID") != worker:
                continue
            ours = [
                one for one in types if isinstance(one, Mapping) and one.get("WorkType") == units.WORK_TYPE
            ]
            if not ours:
                return causes.of_refusal(worker, f"unknown work type {units.WORK_TYPE}")
            if ours[0].get("Secure") is False:
                return causes.of_refusal(worker, "work type did not expect a signature")
        return None

    def has_route(self, worker: str) -> bool:
        """Return whether this machine's Receptor has a route to the worker now."""
        with_time, routes = self._routes
        if time.monotonic() - with_time > _ROUTE:
            try:
                table = self._control.status().get("RoutingTable")
            except ControlError:
                table = {}  # without this machine's Receptor no worker is reachable
            routes = frozenset(table) if isinstance(table, Mapping) else frozenset()
            self._routes = (time.monotonic(), routes)
        return worker in routes


def _identity(way: Way) -> tuple[str, ...]:
    return way.control.path, way.tls_client, way.controller, way.worker, way.socket


_meshes: dict[tuple[str, str], Mesh] = {}
_lock = threading.Lock()


def mesh_of(link: Link) -> Mesh:
    """Return the mesh of a Link; there is one per Receptor and tls-client."""
    with _lock:
        key = (link.socket, link.tls_client)
        if key not in _meshes:
            _meshes[key] = Mesh(*key)
        return _meshes[key]


def assigned(
    hosts: Mapping[str, Mapping[str, Any]], links: Mapping[str, Link], without: Collection[str] = ()
) -> tuple[list[Share], dict[str, NodeError]]:
    """Run `Mesh.assign` for each mesh of these hosts."""
    shares: list[Share] = []
    stranded: dict[str, NodeError] = {}
    meshes: dict[Mesh, list[str]] = {}
    for name in hosts:
        meshes.setdefault(mesh_of(links[name]), []).append(name)
    for mesh, names in meshes.items():
        mesh_shares, none = mesh.assign({n: hosts[n] for n in names}, {n: links[n] for n in names}, without)
        shares += mesh_shares
        stranded |= none
    return shares, stranded


def worked(shares: Collection[Share], work: Callable[[Share], Left]) -> dict[str, NodeError]:
    """Run `work` for each share in its own thread; return host → error for hosts left undone.
    Hosts that a worker leaves undone are passed on to their other workers, while there are any."""
    return _worked(shares, work, frozenset())


def _worked(
    shares: Collection[Share], work: Callable[[Share], Left], without: frozenset[str]
) -> dict[str, NodeError]:
    failed: dict[str, NodeError] = {}
    raised: list[BaseException] = []

    def one(share: Share) -> None:
        try:
            try:
                left = work(share)
            finally:
                share.mesh.busy(share.worker, -len(share.hosts))
            if not left:
                return
            share.mesh.avoid(share.worker)
            names = {name: share.hosts[name] for name in share.hosts if name in left}
            tried = without | {share.worker}
            passed_on, none = assigned(names, {name: share.links[name] for name in names}, tried)
            done = {name for other in passed_on for name in other.hosts}
            failed.update({name: none.get(name, left[name]) for name in names if name not in done})
            failed.update(_worked(passed_on, work, tried))
        except BaseException as error:  # re-raised in the waiting thread
            raised.append(error)

    for share in shares:
        share.mesh.busy(share.worker, len(share.hosts))
    threads = [threading.Thread(target=one, args=(share,), name="worker", daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return failed
