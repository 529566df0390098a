"""The life cycle of one unit: registered, started, followed to its end, and removed on both sides.

A unit outlives its controller and the connection to it. It is given up only when it cannot be working any
longer (`assignment.fate`); until then no other worker touches its nodes.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from provision.errors import GpuprovError
from provision.remote.protocol import NodeError, one_line
from provision.remote.workers import assignment, causes, register, sealed, worker_stream
from provision.remote.workers.assignment import Fate, Known
from provision.remote.workers.control import COMPLETE, Control, ControlError, RefusedError, labelled
from provision.remote.workers.register import Record, Register

WORK_TYPE = "gpuprov-worker"
TTL = 45.0  # seconds within which a unit must start
RECEPTOR = 120.0  # longest outage of this machine's Receptor in seconds, as in a restart
_POLL = 2.0  # seconds between clock checks
_LOOK = 5.0  # seconds between polls of a silent unit's state
_ENDING = 20.0  # seconds for a unit to end; Receptor kills it after 10
_EACH = 16 * 1024 * 1024  # limit of a unit's output in bytes per node, plus four times that in total
Take = Callable[[Mapping[str, Any]], None]


class End(enum.Enum):
    DONE = "it came to its end"
    NOT_BEGUN = "nothing was done on its nodes"
    LOST = "it ended early, and does nothing any more"
    LEFT = "it may be at work: it stays in the register"


@dataclass(frozen=True)
class Ended:
    """Outcome of a unit, with its error if any; `changed`: the worker has changed since its greeting."""

    end: End
    error: NodeError | None = None
    changed: bool = False


@dataclass(frozen=True)
class Job:
    """The work of a unit.
    `payload`: as `ansible-runner transmit` sends it, for `hosts` and at most `seconds`. `alone`: no other
    worker can take over, so it continues while unreachable."""

    what: str
    payload: bytes
    hosts: Collection[str]
    seconds: float
    alone: bool
    say: Callable[[str], None] = lambda _line: None  # called when its worker falls silent or recovers


@dataclass(frozen=True)
class Way:
    """Route to a worker: the controller's Receptor and TLS settings, the worker's key and socket.
    `again` greets the worker once more."""

    control: Control
    tls_client: str
    controller: str  # node id of the controller's Receptor
    worker: str
    socket: str
    public_key: str = ""
    route: Callable[[], bool] = lambda: True
    again: Callable[[], Way | NodeError] | None = None


def carry(way: Way, job: Job, take: Take, stopping: Callable[[], bool]) -> Ended:
    """Run the job on a worker and pass each of its messages to `take`, in this thread.
    The unit is ended once `stopping` returns true, and is ended and removed if `take` raises."""
    ended = _carried(way, job, take, stopping)
    if not ended.changed or way.again is None or stopping():
        return ended
    # Nothing has run yet, and a stored greeting may be outdated; a second refusal is final.
    anew = way.again()
    if isinstance(anew, NodeError):
        return Ended(End.NOT_BEGUN, anew)
    return _carried(anew, job, take, stopping)


def _carried(way: Way, job: Job, take: Take, stopping: Callable[[], bool]) -> Ended:
    book = register.current()
    try:
        record, key = book.begin(
            way.worker, way.control.path, job.what, job.hosts, job.seconds, alone=job.alone
        )
    except GpuprovError as error:
        return Ended(End.NOT_BEGUN, NodeError("ansible", error.what, error.fix))
    about = {
        "answer_key": base64.b64encode(key).decode(),
        "seconds": job.seconds,
        "lease": lease_of(record),
        "controller": way.controller,
        "socket": way.socket,
    }
    plain = json.dumps(about).encode() + b"\n" + job.payload
    try:
        payload = sealed.sealed({"versions": worker_stream.digest()}, plain, way.public_key)
    except sealed.SealError as error:
        book.gone(record)
        return Ended(End.NOT_BEGUN, NodeError("garbage", f"worker {way.worker}: {error}", ""))
    stream = reader(record, key, take)
    return Unit(way, book, record, stream, stopping, job.say).carry(payload)


def reader(record: Record, key: bytes, take: Take) -> worker_stream.Reader:
    """Return a reader of a unit's answers that adds their origin: unit label and event number."""

    def with_origin(raw: Mapping[str, Any]) -> None:
        take({**raw, "origin": f"{record.label}:{raw['counter']}"})

    return worker_stream.Reader(record.nodes, sealed.Opener(key), with_origin)


def lease_of(record: Record) -> float | None:
    return None if record.alone else assignment.LEASE


def hello(way: Way, seconds: float) -> tuple[Mapping[str, Any] | None, NodeError | None]:
    """Greet a worker; return its description, or an error. No secret is sent."""
    book = register.current()
    try:
        record, _ = book.begin(way.worker, way.control.path, "hello", (), seconds, alone=False)
    except GpuprovError as error:
        return None, NodeError("ansible", error.what, error.fix)
    answers: list[Mapping[str, Any]] = []
    stream = worker_stream.Reader((), None, answers.append)
    end = time.monotonic() + seconds
    question = {"hello": {"controller": way.controller, "socket": way.socket}}
    unit = Unit(way, book, record, stream, lambda: time.monotonic() > end)
    ended = unit.carry(json.dumps(question).encode() + b"\n")
    if answers:
        return answers[0], None
    return None, ended.error or causes.of_words(way.worker, stream.noise)


class Unit:
    """A unit of this controller, from its start or from a later collection to its end."""

    def __init__(
        self,
        way: Way,
        book: Register | None,
        record: Record,
        stream: worker_stream.Reader,
        stopping: Callable[[], bool],
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._say = say
        self._silence_said = False
        self._way = way
        self._book = book
        self.record = record
        self._stream = stream
        self._stopping = stopping
        self._heard = time.monotonic()
        self._ending: float | None = None  # when it was requested to end
        self._confirmed = False  # its worker has confirmed that
        self._away = -math.inf  # last time without a route to its worker
        self._state: Mapping[str, Any] = {}

    def carry(self, payload: bytes) -> Ended:
        ended: Ended | None = None
        try:
            refused = self._begin(payload)
            ended = self.follow() if refused is None else Ended(End.NOT_BEGUN, refused)
            return ended
        finally:
            if ended is None or ended.end is not End.LEFT:
                self.remove()

    def _begin(self, payload: bytes) -> NodeError | None:
        """Start the unit; return the error if that failed."""

        def named(unit: str) -> None:
            self.record = self._book.named(self.record, unit) if self._book else self.record

        way = self._way
        try:
            way.control.submit(
                way.worker,
                WORK_TYPE,
                payload,
                tls_client=way.tls_client,
                label=self.record.label,
                ttl=TTL,
                named=named,
            )
        except RefusedError as error:
            return causes.of_refusal(way.worker, error.what)
        except ControlError as error:
            if not self.record.unit:
                return causes.no_receptor(way.worker, error)
            # following the unit will show whether it started
        return None

    def follow(self) -> Ended:
        """Process the unit's output until it ends, also for a unit that is collected later."""
        away: float | None = None
        while True:
            try:
                self._read()
                away = None
                ended = self._over() or self._given_up()
            except (worker_stream.BadStreamError, sealed.SealError) as error:
                return Ended(End.LOST, causes.bad(self._way.worker, str(error)))
            except (ControlError, RefusedError) as error:
                away = away or time.monotonic()  # the outage's start, not its latest error
                if time.monotonic() - away > RECEPTOR or self._stopping():
                    return Ended(End.LOST, causes.no_receptor(self._way.worker, error))
                time.sleep(_POLL)
                continue
            if ended is not None:
                return ended

    def _read(self) -> None:
        """Read output until it ends or a decision is due."""
        if self._stream.whole:
            return
        results = self._way.control.results(self.record.unit, self._stream.position)
        with contextlib.closing(results):
            looked = time.monotonic()
            while not self._stream.whole:
                data = results.read(_POLL)
                now = time.monotonic()
                if data:
                    self._say_it_speaks(now)
                    self._heard = now
                    self._stream.feed(data)
                    if self._stream.size > _EACH * (4 + len(self.record.nodes)):
                        raise worker_stream.BadStreamError("it prints without end")
                if self._stopping():
                    self._end()
                if data == b"" or now - looked > _LOOK:  # b"": the end; None: a timeout
                    self._look()
                    looked = now
                    if data == b"" or self._decided():
                        return

    def _look(self) -> None:
        state = self._way.control.unit(self.record.unit)
        # `_over` checks for `gone`: Receptor has forgotten the unit, which may have worked on its nodes.
        self._state = state if state is not None else {"StateName": "Failed", "Detail": "it is gone"}
        if not self._way.route():
            self._away = time.monotonic()

    def _decided(self) -> bool:
        silent = time.monotonic() - self._heard
        return self._complete() or silent > assignment.SILENCE or self._ending is not None

    def _complete(self) -> bool:
        """Return whether the unit has ended and no further output is expected.
        Receptor transfers output apart from the state: much later after a broken link or a restart, and not
        at all once the unit was requested to end."""
        size = self._state.get("StdoutSize")
        behind = isinstance(size, int) and self._stream.position < size
        patience = assignment.RETURN if self._ending is None else _LOOK
        quiet = time.monotonic() - max(self._heard, self._away)
        return self._state.get("StateName") in COMPLETE and not (behind and quiet <= patience)

    def _over(self) -> Ended | None:
        """Return the outcome if the unit has ended."""
        if self._stream.whole:
            refusal = self._stream.refusal
            if refusal is not None:
                changed = refusal.get("kind") in ("key", "python")
                return Ended(End.NOT_BEGUN, causes.refused(self._way.worker, refusal), changed)
            trouble = self._stream.trouble()
            if trouble.startswith(worker_stream.STOPPED):
                return Ended(End.LOST, causes.stopped(self._way.worker, trouble))
            if trouble:
                return Ended(End.LOST, causes.failed(self._way.worker, trouble))
            return Ended(End.DONE)
        if not self._complete():
            return None
        if self._confirmed:
            return Ended(End.LOST, self._silent())
        extra = self._state.get("ExtraData")
        extra = extra if isinstance(extra, Mapping) else {}
        detail = one_line(str(self._state.get("Detail") or ""), 200)
        if extra.get("RemoteStarted") is False:
            if not extra.get("RemoteUnitID"):
                return Ended(End.NOT_BEGUN, causes.of_refusal(self._way.worker, detail))
            return None  # unknown whether it started; its lease decides when it can no longer be working
        if not self._stream.begun and "gone" not in detail:  # a unit reports its start before any work
            return Ended(End.NOT_BEGUN, causes.of_words(self._way.worker, self._stream.noise, detail))
        return Ended(End.LOST, causes.cut(self._way.worker, detail, self._stream.noise))

    def _given_up(self) -> Ended | None:
        now = time.monotonic()
        if self._ending is not None and now - self._ending > _ENDING:
            return Ended(End.LOST, causes.hung(self._way.worker, "it did not stop in time"))
        # The register stores wall-clock time, valid after a restart; `fate` compares monotonic times.
        left = self.record.deadline - time.time()
        lease, route = lease_of(self.record), self._way.route()
        state = Known(self._heard, now + left, lease, route, self._confirmed, self._away)
        fate = assignment.fate(state, now)
        if fate is Fate.STOP:
            self._end()
        if fate is Fate.LEFT:
            return Ended(End.LEFT, causes.left(self._way.worker, now - self._heard, self.record.deadline))
        if fate is not Fate.LOST:
            self._say_it_is_silent(state, now)
            time.sleep(0.2)  # `_read` returns at once if Receptor has no more output
            return None
        return Ended(End.LOST, self._silent())

    def _say_it_is_silent(self, known: Known, now: float) -> None:
        silent = now - known.heard
        if self._silence_said or silent <= assignment.SILENCE:
            return
        self._silence_said = True
        what = f"worker {self._way.worker}: not heard from for {silent:.0f} s"
        if self._ending is not None:
            what += ": its work is ended"
        elif known.route:
            left = assignment.RETURN - (now - known.away)
            what += f", and reached again since: waiting up to {left:.0f} s for a word of it"
        elif known.lease is not None:
            left = known.lease + assignment.MARGIN - silent
            what += f" (the mesh has no way to it): others go on with its nodes after {left:.0f} s more"
        else:
            left = assignment.PATIENCE - silent
            what += (
                f" (the mesh has no way to it), and nobody else reaches its nodes: waiting {left:.0f} s more"
            )
        self._say(what)

    def _say_it_speaks(self, now: float) -> None:
        if self._silence_said:
            self._silence_said = False
            self._say(f"worker {self._way.worker}: heard from again after {now - self._heard:.0f} s")

    def _silent(self) -> NodeError:
        seconds = time.monotonic() - self._heard
        return causes.hung(self._way.worker, f"it was not heard from for {seconds:.0f} s")

    def _end(self) -> None:
        """Request the unit to end, once."""
        if self._ending is None:
            self._ending = time.monotonic()
            with contextlib.suppress(ControlError):
                cancelled = self._way.control.cancel(self.record.unit)
                silent = time.monotonic() - self._heard > assignment.SILENCE
                self._confirmed = cancelled and silent  # otherwise its last output is worth waiting for

    def remove(self) -> None:
        """Have Receptor remove the unit on both sides; if that fails now, the unit stays registered."""
        with contextlib.suppress(ControlError):
            removed(self._way.control, self.record)
            if self._book is not None:
                self._book.gone(self.record)


def removed(control: Control, record: Record) -> None:
    """End and remove a unit, even if its id was not recorded. Raises ControlError."""
    unit = record.unit or labelled(control.units(), record.label)
    if unit:
        control.release(unit)
