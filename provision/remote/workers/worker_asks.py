"""Observation of nodes through workers: sends programs to run, and returns their output."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import bug_file
from provision.errors import GpuprovError
from provision.remote.ansible.runner import Interrupts
from provision.remote.protocol import KINDS, NodeError, one_line
from provision.remote.workers import Link, causes, mesh, units, worker_stream
from provision.remote.workers.mesh import Left, Share
from provision.remote.workers.units import Job
from provision.remote.workers.worker_runs import Stop, passwords, transmitted

_SPARE = 60.0  # seconds for a worker's start, on top of its nodes' time
_REMOVAL = 60.0  # seconds to end and remove units
_ANSIBLE_FORKS = 25  # for nodes that only Ansible reaches
Take = Callable[[str, bytes | NodeError, float], None]
Programs = Mapping[str, tuple[str, str]]


class Away:
    """Background observation of nodes by workers; nodes of a lost worker pass to other workers.
    `programs`: node → two texts, for a direct connection and for a node that only Ansible reaches. Results go
    to `take`, once per node, and notices of silent workers to `say`, both in the thread that calls `gather`
    and `finish`."""

    def __init__(
        self,
        hosts: Mapping[str, Mapping[str, Any]],
        links: Mapping[str, Link],
        programs: Programs,
        take: Take,
        say: Callable[[str], None],
        **options: Any,
    ) -> None:
        self._take = take
        self._say = say
        self._lines: deque[str] = deque()
        self._interrupts = Interrupts()
        self._done: queue.SimpleQueue[tuple[str, bytes | NodeError, float]] = queue.SimpleQueue()
        self._left = set(hosts)
        arguments = (hosts, links, programs, options)
        self._thread = threading.Thread(target=self._work, args=arguments, name="workers", daemon=True)
        self._thread.start()

    def _work(
        self,
        hosts: Mapping[str, Mapping[str, Any]],
        links: Mapping[str, Link],
        programs: Programs,
        options: Mapping[str, Any],
    ) -> None:
        def take(node: str, output: bytes | NodeError, seconds: float) -> None:
            self._done.put((node, output, seconds))

        def work(share: Share) -> Left:
            return ask(share, programs, take, self._lines.append, interrupts=self._interrupts, **options)

        try:
            shares, stranded = mesh.assigned(hosts, links)
            left = {**stranded, **mesh.worked(shares, work)}
        except Exception as error:
            what = error.what if isinstance(error, GpuprovError) else f"{type(error).__name__}: {error}"
            fix = error.fix if isinstance(error, GpuprovError) else bug_file.report(error)
            left = dict.fromkeys(hosts, NodeError("ansible", f"workers: {what}", fix))
        for node, trouble in left.items():
            take(node, NodeError("unreachable", trouble.what, causes.next_step(trouble)), 0.0)

    def __enter__(self) -> Away:
        return self

    def __exit__(self, *_: object) -> None:
        if self._left:
            self._interrupts.note()  # end workers that are still running
        self._thread.join(_REMOVAL)  # until their units are removed

    def gather(self, wait: float = 0.0) -> None:
        self._speak()
        while self._left:
            try:
                node, output, seconds = self._done.get(timeout=wait) if wait else self._done.get_nowait()
            except queue.Empty:
                return
            wait = 0.0
            if node in self._left:
                self._left.discard(node)
                self._take(node, output, seconds)

    def finish(self) -> None:
        while self._left:
            self.gather(wait=1.0)
        self._speak()

    def _speak(self) -> None:
        while self._lines:
            self._say(self._lines.popleft())


def ask(
    share: Share,
    programs: Programs,
    take: Take,
    say: Callable[[str], None],
    *,
    timeout: float,
    connections: int,
    vault_password_files: Sequence[Path] = (),
    interrupts: Interrupts | None = None,
) -> Left:
    """Run programs on each node of a share through its worker; return unobserved nodes → error.
    `take` gets each node's output, or its error, and the seconds it took."""
    hosts = share.hosts
    texts = list(dict.fromkeys(text for name in hosts for text in programs[name]))
    number = {text: position for position, text in enumerate(texts)}
    rounds = math.ceil(len(hosts) / connections) + math.ceil(len(hosts) / _ANSIBLE_FORKS)
    request = {
        "inventory": hosts,
        "programs": texts,
        "asked": {name: [number[text] for text in programs[name]] for name in hosts},
        "timeout": timeout,
        "connections": connections,
        "vault_passwords": passwords(vault_password_files),
    }
    left = set(hosts)
    answers = worker_stream.Answers()

    def answered(raw: Mapping[str, Any]) -> None:
        if raw["event"] == worker_stream.OUTPUT:
            data = raw.get("event_data") or {}
            name = data.get("host")
            output, seconds = _output(data, answers)  # decoded in any case: later answers may refer to it
            if name in left:
                left.discard(name)
                take(name, output, seconds)

    stop = Stop(timeout * rounds + _SPARE, interrupts or Interrupts())
    job = Job("look", transmitted(request), hosts, timeout * rounds + _SPARE, share.alone, say)
    ended = units.carry(share.way, job, answered, stop.wanted)
    why = ended.error or NodeError("hung", f"worker {share.worker}: it did not answer for this node", "")
    return {} if stop.interrupted else dict.fromkeys(sorted(left), why)


def _output(data: Mapping[str, Any], answers: worker_stream.Answers) -> tuple[bytes | NodeError, float]:
    """Return a node's output as its worker sent it, or the node's error if that is malformed.
    Raises BadStreamError for a reference to an unknown answer."""
    seconds = data.get("seconds")
    took = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e6 else 0.0
    error = data.get("error")
    if isinstance(error, list) and len(error) == 3 and error[0] in KINDS:
        return NodeError(error[0], one_line(str(error[1])), one_line(str(error[2]))), took
    try:
        return answers.unpacked(data), took
    except worker_stream.OddAnswerError:
        return NodeError("garbage", "its worker's answer is not understood", "run again"), took
