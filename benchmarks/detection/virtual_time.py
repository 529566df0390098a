"""Runs the lab's simulated programs in this process, in virtual time that needs no waiting.

A single program runs in the calling thread, and its sleeps advance the clock. Concurrent programs are
threads, and only the one with the baton computes: a sleeping program registers its wake-up time; the clock
jumps to the earliest of those and the baton is passed on. So they interleave as on a node, a deadline hits at
its exact second, and the same seeds give the same run. Standard output and error, the environment and the
working directory change with the baton.
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

GRACE = 5.0  # seconds between TERM and KILL, as in the module on the nodes


class Killed(BaseException):
    """Raised inside a program that a signal ends; its argument is the signal."""


class Program:
    """One running program. Output that is not flushed when a signal ends it is lost."""

    def __init__(self, world: World, main: Callable[[], Any], env: Mapping[str, str], cwd: Path) -> None:
        self.world, self.main, self.env, self.cwd = world, main, dict(env), cwd
        self.bytes = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
        self.streams: dict[str, Any] = {
            name: io.TextIOWrapper(kept, "utf-8", "surrogateescape", write_through=name == "stderr")
            for name, kept in self.bytes.items()
        }
        # A program may replace the streams; unreferenced ones would close the byte buffers.
        self.first = dict(self.streams)
        self.wake, self.rc = world.now, None  # type: float, int | None
        self.over = False
        self.handlers: dict[int, Any] = {}
        self.signal: int | None = None
        self.go: threading.Semaphore | None = None  # of its thread, if it runs alongside others

    def body(self) -> None:
        """Run the program from start to end in the current thread."""
        first = self.first
        try:
            if self.signal is not None:
                raise Killed(self.signal)
            self.rc = int(self.main() or 0)
        except Killed as by:
            self.rc, self.streams = -int(by.args[0]), first
        except SystemExit as done:
            self.rc = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
        except BaseException:  # a program's own crash is part of its output, as on a node
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
        """Let the program continue until it sleeps or ends; a single program continues to its end."""
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
        """Deliver a signal now; a program with a handler may outlive TERM."""
        if self.over or (number != signal.SIGKILL and self.handlers.get(number) == signal.SIG_IGN):
            return
        self.signal, self.wake = number, self.world.now
        self.turn()

    def sleep(self, seconds: float) -> None:
        """Implement time.sleep inside the program."""
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
    """The clock and the scheduler. `now` starts at the real time so that dates are plausible."""

    def __init__(self) -> None:
        self.now = time.time()
        self.back = threading.Semaphore(0)
        self.current: Program | None = None
        self.running: tuple[Program, ...] = ()
        self.end, self.ending = (
            self.now,
            False,
        )  # of the main program: its deadline, and whether it has passed
        self._worn: Mapping[str, str] | None = None
        self._home = (dict(os.environ), Path.cwd())

    @property
    def alone(self) -> bool:
        return len(self.running) < 2

    def next_is(self, program: Program) -> bool:
        """Whether this program wakes before any other event and may keep the baton."""
        others = (one.wake for one in self.running if one is not program and not one.over)
        return program.wake < min(others, default=program.wake + 1) and program.wake < self.end

    # -- replacements of the modules time and signal in the programs

    def clock(self) -> SimpleNamespace:
        """Return a replacement for the module `time` in a program."""
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
        """Return a replacement for the module `signal` in a program."""
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
        """Restore the process's own environment and folder."""
        env, cwd = self._home
        os.environ.clear()
        os.environ.update(env)
        self._worn = None
        os.chdir(cwd)

    # -- running

    def run(self, main: Program, deadline: float, beside: tuple[Program, ...] = ()) -> bool:
        """Run a program to its end next to others; True when it was killed at `deadline` (seconds)."""
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
        """Send TERM, then KILL after a grace period."""
        program.send(signal.SIGTERM)
        if not program.over:
            self.now += GRACE
            program.send(signal.SIGKILL)
