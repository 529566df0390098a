"""Runs the lab's simulated programs inside this process, in virtual time: a burn of a minute takes no minute.

A program alone runs where it is called, and its sleeps move the clock. Programs side by side are threads of
which one holds the baton while it computes: whoever sleeps names the moment it wants to go on at; the clock
jumps to the earliest of those moments and the baton is handed on. So they interleave as they would on a
node, a deadline falls at its exact second, and the same seeds give the same run. Standard output and error,
the environment and the working directory change with the baton.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GRACE = 5.0  # seconds between TERM and KILL, as the module on the nodes gives


class Killed(BaseException):
    """Thrown into a program that a signal ends; its argument is the signal."""


class Program:
    """One running program. What it has written but not flushed is lost when a signal ends it."""

    def __init__(self, world: World, main: Callable[[], Any], env: Mapping[str, str], cwd: Path) -> None:
        self.world, self.main, self.env, self.cwd = world, main, dict(env), cwd
        self.bytes = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
        self.streams: dict[str, Any] = {
            name: io.TextIOWrapper(kept, "utf-8", "surrogateescape", write_through=name == "stderr")
            for name, kept in self.bytes.items()
        }
        # A program may put other streams in their place; these close the bytes once nobody knows them.
        self.first = dict(self.streams)
        self.wake, self.rc = world.now, None  # type: float, int | None
        self.over = False
        self.handlers: dict[int, Any] = {}
        self.signal: int | None = None
        self.go: threading.Semaphore | None = None  # of its thread, when it runs beside others

    def body(self) -> None:
        """The program from its start to its end, in whatever thread this is."""
        first = self.first
        try:
            if self.signal is not None:
                raise Killed(self.signal)
            self.rc = int(self.main() or 0)
        except Killed as by:
            self.rc, self.streams = -int(by.args[0]), first
        except SystemExit as done:
            self.rc = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
        except BaseException:  # a program's own crash is its output, as on a node
            traceback.print_exc(file=first["stderr"])
            self.rc = 1
        if self.rc >= 0:
            for stream in first.values():
                stream.flush()
        self.over = True

    def _thread(self) -> None:
        assert self.go is not None
        self.go.acquire()
        self.body()
        self.world.back.release()

    def text(self, name: str) -> str:
        return self.bytes[name].getvalue().decode("utf-8", "replace")

    def turn(self) -> None:
        """Let the program go on until it sleeps or ends; without others beside it that is its end."""
        world, ours = self.world, (sys.stdout, sys.stderr)
        world.current = self
        sys.stdout, sys.stderr = self.streams["stdout"], self.streams["stderr"]
        world.put_on(self.env, self.cwd)
        if world.alone:
            self.body()
        else:
            if self.go is None:
                self.go = threading.Semaphore(0)
                threading.Thread(target=self._thread, daemon=True).start()
            self.go.release()
            world.back.acquire()
        if not self.over:
            self.streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        sys.stdout, sys.stderr = ours
        world.current = None

    def send(self, number: int) -> None:
        """Deliver a signal now; the program may outlive TERM when it asked to."""
        if self.over or (number != signal.SIGKILL and self.handlers.get(number) == signal.SIG_IGN):
            return
        self.signal, self.wake = number, self.world.now
        self.turn()

    def sleep(self, seconds: float) -> None:
        """What time.sleep does inside the program."""
        self.wake = self.world.now + max(0.0, seconds)
        if self.world.alone:
            self._sleep_alone()
            return
        if self.world.next_is(self):
            self.world.now = self.wake
            return
        assert self.go is not None
        self.world.back.release()
        self.go.acquire()
        number, self.signal = self.signal, None
        if number is not None:
            self._obey(number)

    def _sleep_alone(self) -> None:
        world = self.world
        if self.wake >= world.end and not world.ending:
            world.now, world.ending = world.end, True
            self._obey(signal.SIGTERM)
        if world.ending and self.wake >= world.end + GRACE:
            world.now = world.end + GRACE
            raise Killed(signal.SIGKILL)
        world.now = max(world.now, self.wake)

    def _obey(self, number: int) -> None:
        handler = self.handlers.get(number, signal.SIG_DFL)
        if number == signal.SIGKILL or handler == signal.SIG_DFL:
            raise Killed(number)
        if callable(handler):
            handler(number, None)


class World:
    """The clock, and whose turn it is. `now` starts at the true time, so that dates look right."""

    def __init__(self) -> None:
        self.now = time.time()
        self.back = threading.Semaphore(0)
        self.current: Program | None = None
        self.running: tuple[Program, ...] = ()
        self.end, self.ending = (
            self.now,
            False,
        )  # of the program in front: its deadline, and whether it passed
        self._worn: Mapping[str, str] | None = None
        self._home = (dict(os.environ), Path.cwd())

    @property
    def alone(self) -> bool:
        return len(self.running) < 2

    def next_is(self, program: Program) -> bool:
        """Whether nothing happens before this program wakes: it may then keep the baton."""
        others = (one.wake for one in self.running if one is not program and not one.over)
        return program.wake < min(others, default=program.wake + 1) and program.wake < self.end

    # -- what the programs see instead of the modules time and signal

    def clock(self) -> SimpleNamespace:
        """Stands for the module `time` in a program."""
        real = {name: getattr(time, name) for name in ("mktime", "tzset")}
        return SimpleNamespace(
            **real,
            **dict.fromkeys(("time", "monotonic", "perf_counter"), lambda: self.now),
            time_ns=lambda: int(self.now * 1e9),
            sleep=lambda seconds: self.current.sleep(seconds) if self.current else None,
            ctime=lambda moment=None: time.ctime(self.now if moment is None else moment),
            localtime=lambda moment=None: time.localtime(self.now if moment is None else moment),
            gmtime=lambda moment=None: time.gmtime(self.now if moment is None else moment),
            strftime=lambda form, when=None: time.strftime(form, when or time.localtime(self.now)),
        )

    def signals(self) -> SimpleNamespace:
        """Stands for the module `signal` in a program."""
        names = {name: getattr(signal, name) for name in dir(signal) if name.startswith("SIG")}

        def handle(number: int, handler: Any) -> Any:
            known = self.current.handlers if self.current else {}
            before, known[number] = known.get(number, signal.SIG_DFL), handler
            return before

        return SimpleNamespace(**names, signal=handle)

    def put_on(self, env: Mapping[str, str], cwd: Path) -> None:
        if env != self._worn:
            os.environ.clear()
            os.environ.update(env)
            self._worn = env
        if Path.cwd() != cwd:
            os.chdir(cwd)

    def take_off(self) -> None:
        """The process's own environment and folder again."""
        env, cwd = self._home
        os.environ.clear()
        os.environ.update(env)
        self._worn = None
        os.chdir(cwd)

    # -- running

    def run(self, main: Program, deadline: float, beside: tuple[Program, ...] = ()) -> bool:
        """Run a program to its end, others beside it; True when it was killed at `deadline` (seconds)."""
        self.end, self.ending, self.running = self.now + deadline, False, (main, *beside)
        try:
            while not main.over:
                soonest = min((one for one in self.running if not one.over), key=lambda one: one.wake)
                if soonest.wake >= self.end and not self.alone:
                    self.now, self.ending = self.end, True
                    self.stop(main)
                    break
                self.now = max(self.now, soonest.wake)
                soonest.turn()
            for one in beside:
                self.stop(one)
        finally:
            self.running = ()
            self.take_off()
        return self.ending

    def stop(self, program: Program) -> None:
        """TERM, a grace, KILL."""
        program.send(signal.SIGTERM)
        if not program.over:
            self.now += GRACE
            program.send(signal.SIGKILL)
