"""Advisory lock on the nodes: only one `up` at a time changes a node, and nobody measures it meanwhile.

`up` and `validate` hold it while they work, `burnin` while it starts; a burn-in counts as a lock for as long
as it runs. Two controllers exclude each other that way, and runs on disjoint parts of a fleet do not wait.

A lock lasts LEASE seconds after it was last confirmed; while a run works it confirms its locks every RENEW
seconds. A worker confirms the locks of the nodes it works on as well: they are the run's for as long as
anything of it is at work there, whatever became of its controller. What was killed therefore blocks nobody
for longer than LEASE, and nobody at all who resumes its run. The program on the node is node/lock.py.
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

# A renewal is one connection to every node: of 10,000 in ten minutes it is 17 a second.
RENEW = 600.0
LEASE = 3 * RENEW
RETRY = 3.0  # about so many seconds after a refusal the locks are tried once more
_LATEST = 1e11  # seconds: no clock and no age is beyond this
# A run: `2026-11-28T14:12:40Z root@ctl (process 9)`. That of a burn-in is pasted: one word, no option.
_RUN, _BURNIN = re.compile(r"[^\s-][^\x00-\x1f]{0,199}"), re.compile(r"[^\s-]\S{0,199}")
# How a call ends whose program may have run on the node all the same: a login that prints without end.
_MAY_HAVE_RUN = {"hung", "cut", "too large"}
_STATES = {"taken", "mine", "twin", "held", "released", "not ours"}

Run = Callable[[Mapping[str, str]], Mapping[str, bytes | NodeError]]  # node → program; node → what it printed


class LockedError(GpuprovError):
    """Nodes are in the hands of another run."""


@dataclass(frozen=True)
class Answer:
    """What one node said. `busy`: programs of an earlier run that still run there. `skew`: seconds its clock
    is ahead of ours. `maybe`: no answer could be read, and yet the program may have done its work."""

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
    """Who holds a lock, for people: `alice@controller-1 (process 4711)`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{platform.node()} (process {os.getpid()})"


def on_fleet(fleet: Fleet, *, timeout: float, connections: int, over: Reach | None = None) -> Run:
    """Programs run on the nodes of `fleet`, reached as they are looked at, or `over` a way that is open."""

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
    """The locks of one run. `run` is its id, `before` the ids of the runs it goes on with, whose locks it
    takes over; `force` takes locks from anybody, and ignores burn-ins. `fleet`: named in what is proposed.
    `who` holds them; `on_lost` is told of each that is no longer ours, and why."""

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
    ) -> None:
        self.lost = ""  # why the locks are no longer ours; then nothing more may be begun
        # Nodes that could not be told of the end: their locks end by themselves.
        self.left: tuple[str, ...] = ()
        self.running: dict[str, tuple[str, ...]] = {}  # node → programs that outlived the run
        self._run = run
        self._verb = verb
        self._fleet = fleet
        self._programs = programs
        self._before = tuple(before)
        self._force = force
        self._since = since
        self._who = who or me()
        self._on_lost = on_lost
        self._held: dict[str, None] = {}
        self._maybe: dict[str, None] = {}  # nodes whose lock may be ours: it is given back as the others
        self._ended = threading.Event()
        self._asking = threading.RLock()  # a lock that is confirmed after its release would be nobody's
        self._thread: threading.Thread | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes whose lock is ours."""
        return tuple(self._held)

    def take(self, nodes: Collection[str]) -> dict[str, Answer]:
        """Lock all of `nodes`, or none: raises LockedError naming holders and nodes when one is another's,
        or is one of the others under a second name. Nodes that could not be asked have an `error`."""
        answers = self._ask("take", nodes)
        self._held.update(
            dict.fromkeys(node for node, said in answers.items() if said.state in ("taken", "mine"))
        )
        self._maybe.update(dict.fromkeys(node for node, said in answers.items() if said.maybe))
        try:
            _refuse_twins(answers.values())
            _refuse_held(answers.values(), self._fleet)
        except LockedError:
            self.release(self.nodes)  # it may be tried again
            raise
        return answers

    def renew(self, nodes: Collection[str] = ()) -> None:
        """Confirm our locks (of `nodes`, or all); one that a reboot cleared is taken again. One that somebody
        else has by now is said in `lost`. A node that does not answer keeps what it has."""
        with self._asking:
            chosen = [node for node in list(nodes or self._held) if node in self._held]
            for said in self._ask("renew", chosen).values() if chosen else ():
                if said.state in ("held", "twin"):
                    self._held.pop(said.node, None)
                    why = f"the lock of {said.node} was taken for {_holder(said)}"
                    self.lost = self.lost or why
                    self._on_lost(said.node, why)

    def release(self, nodes: Collection[str] | None = None) -> tuple[str, ...]:
        """Give back the locks of `nodes`, or all and end; returns `left`, the nodes that did not answer."""
        if nodes is None:
            self._stop()
        with self._asking:
            ours = self._held | self._maybe
            held = [node for node in ours if nodes is None or node in nodes]
            answers = self._ask("release", held) if held else {}
            for node, said in answers.items():
                self._held.pop(node, None)
                self._maybe.pop(node, None)
                self.left += (node,) * bool(said.error)
                self.running |= {node: said.busy} if said.busy else {}
        return self.left

    def keep(self, first: float | None = None) -> None:
        """Confirm the locks in the background until `release`: in `first` seconds, then every RENEW."""
        wait = RENEW if first is None else first
        self._thread = threading.Thread(target=self._confirm, args=(wait,), name="fleet-lock", daemon=True)
        self._thread.start()

    def lend(self, nodes: Collection[str]) -> dict[str, Any]:
        """What a worker needs to confirm our locks of these nodes: see `borrowed`."""
        held = [node for node in nodes if node in self._held]
        return {"run": self._run, "verb": self._verb, "who": self._who, "since": self._since, "nodes": held}

    @classmethod
    @contextlib.contextmanager
    def borrowed(
        cls, lent: Mapping[str, Any], programs: Run, on_lost: Callable[[str, str], None]
    ) -> Iterator[None]:
        """Confirm in this block what the controller has lent. Nothing is taken from another holder, and
        nothing released: that is for the run, or for whoever resumes it."""
        told = {name: lent[name] for name in ("verb", "who", "since")}
        lock = cls(lent["run"], programs, **told, on_lost=on_lost)
        lock._held = dict.fromkeys(lent["nodes"])
        # The controller's own last one was up to RENEW ago; one more that fails shall not end the lease.
        lock.keep(RENEW / 2)
        try:
            yield
        finally:
            lock._stop()  # who confirmed after the run has released would take the lock for nobody

    def _confirm(self, wait: float) -> None:
        while not self._ended.wait(wait):
            wait = RENEW
            with contextlib.suppress(Exception):  # the next one makes up for it: a lease is three of them
                self.renew()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _ask(self, operation: str, nodes: Collection[str]) -> dict[str, Answer]:
        request = {"op": operation, "run": self._run, "who": self._who, "since": self._since, "lease": LEASE}
        request |= {"before": list(self._before), "force": self._force, "verb": self._verb}
        programs = {node: _program({**request, "node": node}) for node in nodes}
        return {node: _understood(node, output) for node, output in self._programs(programs).items()}


def _program(request: Mapping[str, Any]) -> str:
    text = (paths.NODE / "lock.py").read_text(encoding="utf-8")
    values = ", ".join(f"{name}={value!a}" for name, value in request.items())
    literals = values.replace("{", "\\x7b")  # Ansible shall find no template in a node's name
    return f"{text}\n\nmain(dict({literals}))\n"


def _understood(node: str, output: bytes | NodeError) -> Answer:
    """A node's answer, which is not to be trusted."""
    if isinstance(output, NodeError):
        why = f"its lock could not be read: {output.line}"
        return Answer(node, error=why, unreachable=output.unreachable, maybe=output.kind in _MAY_HAVE_RUN)
    try:
        said = foreign_json.read(unframed(output))
        if said["problem"]:
            return Answer(node, error=f"it cannot be locked: {one_line(str(said['problem']))}")
        holder = said["holder"]
        busy = tuple(one_line(str(entry), 80) for entry in said["busy"][:20])
        if said["state"] not in _STATES or not isinstance(holder, dict | None):
            raise ValueError("an unknown state")
        if said["state"] in ("held", "twin") and not holder:
            raise ValueError("nobody holds it")
        names = ("run", "node", "who", "since", "verb")
        told = holder and {name: one_line(str(holder[name]), 200) for name in names}
        form = _BURNIN if told and told["verb"] == "burnin" else _RUN
        if told and (told["verb"] not in _WORK or not form.fullmatch(told["run"])):
            raise ValueError("an unknown verb, or a run's name that none has")
        age, clock_there = said["age"] or 0, said["time"]
        if not all(type(value) in (int, float) and 0 <= value < _LATEST for value in (age, clock_there)):
            raise ValueError("a time that is none")
        return Answer(node, said["state"], told, age, busy, clock_there - time.time())
    except (AnswerError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Answer(node, error=f"it cannot be locked: its answer is not of the form expected ({error})")


def _refuse_twins(answers: Iterable[Answer]) -> None:
    twins = [said for said in answers if said.state == "twin" and said.holder]
    if twins:
        pairs = ", ".join(f"{said.node} and {(said.holder or {})['node']}" for said in twins)
        raise LockedError(
            f"{pairs} are one machine under two names",
            "take one of the names out of the inventory, or correct its ansible_host",
        )


# What a node is in the hands of, and how that ends.
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
_NAMED = 3  # runs whose end is told


def _refuse_held(answers: Collection[Answer], fleet: Fleet | None) -> None:
    holders: dict[str, list[Answer]] = {}
    for said in answers:
        if said.state == "held":
            holders.setdefault(_holder(said), []).append(said)
    if not holders:
        return
    told = "; ".join(f"{fold(said.node for said in held)}: {who}" for who, held in holders.items())
    taken = [said for held in holders.values() for said in held]
    source = f" -i {shlex.quote(fleet.place)}" if fleet else ""
    ends = [_worded(_ENDS, held[0], source) for held in holders.values()][:_NAMED]
    leases = [LEASE - said.age for said in taken if (said.holder or {}).get("verb") != "burnin"]
    if leases:
        ends.append(f"locks of a killed run end by themselves in {max(1, round(max(leases) / 60))} min")
    if any(said.state in ("taken", "mine") for said in answers):
        ends.append(f"--nodes {_without(taken, fleet)} leaves these nodes out")
    raise LockedError(
        f"another gpuprov is at work on nodes of yours: {told}",
        f"{'; '.join(ends)}; --break-lock takes them all the same",
    )


def _without(taken: Sequence[Answer], fleet: Fleet | None) -> str:
    """The nodes of this run without those, as a pattern for a shell."""
    chosen = fleet.pattern if fleet else "all"
    comma = "," if "," in chosen else ":"  # a pattern has one of the two throughout
    # Names are not folded: Ansible may read that as something else.
    others = "".join(f"{comma}!{said.node}" for said in taken)
    return shlex.quote(chosen + others)


def _holder(said: Answer) -> str:
    """`gpuprov up by alice@controller-1 (process 4711), since 10:00`"""
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
    """Hold the locks of `nodes`, confirmed until the end. Raises LockedError when another run has one.

    They are tried twice: who is refused holds some for a moment, and two who begin at the same time refuse
    each other. To be terminated is to be interrupted: the locks are released."""
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
        finally:  # a further Ctrl-C may have ended the release
            if left := (*lock.left, *lock.nodes):
                when = f"{round(LEASE / 60)} min of the last work there"
                say(f"{fold(left)}: the lock could not be released; it ends by itself within {when}")
        for node, programs in lock.running.items():
            say(f"{node}: programs of this run still run there: {', '.join(programs)}")


def fresh_name() -> str:
    """A name for a run that has no folder yet."""
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
) -> Iterator[None]:
    """The nodes of `fleet` for the `run` of this `verb` alone, as `held`; `broken`: whoever has them. `say`
    is told of a lost lock, and of nodes that cannot be locked: whether they can be reached, the verb finds
    out."""
    if broken:
        from provision.remote.ansible.runner import ended_as_interrupted

        with ended_as_interrupted():  # as where they are held
            yield
        return
    programs = on_fleet(fleet, timeout=timeout, connections=connections, over=over)
    lock = FleetLock(run, programs, verb=verb, before=before, since=now("seconds"), fleet=fleet)
    with held(lock, fleet.nodes, say=say) as answers:
        for answer in answers.values():
            if answer.error and not answer.unreachable:
                say(f"{answer.node}: {answer.error}: whether another gpuprov is at work there is not known")
        yield
    if lock.lost:
        say(f"{lock.lost}: what was measured after that may not count")
