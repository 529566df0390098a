"""Advisory lock on the nodes: only one `up` at a time changes a node.

Two controllers exclude each other that way, and `up` on disjoint parts of a fleet does not wait.

A lock lasts LEASE seconds after it was last confirmed; while `up` works it confirms its locks every RENEW
seconds. A controller that was killed therefore blocks nobody for longer than that, and nobody at all who
resumes its run. The program on the node is node/lock.py.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision import paths
from provision.errors import GpuprovError
from provision.node_names import fold
from provision.remote.protocol import AnswerError, NodeError, one_line, unframed

# A renewal is one connection to every node: of 10,000 in ten minutes it is 17 a second.
RENEW = 600.0
LEASE = 3 * RENEW
SKEW = 24 * 3600.0  # seconds a node's clock may be off before it is worth a word
_STATES = {"taken", "mine", "twin", "held", "released", "not ours"}

Run = Callable[[Mapping[str, str]], Mapping[str, bytes | NodeError]]  # node → program; node → what it printed


class LockedError(GpuprovError):
    """Nodes are in the hands of another `up`."""


@dataclass(frozen=True)
class Answer:
    """What one node said. `busy`: programs of an earlier run that still run there. `skew`: seconds its clock
    is ahead of ours."""

    node: str
    state: str = ""
    holder: Mapping[str, str] | None = None
    age: float = 0.0
    busy: tuple[str, ...] = ()
    skew: float = 0.0
    error: str = ""
    unreachable: bool = False


def me() -> str:
    """Who holds a lock, for people: `alice@controller-1 (process 4711)`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{platform.node()} (process {os.getpid()})"


class FleetLock:
    """The locks of one run. `run` is its id, `before` the ids of the runs it goes on with, whose locks it
    takes over; `force` takes locks from anybody."""

    def __init__(
        self, run: str, programs: Run, *, before: Sequence[str] = (), force: bool = False, since: str = ""
    ) -> None:
        self.lost = ""  # why the locks are no longer ours; then nothing more may be begun
        self._run = run
        self._programs = programs
        self._before = tuple(before)
        self._force = force
        self._since = since
        self._held: dict[str, None] = {}
        self._ended = threading.Event()
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
        try:
            _refuse_twins(answers.values())
            _refuse_held(answers.values())
        except LockedError:
            self.release()
            raise
        return answers

    def renew(self, nodes: Collection[str] = ()) -> None:
        """Confirm our locks (of `nodes`, or all); one that a reboot cleared is taken again. One that somebody
        else has by now is said in `lost`. A node that does not answer keeps what it has."""
        chosen = [node for node in list(nodes or self._held) if node in self._held]
        for said in self._ask("renew", chosen).values() if chosen else ():
            if said.state in ("held", "twin"):
                self._held.pop(said.node, None)
                self.lost = self.lost or f"the lock of {said.node} was taken by {_holder(said)}"

    def release(self) -> tuple[str, ...]:
        """Give all back. Those that did not answer are returned: their locks end by themselves."""
        self._stop()
        held, self._held = list(self._held), {}
        answers = self._ask("release", held) if held else {}
        return tuple(node for node, said in answers.items() if said.error)

    def keep(self) -> None:
        """Confirm the locks from now on, in the background, until `release`."""
        self._thread = threading.Thread(target=self._confirm, name="fleet-lock", daemon=True)
        self._thread.start()

    def _confirm(self) -> None:
        while not self._ended.wait(RENEW):
            with contextlib.suppress(Exception):  # the next one makes up for it: a lease is three of them
                self.renew()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _ask(self, operation: str, nodes: Collection[str]) -> dict[str, Answer]:
        request = {"op": operation, "run": self._run, "who": me(), "since": self._since, "lease": LEASE}
        request |= {"before": list(self._before), "force": self._force}
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
        return Answer(node, error=why, unreachable=output.unreachable)
    try:
        said = json.loads(unframed(output))
        if said["problem"]:
            return Answer(node, error=f"it cannot be locked: {one_line(str(said['problem']))}")
        holder = said["holder"]
        busy = tuple(one_line(str(entry), 80) for entry in said["busy"][:20])
        if said["state"] not in _STATES or not isinstance(holder, dict | None):
            raise ValueError("an unknown state")
        if said["state"] in ("held", "twin") and not holder:
            raise ValueError("nobody holds it")
        told = holder and {name: one_line(str(holder[name]), 200) for name in ("run", "node", "who", "since")}
        skew = float(said["time"]) - time.time()
        return Answer(node, said["state"], told, float(said["age"] or 0), busy, skew)
    except (
        AnswerError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        return Answer(node, error=f"it cannot be locked: its answer is not of the form expected ({error})")


def _refuse_twins(answers: Iterable[Answer]) -> None:
    twins = [said for said in answers if said.state == "twin" and said.holder]
    if twins:
        pairs = ", ".join(f"{said.node} and {(said.holder or {})['node']}" for said in twins)
        raise LockedError(
            f"{pairs} are one machine under two names",
            "take one of the names out of the inventory, or correct its ansible_host",
        )


def _refuse_held(answers: Iterable[Answer]) -> None:
    holders: dict[str, list[Answer]] = {}
    for said in answers:
        if said.state == "held":
            holders.setdefault(_holder(said), []).append(said)
    if not holders:
        return
    told = "; ".join(f"{fold(said.node for said in held)} by {who}" for who, held in holders.items())
    runs = sorted({str((said.holder or {})["run"]) for held in holders.values() for said in held})
    left = max(LEASE - said.age for held in holders.values() for said in held)
    raise LockedError(
        f"another gpuprov up is at work on nodes of yours: {told}",
        f"wait for it. If it was killed: `gpuprov up --resume` on its own controller ({', '.join(runs)}), "
        f"or --break-lock; its locks end by themselves in {max(1, round(left / 60))} min",
    )


def _holder(said: Answer) -> str:
    holder = said.holder or {}
    return f"{holder.get('who', 'somebody')}, since {holder.get('since', 'some time')}"


def skewed(answers: Iterable[Answer]) -> dict[str, str]:
    """Node → how far its clock is off, where that is worth a word."""
    return {said.node: clock(said.skew) for said in answers if not said.error and abs(said.skew) > SKEW}


def clock(skew: float) -> str:
    """`its clock is 400 days ahead of this controller's`."""
    days = abs(skew) / 86400
    return f"its clock is {days:.0f} days {'ahead of' if skew > 0 else 'behind'} this controller's"
