"""Concurrent observation of many nodes, one round trip each. The program on the node is node/observe/."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from provision import paths
from provision.fleet import Node
from provision.remote import node_program
from provision.remote.protocol import AnswerError, NodeError, facts_of, one_line, state_word, unframed
from provision.remote.ssh import fanout
from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError
from provision.remote.ssh.connection import Route, route_of
from provision.remote.ssh.fanout import MOST, Asked, Fanout
from provision.remote.workers import Link, split
from provision.shared_facts import Pool

if TYPE_CHECKING:
    from provision.remote.workers.worker_asks import Away

T = TypeVar("T")

PROBE_SECONDS = 8.0
RESERVE = 0.3  # share of a node's time reserved for the connection; the program gets the rest
ANSIBLE_BYTES = 180 * 1024  # of all values: Ansible's events keep 256 KiB of a task's output
ANSIBLE_FORKS = 25


@dataclass(frozen=True)
class Observation:
    """One node's answer.

    `facts`: dotted name → value. `problems`: dotted name → why the fact could not be read. `error`: the node
    as a whole could not be observed (unreachable, wrong key, sudo refused, truncated answer): one line with
    cause and next step; then `facts` is empty. `unreachable` separates a silent node from one with a bad
    answer.
    """

    node: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    unreachable: bool = False
    seconds: float = 0.0

    @property
    def trouble(self) -> str:
        """Return `unreachable: cause → next step`, or `unreadable: …`; empty if the node answered."""
        return f"{state_word(self.unreachable)}: {self.error}" if self.error is not None else ""


def observe(
    nodes: Collection[Node],
    ask: Mapping[str, Collection[str]],
    *,
    timeout: float = 60.0,
    connections: int = MOST,
    on_done: Callable[[Observation], None] | None = None,
    say: Callable[[str], None] | None = None,
    vault_password_files: Sequence[Path] = (),
    over: Reach | None = None,
) -> dict[str, Observation]:
    """Observe `nodes` concurrently; `ask` maps node name → fact names, in addition to the base facts.

    Returns one Observation per node, within `timeout` seconds each, and never raises for a node: its error is
    in the Observation. `on_done` is called in this thread, and `say` with progress and warnings for people.
    Nodes that only Ansible can reach go through playbooks/observe.yml. `over`: an open Reach, which has its
    own timeout, connections and `say`.
    """
    answers = _Answers(ask, timeout, on_done)
    if over is not None:
        over.put(answers, [node.name for node in nodes])
    else:
        put_to(nodes, answers, timeout, connections, vault_password_files, say)
    return {node.name: answers.found[node.name] for node in nodes}


def run_programs(
    nodes: Collection[Node],
    programs: Mapping[str, str],
    *,
    timeout: float = 60.0,
    connections: int = MOST,
    vault_password_files: Sequence[Path] = (),
    over: Reach | None = None,
) -> dict[str, bytes | NodeError]:
    """Run a program on each node (name → its ASCII text); return node → framed output, or its error.

    Nodes are reached as in `observe`, or `over` an open Reach with its own timeout. Never raises for a
    node."""
    outputs = _Outputs(programs)
    if over is not None:
        over.put(outputs, programs)
    else:
        put_to(nodes, outputs, timeout, connections, vault_password_files)
    return {node.name: outputs.found[node.name] for node in nodes}


def put_to(
    nodes: Collection[Node],
    asked: Asked,
    timeout: float,
    connections: int,
    vault_password_files: Sequence[Path],
    say: Callable[[str], None] | None = None,
) -> None:
    """Run each node's program and deliver the results: over SSH, through Ansible, or by a worker."""
    with Reach(nodes, timeout, connections, vault_password_files, say) as reach:
        reach.put(asked)


class Reach(contextlib.AbstractContextManager["Reach"]):
    """Routes to nodes, for one or several calls of `put`.

    `persistent`: SSH connections stay open between calls until `close`; Ansible and workers log in each time.
    Safe to use from several threads, which take turns."""

    def __init__(
        self,
        nodes: Collection[Node],
        timeout: float,
        connections: int,
        vault_password_files: Sequence[Path],
        say: Callable[[str], None] | None = None,
        *,
        persistent: bool = False,
    ) -> None:
        here, self._links, self._away = _by_worker(nodes)
        self._routes, self._for_ansible = _divide(here)
        self._timeout = timeout
        self._connections = connections
        self._files = vault_password_files
        self._say = say or (lambda _line: None)
        self._persistent = persistent
        self._direct: Fanout | None = None
        self._turn = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open connections; another `put` logs in again."""
        with self._turn:
            self._hang_up()

    def _hang_up(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.__exit__()

    def put(self, asked: Asked, nodes: Collection[str] | None = None) -> None:
        """Run each node's program, on all nodes or on `nodes`, and deliver all results."""
        with self._turn:
            try:
                self._put(asked, nodes)
            except BaseException:  # nothing waits for the remaining answers
                self._hang_up()
                raise

    def _put(self, asked: Asked, nodes: Collection[str] | None) -> None:
        selected = set(nodes) if nodes is not None else None

        def chosen(ways: Mapping[str, T]) -> dict[str, T]:
            return {name: route for name, route in ways.items() if selected is None or name in selected}

        routes, for_ansible, away = chosen(self._routes), chosen(self._for_ansible), chosen(self._away)
        with contextlib.ExitStack() as stack:
            gathered: list[Callable[[], None]] = []
            others = None
            if away:
                others = stack.enter_context(self._workers(away, asked))
                gathered.append(others.gather)
            direct = self._ask_directly(routes, asked) if routes else None
            if direct is not None:
                gathered.append(direct.gather)

            # run_playbook blocks this thread; SSH answers are collected between its events
            def meanwhile() -> None:
                for gather in gathered:
                    gather()

            if for_ansible:
                _through_ansible(for_ansible, asked, self._timeout, meanwhile, self._files)
            if direct is not None:
                direct.finish(others.gather if others is not None else None)
            if others is not None:
                others.finish()

    def _workers(self, away: Mapping[str, Mapping[str, Any]], asked: Asked) -> Away:
        from provision.remote.workers.worker_asks import Away  # imported here, since workers do not use it

        return Away(
            away,
            self._links,
            {name: (asked.program(name), asked.program(name, ANSIBLE_BYTES)) for name in away},
            asked.take,
            self._say,
            timeout=self._timeout,
            connections=self._connections,
            vault_password_files=self._files,
        )

    def _ask_directly(self, names: Collection[str], asked: Asked) -> Fanout:
        if self._direct is not None:
            self._direct.ask_again(names, asked)
            return self._direct
        routes = self._routes
        fitting = fanout.fitting(routes.values(), self._connections, self._say)
        kept = fanout.keepable(routes.values(), fitting, self._say) if self._persistent else 0
        self._direct = Fanout(routes, names, asked, self._timeout, fitting, self._say, persistent=kept)
        return self._direct


def _by_worker(
    nodes: Collection[Node],
) -> tuple[list[Node], dict[str, Link], dict[str, Mapping[str, Any]]]:
    """Return the nodes observed from here, the Link of each other node, and its variables."""
    here, links, away = split({node.name: node.variables for node in nodes})
    return (
        [
            node if node.variables is here[node.name] else replace(node, variables=here[node.name])
            for node in nodes
            if node.name in here
        ],
        links,
        away,
    )


def _divide(nodes: Collection[Node]) -> tuple[dict[str, Route], dict[str, Node]]:
    """Split nodes into SSH routes and nodes that only Ansible can reach."""
    routes, why = _routes(nodes)
    return routes, {node.name: node for node in nodes if node.name in why}


def _routes(nodes: Collection[Node]) -> tuple[dict[str, Route], dict[str, str]]:
    """Return the routes of nodes reached over SSH, and why Ansible must reach the others."""
    configs = ConfigFiles()
    routes: dict[str, Route] = {}
    why: dict[str, str] = {}
    for node in nodes:
        try:
            routes[node.name] = route_of(node, configs)
        except NotUnderstoodError as error:
            why[node.name] = str(error)
    return routes, why


def routed(nodes: Collection[Node]) -> tuple[dict[str, Route], dict[str, str]]:
    """Return the routes of nodes reached over SSH from here, and why other nodes have none."""
    here, links, _ = _by_worker(nodes)
    routes, for_ansible = _routes(here)
    why = {name: f"only Ansible reaches it ({one_line(reason)})" for name, reason in for_ansible.items()}
    return routes, why | {
        name: f"only its worker {link.workers[0].name} reaches it" for name, link in links.items()
    }


class _Outputs:
    """Programs and their raw output."""

    def __init__(self, programs: Mapping[str, str]) -> None:
        self.found: dict[str, bytes | NodeError] = {}
        self._programs = programs

    def program(self, node: str, limit: int | None = None) -> str:  # noqa: ARG002
        return self._programs[node]

    def take(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> None:  # noqa: ARG002
        self.found.setdefault(node, output if isinstance(output, NodeError) else bytes(output))


class _Answers:
    """Requested facts and the resulting observations."""

    def __init__(
        self,
        ask: Mapping[str, Collection[str]],
        timeout: float,
        on_done: Callable[[Observation], None] | None,
    ) -> None:
        self.found: dict[str, Observation] = {}
        self._ask = ask
        self._seconds = timeout * (1 - RESERVE)
        self._on_done = on_done
        self._programs: dict[tuple[frozenset[str], int | None], str] = {}
        self._pool = Pool()

    def program(self, node: str, limit: int | None = None) -> str:
        """Return the program for a node with its call, in ASCII; nodes with the same request share it."""
        key = (frozenset(self._ask.get(node, ())), limit)
        if key not in self._programs:
            request: dict[str, Any] = {
                "facts": sorted(key[0]),
                "probe_seconds": min(PROBE_SECONDS, self._seconds / 2),
                "seconds": self._seconds,
            }
            if limit:
                request["bytes"] = limit
            # Literals of plain values: names of facts are escaped, and no brace is left for Ansible to
            # expand.
            values = ", ".join(f"{name}={value!a}" for name, value in request.items())
            literals = values.replace("{", "\\x7b")
            self._programs[key] = f"{node_program.packed_for(key[0])}\n\nmain(dict({literals}))\n"
        return self._programs[key]

    def take(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> None:
        """Convert a node's output, or its error, to its Observation."""
        if node in self.found:  # the first answer counts; after its run Ansible delivers each node again
            return
        observation = self.found[node] = self._understood(node, output, seconds)
        if self._on_done is not None:
            self._on_done(observation)

    def _understood(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> Observation:
        if not isinstance(output, NodeError):
            try:
                facts, problems = facts_of(unframed(output), self._ask.get(node, ()), self._pool)
                return Observation(node, facts, problems, seconds=seconds)
            except AnswerError as error:
                output = NodeError("garbage", str(error), "log in and check its python3")
        return Observation(node, error=output.line, unreachable=output.unreachable, seconds=seconds)


def _through_ansible(
    nodes: Mapping[str, Node],
    answers: Asked,
    timeout: float,
    meanwhile: Callable[[], None],
    vault_password_files: Sequence[Path],
) -> None:
    """Run programs through playbooks/observe.yml, which takes them from a host variable."""
    from provision.errors import GpuprovError
    from provision.remote.ansible.runner import Event, run_playbook

    hosts = {
        name: {**node.variables, "gpuprov_observe_program": answers.program(name, ANSIBLE_BYTES)}
        for name, node in nodes.items()
    }
    outputs: dict[str, bytes] = {}

    def note(event: Event) -> None:
        stdout = event.result.get("stdout")
        if isinstance(stdout, str) and stdout:
            outputs[event.node] = stdout.encode("utf-8", "replace")
            if event.kind in ("ok", "changed"):
                answers.take(event.node, outputs[event.node], 0.0)
        meanwhile()

    fix = "correct the cause; the node's connection variables are in the inventory"
    rounds = -(-len(nodes) // ANSIBLE_FORKS)  # the timeout is per node, and forks limit concurrency
    try:
        outcomes = run_playbook(
            paths.PLAYBOOKS / "observe.yml",
            hosts,
            on_event=note,
            forks=ANSIBLE_FORKS,
            timeout=timeout * rounds + 30,  # and Ansible's own start
            vault_password_files=vault_password_files,
        )
    except GpuprovError as error:
        for name in nodes:
            answers.take(name, NodeError("ansible", one_line(error.what), error.fix), 0.0)
        return
    for name in nodes:
        outcome = outcomes.get(name)
        if outcome is None or outcome.status == "ok":
            answers.take(name, outputs.get(name, b""), 0.0)
        else:
            kind = "unreachable" if outcome.status == "unreachable" else "ansible"
            answers.take(name, NodeError(kind, one_line(outcome.message) or outcome.status, fix), 0.0)
