"""The controller's Receptor, simulated: it answers on its control socket, in virtual time.

Its answers are Receptor 1.5.5's texts that provision/remote/workers/control.py parses (compared with Debian
13's in tests/support/receptor.py). It hands units over, polls workers once a second, and retries unreachable
ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from benchmarks.mesh.network import FOR_GOOD
from benchmarks.mesh.virtual_threads import Signal, World
from benchmarks.mesh.worker import Process, Worker
from provision.remote.workers.control import COMPLETE

CONTROLLER = "controller"
NEWS = 1.0  # seconds between two polls for news of a unit (docs/workers.md)
HANDSHAKE = 2  # round trips before a unit is handed over: QUIC with TLS 1.3, and the greeting inside
QUESTION = 200  # bytes of a request or a notification in this model
PIECE = 1024 * 1024  # bytes of output in one answer
QUICK = 0.002  # seconds for an answer from memory

_GIVEN = ("command", "subcommand", "node", "worktype", "tlsclient", "ttl", "signwork")


@dataclass
class Unit:
    """A unit in this Receptor, as of the last news; `process`: the unit at its worker, once it has begun."""

    id: str
    worker: Worker
    params: Mapping[str, str]
    signal: Signal
    state: str = "Pending"
    detail: str = "Starting Worker"
    process: Process | None = None
    released: bool = False
    size: int = 0  # bytes of output that have arrived
    rest: bytearray = field(default_factory=bytearray)  # the unread part of the output

    def record(self) -> dict[str, Any]:
        started = self.process is not None
        return {
            "Detail": self.detail,
            "ExtraData": {
                "RemoteNode": self.worker.name,
                "RemoteParams": self.params,
                "RemoteUnitID": self.id if started else "",
                "RemoteStarted": started,
            },
            "StateName": self.state,
            "StdoutSize": self.size,
            "WorkType": "remote",
        }


class Receptor:
    """The simulated Receptor.
    `units`: the present units; `every`: all units so far. `asked`: number of commands on its control socket.
    """

    def __init__(self, world: World, workers: Mapping[str, Worker]) -> None:
        self.world = world
        self.workers = workers
        self.units: dict[str, Unit] = {}
        self.every: list[Unit] = []
        self.asked = 0

    # -- the control socket

    def answer(self, command: str) -> dict[str, Any] | str:
        """Return the immediate answer, or the text of an error."""
        world = self.world
        words = command.split(" ")
        if command.startswith("{"):
            known = {name: CONTROLLER for name, one in self.workers.items() if one.line.known(world.now)}
            adverts = [
                {"NodeID": name, "WorkCommands": [{"WorkType": "gpuprov-worker", "Secure": True}]}
                for name in known
            ]
            return {"NodeID": CONTROLLER, "RoutingTable": known, "Advertisements": adverts}
        if words[1] == "list":
            return {name: unit.record() for name, unit in self.units.items()}
        unit = self.units.get(words[2])
        if unit is None:
            return f"unknown work unit {words[2]}"
        if words[1] == "status":
            return unit.record()
        return self._told(unit, words[1])

    def submit(self, words: Mapping[str, str]) -> Unit:
        made = Unit(
            f"u{len(self.every)}",
            self.workers[words["node"]],
            {key: value for key, value in words.items() if key not in _GIVEN},
            Signal(self.world),
        )
        self.units[made.id] = made
        self.every.append(made)
        return made

    def hand_over(self, unit: Unit, payload: bytes, ttl: float) -> dict[str, Any]:
        """Start the unit at its worker, and retry until its time is up."""
        world, line = self.world, unit.worker.line
        until = world.now + ttl
        while (cut := line.broken(world.now)) is not None:
            if cut.renewed > until:
                world.at(until, lambda: self._expire(unit))
                return {"result": "Job Submitted", "unitid": unit.id}
            world.pass_until(cut.renewed)
        world.pass_until(world.now + 2 * HANDSHAKE * line.region.latency)
        world.pass_until(line.arrives(len(payload), world.now, there=True))
        if line.broken(world.now):  # cut meanwhile: the controller does not know whether the unit has begun
            world.at(until, lambda: self._expire(unit))
            return {"result": "Job Submitted", "unitid": unit.id}
        process = unit.process = unit.worker.begin(payload, world.now)
        world.pass_until(line.arrives(QUESTION, world.now, there=False))
        unit.state, unit.detail = "Running", "Running: PID 7"
        self._ask_for_news(unit, process)
        return {"result": "Job Started", "unitid": unit.id}

    def _expire(self, unit: Unit) -> None:
        unit.state, unit.detail = "Failed", "Work unit expired on Thu Nov 26 02:56:34"
        unit.signal.send()

    def _told(self, unit: Unit, what: str) -> dict[str, Any]:
        """Make the worker end the unit (`cancel`) or remove it (`release`)."""
        world, line = self.world, unit.worker.line
        if unit.process is not None and (cut := line.broken(world.now)) is not None:
            if cut.renewed < FOR_GOOD:
                world.at(cut.renewed, lambda: self._reached(unit, what))
            return {f"{what} pending": unit.id}
        if unit.process is not None:
            world.pass_until(line.arrives(QUESTION, world.now, there=True))
            self._reached(unit, what)
            world.pass_until(line.arrives(QUESTION, world.now, there=False))
        else:
            self._reached(unit, what)
        return {"cancelled" if what == "cancel" else "released": unit.id}

    def _reached(self, unit: Unit, what: str) -> None:
        if unit.process is not None:
            unit.process.stop(self.world.now)
        if what == "cancel":
            if unit.state not in COMPLETE:
                unit.state = unit.detail = "Canceled"
        else:
            unit.released = True
            self.units.pop(unit.id, None)
        unit.signal.send()

    # -- news of units

    def _ask_for_news(self, unit: Unit, process: Process) -> None:
        """Poll for news now, and from then on repeatedly."""
        if unit.released:
            return
        world, line = self.world, unit.worker.line
        cut = line.broken(world.now)
        if cut is None:
            world.at(line.arrives(QUESTION, world.now, there=True), lambda: self._look(unit, process))
        elif cut.renewed < FOR_GOOD:
            world.at(cut.renewed, lambda: self._ask_for_news(unit, process))

    def _look(self, unit: Unit, process: Process) -> None:
        """Collect the news at the worker."""
        world, line = self.world, unit.worker.line
        if line.broken(world.now):
            self._ask_for_news(unit, process)
            return
        data, more = process.printed(world.now, PIECE)
        over = process.over <= world.now and not more
        world.at(
            line.arrives(QUESTION + len(data), world.now, there=False),
            lambda: self._news(unit, process, data, more, over),
        )

    def _news(self, unit: Unit, process: Process, data: bytes, more: bool, over: bool) -> None:
        world = self.world
        cut = unit.worker.line.broken(world.now)
        if cut is not None:  # resent after reconnecting
            if cut.renewed < FOR_GOOD:
                world.at(cut.renewed, lambda: self._news(unit, process, data, more, over))
            return
        unit.size += len(data)
        unit.rest += data
        if over and unit.state not in COMPLETE:
            unit.state, unit.detail = "Succeeded", "exit status 0"
            if process.stopped:
                unit.state, unit.detail = "Failed", "exit status 1"
        unit.signal.send()
        if more:
            self._ask_for_news(unit, process)
        elif not over:
            world.at(world.now + NEWS, lambda: self._ask_for_news(unit, process))


def instead_of_socket(receptor: Receptor) -> SimpleNamespace:
    """Return a replacement of the module socket for the control socket's client."""
    return SimpleNamespace(
        AF_UNIX=None, SOCK_STREAM=None, SHUT_WR=None, socket=lambda *_: _Connection(receptor)
    )


class _Connection:
    """One connection of gpuprov to its Receptor."""

    def __init__(self, receptor: Receptor) -> None:
        self._receptor = receptor
        self._world = receptor.world
        self._said = bytearray()
        self._answers = bytearray()
        self._submitted: tuple[Unit, float] | None = None
        self._stream: Unit | None = None
        self._timeout = 0.0
        self._waiting: Callable[[], None] | None = None

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def connect(self, _path: str) -> None:
        self._say(f"Receptor Control, node {CONTROLLER}")

    def sendall(self, data: bytes) -> None:
        self._said += data
        if self._submitted is not None:
            return  # a payload, until shutdown
        command, _, rest = bytes(self._said).partition(b"\n")
        self._said = bytearray(rest)
        self._receptor.asked += 1
        self._command(command.decode())

    def shutdown(self, _how: Any) -> None:
        assert self._submitted is not None
        unit, ttl = self._submitted
        payload = bytes(self._said)
        self._said.clear()

        def begun() -> None:
            self._say(json.dumps(self._receptor.hand_over(unit, payload, ttl)))

        self._waiting = begun

    def recv(self, size: int) -> bytes:
        self._world.leave()
        try:
            return self._received(size)
        finally:
            self._world.back()

    def close(self) -> None: ...

    def _received(self, size: int) -> bytes:
        if not self._answers and self._stream is None:
            # Waiting for an answer of Receptor includes waiting for the workers that it contacts.
            if self._waiting is None:
                raise TimeoutError
            waiting, self._waiting = self._waiting, None
            waiting()
        if self._answers:
            taken = bytes(self._answers[:size])
            del self._answers[:size]
            return taken
        assert self._stream is not None
        unit = self._stream
        until = self._world.now + self._timeout
        while not unit.rest:
            if unit.released or (unit.state in COMPLETE and not unit.rest):
                return b""
            if self._world.now >= until:
                raise TimeoutError
            unit.signal.wait(until)
        taken = bytes(unit.rest[:size])
        del unit.rest[:size]
        return taken

    def _command(self, command: str) -> None:
        receptor = self._receptor
        words = json.loads(command) if command.startswith("{") else {}
        if words.get("subcommand") == "submit":
            unit = receptor.submit(words)
            self._submitted = unit, float(words["ttl"].removesuffix("s"))
            self._say(f"Work unit created with ID {unit.id}. Send stdin data and EOF.")
            return

        def answered() -> None:
            self._world.pass_until(self._world.now + QUICK)
            answer = receptor.answer(command)
            self._say(f"ERROR: {answer}" if isinstance(answer, str) else json.dumps(answer))

        if command.startswith("work results "):
            _, _, name, start = command.split(" ")
            if name not in receptor.units:
                self._say(f"ERROR: unknown work unit {name}")
                return
            self._stream = receptor.units[name]
            # Output that was read before is not kept.
            assert int(start) == self._stream.size - len(self._stream.rest)
            self._say(f"Streaming results for work unit {name}")
        else:
            self._waiting = answered

    def _say(self, line: str) -> None:
        self._answers += line.encode() + b"\n"
