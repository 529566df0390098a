"""Advisory lock on nodes: only one `up` at a time changes a node, and nothing measures it meanwhile.

`up` and `validate` hold the lock while they work, `burnin` while it starts; a running burn-in counts as a
lock. That is how two controllers exclude each other, while runs on disjoint parts of a fleet do not wait.

A lock expires LEASE seconds after its last renewal; a working run renews its locks every RENEW seconds. A
worker renews the locks of its nodes as well, so they belong to the run for as long as any part of it works
there, even if its controller has died. A killed run therefore blocks others for LEASE at most, and never the
run that resumes it. The program on the node is node/lock.py.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import random
import re
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision import foreign_json, paths
from provision.errors import GpuprovError
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote import held_locks
from provision.remote.protocol import AnswerError, NodeError, one_line, unframed
from provision.remote.reach.observe import Reach, run_programs
from provision.text import now

# A renewal is one connection per node: 10,000 nodes in ten minutes are 17 per second.
RENEW = 600.0
LEASE = 3 * RENEW
RETRY = 3.0  # average seconds between a refusal and the second try
_LATEST = 1e11  # seconds; upper bound of valid clocks and ages
# A run: `2026-11-28T14:12:40Z root@ctl (process 9)`. A burn-in's id is pasted: one word, not an option.
_RUN, _BURNIN = re.compile(r"[^\s-][^\x00-\x1f]{0,199}"), re.compile(r"[^\s-]\S{0,199}")
# Errors of a call after which the program may have run on the node anyway: a login that prints endlessly.
_MAY_HAVE_RUN = {"hung", "cut", "too large"}
_STATES = {"taken", "mine", "twin", "held", "released", "not ours"}

Run = Callable[[Mapping[str, str]], Mapping[str, bytes | NodeError]]  # node → program; returns node → output


class LockedError(GpuprovError):
    """Another run holds nodes."""


@dataclass(frozen=True)
class Answer:
    """Lock state of one node; `maybe`: unreadable, though the program may have run.
    `busy`: programs of an earlier run that still run there. `skew`: seconds by which its clock is ahead."""

    node: str
    state: str = ""
    holder: Mapping[str, str] | None = None
    age: float = 0.0
    busy: tuple[str, ...] = ()
    skew: float = 0.0
    error: str = ""
    unreachable: bool = False
    maybe: bool = False


def me() -> str:
    """Return the name of a lock's holder: `alice@controller-1 (process 4711)`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{platform.node()} (process {os.getpid()})"


def on_fleet(fleet: Fleet, *, timeout: float, connections: int, over: Reach | None = None) -> Run:
    """Return a runner of programs on the nodes of `fleet`, by default over new connections."""

    def run(programs: Mapping[str, str]) -> Mapping[str, bytes | NodeError]:
        return run_programs(
            [fleet.nodes[node] for node in programs],
            programs,
            timeout=timeout,
            connections=connections,
            vault_password_files=fleet.vault_password_files,
            over=over,
        )

    return run


class FleetLock:
    """The locks of the run with the id `run`.
    `before`: earlier runs that it resumes, to take over their locks; `force`: take any lock and ignore
    burn-ins; `fleet`: named in advice; `who`: holder of the locks; `on_lost`: gets each lost node and why."""

    def __init__(
        self,
        run: str,
        programs: Run,
        *,
        verb: str = "up",
        before: Sequence[str] = (),
        force: bool = False,
        since: str = "",
        fleet: Fleet | None = None,
        who: str = "",
        on_lost: Callable[[str, str], None] = lambda _node, _why: None,
        lease: float = LEASE,
    ) -> None:
        self.lost = ""  # why the locks are lost; then no further work may start
        # Nodes that did not confirm the release: their locks expire.
        self.left: tuple[str, ...] = ()
        self.running: dict[str, tuple[str, ...]] = {}  # node → programs that outlived the run
        self._run = run
        self._verb = verb
        self._fleet = fleet
        self._programs = programs
        self._before, self._force = tuple(before), force
        self._since, self._who, self._lease = since, who or me(), lease
        self._on_lost = on_lost
        self._held: dict[str, None] = {}
        self._maybe: dict[str, None] = {}  # nodes that may be locked by us; released like the others
        self._ended = threading.Event()
        self._asking = threading.RLock()  # a renewal after the release would leave a lock behind
        self._thread: threading.Thread | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that are locked by this run."""
        return tuple(self._held)

    def take(self, nodes: Collection[str]) -> dict[str, Answer]:
        """Lock all of `nodes` or none; return each node's answer, with an `error` if it could not be queried.
        Raises LockedError if another run holds one, or if two names lead to the same node."""
        answers = self._ask("take", nodes)
        self._held.update(
            dict.fromkeys(node for node, answer in answers.items() if answer.state in ("taken", "mine"))
        )
        self._maybe.update(dict.fromkeys(node for node, answer in answers.items() if answer.maybe))
        try:
            _refuse_twins(answers.values())
            _refuse_held(answers.values(), self._fleet)
        except LockedError:
            self.release(self.nodes)  # they may be tried again
            raise
        return answers

    def renew(self, nodes: Collection[str] = ()) -> None:
        """Renew our locks (of `nodes`, or all), and take those again that a reboot cleared.
        Locks taken by other runs are reported in `lost`. A node that does not answer keeps its lock."""
        with self._asking:
            chosen = [node for node in list(nodes or self._held) if node in self._held]
            for answer in self._ask("renew", chosen).values() if chosen else ():
                if answer.state in ("held", "twin"):
                    self._held.pop(answer.node, None)
                    why = f"the lock of {answer.node} was taken for {_holder(answer)}"
                    self.lost = self.lost or why
                    self._on_lost(answer.node, why)

    def release(self, nodes: Collection[str] | None = None) -> tuple[str, ...]:
        """Release the locks of `nodes`, or all for good; return `left`, the nodes without an answer."""
        if nodes is None:
            self._stop()
        with self._asking:
            ours = self._held | self._maybe
            held = [node for node in ours if nodes is None or node in nodes]
            answers = self._ask("release", held) if held else {}
            for node, answer in answers.items():
                self._held.pop(node, None)
                self._maybe.pop(node, None)
                self.left += (node,) * bool(answer.error)
                self.running |= {node: answer.busy} if answer.busy else {}
        return self.left

    def keep(self, first: float | None = None) -> None:
        """Renew the locks in the background until `release`: after `first` seconds, then every RENEW."""
        wait = RENEW if first is None else first
        self._thread = threading.Thread(target=self._confirm, args=(wait,), name="fleet-lock", daemon=True)
        self._thread.start()

    def lend(self, nodes: Collection[str]) -> dict[str, Any]:
        """Return the data with which a worker renews our locks of these nodes; see `borrowed`."""
        held = [node for node in nodes if node in self._held]
        return {"run": self._run, "verb": self._verb, "who": self._who, "since": self._since, "nodes": held}

    @classmethod
    @contextlib.contextmanager
    def borrowed(
        cls, lent: Mapping[str, Any], programs: Run, on_lost: Callable[[str, str], None]
    ) -> Iterator[None]:
        """Renew locks that the controller has lent, within the `with` block.
        No lock is taken from another holder or released: that is up to the run or its resumption."""
        fields = {name: lent[name] for name in ("verb", "who", "since")}
        lock = cls(lent["run"], programs, **fields, on_lost=on_lost)
        lock._held = dict.fromkeys(lent["nodes"])
        # The controller's last renewal is up to RENEW old; one failed renewal must not end the lease.
        lock.keep(RENEW / 2)
        try:
            yield
        finally:
            lock._stop()  # a renewal after the run's release would leave a lock without a holder

    def _confirm(self, wait: float) -> None:
        while not self._ended.wait(wait):
            wait = RENEW
            with contextlib.suppress(Exception):  # the next renewal makes up for it: a lease is three of them
                self.renew()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _ask(self, operation: str, nodes: Collection[str]) -> dict[str, Answer]:
        request = {"op": operation, "run": self._run, "who": self._who, "since": self._since}
        more = {"before": list(self._before), "force": self._force, "lease": self._lease, "verb": self._verb}
        programs = {node: _program({**request, **more, "node": node}) for node in nodes}
        return {node: _understood(node, output) for node, output in self._programs(programs).items()}


def _program(request: Mapping[str, Any]) -> str:
    text = (paths.NODE / "lock.py").read_text(encoding="utf-8")
    values = ", ".join(f"{name}={value!a}" for name, value in request.items())
    literals = values.replace("{", "\\x7b")  # a node's name must not contain a template for Ansible
    return f"{text}\n\nmain(dict({literals}))\n"


def _understood(node: str, output: bytes | NodeError) -> Answer:
    """Parse a node's untrusted answer."""
    if isinstance(output, NodeError):
        why = f"its lock could not be read: {output.line}"
        return Answer(node, error=why, unreachable=output.unreachable, maybe=output.kind in _MAY_HAVE_RUN)
    try:
        answer = foreign_json.read(unframed(output))
        if answer["problem"]:
            return Answer(node, error=f"it cannot be locked: {one_line(str(answer['problem']))}")
        holder = answer["holder"]
        busy = tuple(one_line(str(entry), 80) for entry in answer["busy"][:20])
        if answer["state"] not in _STATES or not isinstance(holder, dict | None):
            raise ValueError("an unknown state")
        if answer["state"] in ("held", "twin") and not holder:
            raise ValueError("nobody holds it")
        names = ("run", "node", "who", "since", "verb")
        lock_holder = holder and {name: one_line(str(holder[name]), 200) for name in names}
        form = _BURNIN if lock_holder and lock_holder["verb"] == "burnin" else _RUN
        if lock_holder and (lock_holder["verb"] not in _WORK or not form.fullmatch(lock_holder["run"])):
            raise ValueError("an unknown verb, or a run's name that none has")
        age, clock_there = answer["age"] or 0, answer["time"]
        if not all(type(value) in (int, float) and 0 <= value < _LATEST for value in (age, clock_there)):
            raise ValueError("a time that is none")
        return Answer(node, answer["state"], lock_holder, age, busy, clock_there - time.time())
    except (AnswerError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Answer(node, error=f"it cannot be locked: its answer is not of the form expected ({error})")


def _refuse_twins(answers: Iterable[Answer]) -> None:
    twins = [answer for answer in answers if answer.state == "twin" and answer.holder]
    if twins:
        pairs = ", ".join(f"{answer.node} and {(answer.holder or {})['node']}" for answer in twins)
        raise LockedError(
            f"{pairs} are one machine under two names",
            "take one of the names out of the inventory, or correct its ansible_host",
        )


# The work of a lock's holder, and how it ends.
_WORK = {
    "up": "gpuprov up",
    "validate": "gpuprov validate",
    "start": "gpuprov burnin, which is starting,",
    "burnin": "the burn-in {run}",
}
_ENDS = {
    "up": "wait for it; if it was killed, `gpuprov up --resume` on its own controller ({run}) goes on",
    "validate": "wait for it, or press Ctrl-C where it runs",
    "start": "wait for it",
    "burnin": "`gpuprov burnin stop {run}{source}` ends it",
}
_NAMED = 3  # maximum number of runs listed with their end


def _refuse_held(answers: Collection[Answer], fleet: Fleet | None) -> None:
    holders: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.state == "held":
            holders.setdefault(_holder(answer), []).append(answer)
    if not holders:
        return
    holdings = "; ".join(f"{fold(answer.node for answer in held)}: {who}" for who, held in holders.items())
    taken = [answer for held in holders.values() for answer in held]
    source = f" -i {shlex.quote(fleet.place)}" if fleet else ""
    ends = [_worded(_ENDS, held[0], source) for held in holders.values()][:_NAMED]
    leases = [LEASE - answer.age for answer in taken if (answer.holder or {}).get("verb") != "burnin"]
    if leases:
        ends.append(f"locks of a killed run end by themselves in {max(1, round(max(leases) / 60))} min")
    if any(answer.state in ("taken", "mine") for answer in answers):
        ends.append(f"--nodes {_without(taken, fleet)} leaves these nodes out")
    raise LockedError(
        f"another gpuprov is at work on nodes of yours: {holdings}",
        f"{'; '.join(ends)}; --break-lock takes them all the same",
    )


def _without(taken: Sequence[Answer], fleet: Fleet | None) -> str:
    """Return a host pattern, quoted for a shell, of this run's nodes without these."""
    chosen = fleet.pattern if fleet else "all"
    comma = "," if "," in chosen else ":"  # a pattern uses one of the two throughout
    # Names are not folded, which Ansible might parse differently.
    others = "".join(f"{comma}!{answer.node}" for answer in taken)
    return shlex.quote(chosen + others)


def _holder(said: Answer) -> str:
    """Return the holder: `gpuprov up by alice@controller-1 (process 4711), since 10:00`."""
    holder = said.holder or {}
    work = _worded(_WORK, said)
    return f"{work} by {holder.get('who', 'somebody')}, since {holder.get('since', 'some time')}"


def _worded(words: Mapping[str, str], said: Answer, source: str = "") -> str:
    holder = said.holder or {}
    return words[holder.get("verb", "up")].format(run=shlex.quote(holder.get("run", "")), source=source)


@contextlib.contextmanager
def held(
    lock: FleetLock,
    nodes: Collection[str],
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Answer]]:
    """Hold the locks of `nodes`, renewed until the end. Raises LockedError if another run has one.

    The locks are tried twice, because a refused run briefly holds some, and two runs that start together
    refuse each other. Termination is handled like an interrupt: the locks are released."""
    from provision.remote.ansible.runner import ended_as_interrupted

    try:
        with ended_as_interrupted():
            try:
                answers = lock.take(nodes)
            except LockedError:
                pause(RETRY * random.uniform(0.5, 1.5))  # noqa: S311 - not for secrets
                answers = lock.take(nodes)
            lock.keep()
            with held_locks.lent(lock.lend):
                yield answers
    finally:
        try:
            lock.release()
        finally:  # a further Ctrl-C may have interrupted the release
            if left := (*lock.left, *lock.nodes):
                when = f"{round(LEASE / 60)} min of the last work there"
                say(f"{fold(left)}: the lock could not be released; it ends by itself within {when}")
        for node, programs in lock.running.items():
            say(f"{node}: programs of this run still run there: {', '.join(programs)}")


def fresh_name() -> str:
    """Return a name for a run that has no folder yet."""
    return f"{now()} {me()}"


@contextlib.contextmanager
def alone(
    verb: str,
    run: str,
    fleet: Fleet,
    *,
    before: Sequence[str] = (),
    timeout: float,
    connections: int,
    say: Callable[[str], None],
    over: Reach | None = None,
    broken: bool = False,
    lease: float = LEASE,
) -> Iterator[None]:
    """Lock the nodes of `fleet` for this `run` of `verb` in the `with` block; `broken` skips the locks.
    `lease`: seconds until the locks expire if this process is killed. `say` reports lost locks, and nodes
    that cannot be locked; the verb itself detects unreachable nodes."""
    if broken:
        from provision.remote.ansible.runner import ended_as_interrupted

        with ended_as_interrupted():  # same handling as with locks
            yield
        return
    programs = on_fleet(fleet, timeout=timeout, connections=connections, over=over)
    lock = FleetLock(run, programs, verb=verb, before=before, since=now("seconds"), fleet=fleet, lease=lease)
    with held(lock, fleet.nodes, say=say) as answers:
        for answer in answers.values():
            if answer.error and not answer.unreachable:
                say(f"{answer.node}: {answer.error}: whether another gpuprov is at work there is not known")
        yield
    if lock.lost:
        say(f"{lock.lost}: what was measured after that may not count")
