"""The runner: walks through the order, survives interruptions, and records events."""

import json
import os
import re
import signal
import time

from provision.node.burnin.amd_gpus import amd_fatal
from provision.node.burnin.processes import (
    Worker,
    alive,
    descendants,
    drain,
    end_processes,
    set_free,
    stat_of,
    unit_members,
    wait_readable,
    wake_handle,
)
from provision.node.burnin.sampler import sampling
from provision.node.burnin.spool import ClockWatch, Room, since_boot

TICK = 2.0  # seconds between two ticks
KEEP_EVERY = 30.0  # seconds of counted time that a crash may cost
SAMPLER_PAUSE = 10.0  # until a dead sampler is restarted; doubled each time
SAMPLER_PAUSE_MOST = 600.0
END_GRACE_RUNNER = 4.0  # seconds between TERM and KILL


class Ending(Exception):  # noqa: N818 - it is no error
    """The end of the campaign; `ended` is done, time, abort, stopped, space or interrupted."""

    def __init__(self, ended):
        Exception.__init__(self, ended)
        self.ended = ended


class Watch:
    """Waits for the runner and handles signals, sampler, clock, disk space and abort rules meanwhile."""

    def __init__(self, spool, order, state, kept):
        """Install the signal handlers. kept: handles that only the runner may keep, such as the lock."""
        self.spool, self.order, self.state, self.kept = spool, order, state, kept
        self.room = Room(spool, order["space_mib"])
        self.clock = ClockWatch()
        self.asked_to_end = False
        self.wake = wake_handle()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.sampler = None
        self.told = None
        self.heard = b""
        self.sampler_due = 0.0
        self.sampler_pause = SAMPLER_PAUSE
        self.cost = {"cpu_s": 0.0, "tools_cpu_s": 0.0, "wall_s": 0.0}
        self.gpus = {address: "gpu%d" % number for number, address in enumerate(order["gpus"])}
        self.kept_at = time.monotonic()
        self.spent_from = None  # start of the segment's running time

    def _on_signal(self, _number, _frame):
        self.asked_to_end = True

    # -- the sampler

    def start_sampler(self):
        seen, closed = self.state["kernel_at"], self._handles()
        self.sampler, self.told = sampling(self.spool, self.order, self.room, seen, closed)
        self.heard = b""

    def _handles(self):
        """Return the handles that a child must not keep open."""
        return [handle for handle in (*self.kept, self.wake, self.told) if handle is not None]

    def _mind_sampler(self):
        if self.sampler is None:
            if time.monotonic() >= self.sampler_due:
                self.start_sampler()
            return
        try:
            gone = os.waitpid(self.sampler, os.WNOHANG)
        except OSError:
            gone = (self.sampler, 0)
        if gone[0]:
            self._hear()
            self._forget_sampler()
            self.wait(1.0)  # as for a child: an end of the whole unit also ends the sampler
            why = "the sampler ended with status %d" % gone[1]
            self.spool.event("sampler", source="sampler", device="node", trouble=why)

    def _forget_sampler(self):
        os.close(self.told)
        self.sampler, self.told = None, None
        self.sampler_due = time.monotonic() + self.sampler_pause
        self.sampler_pause = min(SAMPLER_PAUSE_MOST, 2 * self.sampler_pause)

    def end_sampler(self):
        """End the sampler after its last messages; `leftovers` handles whatever is stuck."""
        if self.sampler is None:
            return
        tree = descendants(self.sampler)
        try:
            os.kill(self.sampler, signal.SIGTERM)
        except OSError:
            pass
        until = time.monotonic() + 2 * END_GRACE_RUNNER
        while time.monotonic() < until and alive(self.sampler):
            wait_readable([self.told], 0.2)
            self._hear()
            time.sleep(0.02)
        self._hear()
        end_processes([self.sampler, *tree], 1.0)
        self._forget_sampler()

    def _hear(self):
        """Read and handle the sampler's messages."""
        try:
            while True:
                data = os.read(self.told, 65536)
                if not data:
                    break
                self.heard += data
        except OSError:
            pass
        lines = self.heard.split(b"\n")
        self.heard = lines.pop()
        for line in lines:
            self._heard_of(json.loads(line.decode("ascii")))

    def _is_fatal(self, xid):
        rules = self.order["abort"]
        return xid["code"] in rules["xids"] or any(re.match(one, xid["line"]) for one in rules["kernel"])

    def _heard_of(self, message):
        if "kernel_at" in message:
            self.state["kernel_at"] = message["kernel_at"]
        if "event" in message:
            fields = dict(message["event"])
            self.spool.event(fields.pop("event"), **fields)
        for name in ("xid", "kernel"):
            if name in message:
                self.spool.event(name, **message[name])
                self.keep()  # or it would be reported again after a crash
        if "cost" in message:
            for name, value in message["cost"].items():
                self.cost[name] = self.cost.get(name, 0.0) + value
        if "xid" in message and self._is_fatal(message["xid"]):
            self.abort("xids", message["xid"]["code"], message["xid"]["address"])
        fatal = amd_fatal(message.get("kernel", {}).get("line", ""), self.order["abort"]["kernel"], self.gpus)
        if fatal:
            self.abort("xids", *fatal)
        if "hot" in message:
            self.abort("gpu_celsius", message["hot"]["celsius"], message["hot"]["device"])

    def abort(self, rule, value, device):
        """Record that an abort rule applies; the next tick ends the campaign."""
        if self.state["abort"] is None:
            self.state["abort"] = {"rule": rule, "value": value, "device": device}

    # -- time

    def since_go(self):
        """Return the seconds since the campaign began on this node, with reboots, without clock changes."""
        return time.time() - self.state["go_t"] - self.state["jumps"]

    def begin_spending(self):
        self.spent_from = since_boot()

    def spend(self):
        """Count the segment's time up to now, and return it in seconds."""
        if self.spent_from is not None:
            now = since_boot()
            self.state["spent"] += now - self.spent_from
            self.spent_from = now
        return self.state["spent"]

    def keep(self):
        """Save the position to disk."""
        self.spend()
        self.kept_at = time.monotonic()
        self.spool.write_state(self.state)

    # -- waiting

    def tick(self):
        """Handle everything that is due. Raises Ending."""
        if self.told is not None:
            self._hear()
        self._mind_sampler()
        jump = self.clock.jump()
        if jump:
            self.state["jumps"] += jump
            self.spool.event("clock_jump", seconds=jump)
            self.keep()
        if self.spool.backlog:
            self.spool.flush()
        if time.monotonic() - self.kept_at >= KEEP_EVERY:
            self.keep()
        if self.asked_to_end:
            raise Ending("stopped" if os.path.exists(self.spool.file("stop")) else "interrupted")
        if self.state["abort"] is not None:
            self.spool.event("abort", **self.state["abort"])
            raise Ending("abort")

    def wait(self, seconds, enough=None):
        """Wait for so many seconds, or until `enough()` returns true. Raises Ending."""
        until = time.monotonic() + seconds
        while True:
            self.tick()
            left = until - time.monotonic()
            if left <= 0 or (enough is not None and enough()):
                return
            self._pause(min(left, TICK), ())

    def _pause(self, seconds, more):
        handles = [self.wake, *more] + ([] if self.told is None else [self.told])
        if self.wake in wait_readable(handles, seconds):
            drain(self.wake)

    def in_child(self, function, seconds):
        """Run a function in a child for up to `seconds`; return its answer (JSON) or None.

        Raises Ending, after ending the child."""
        worker = Worker(function, self._handles())
        until = time.monotonic() + seconds
        try:
            while not worker.read() and time.monotonic() < until:
                self.tick()
                self._pause(min(TICK, max(0.05, until - time.monotonic())), (worker.handle,))
            ended = worker.ended
        finally:
            worker.finish(END_GRACE_RUNNER)
            self.sweep()
        try:
            answer = json.loads(worker.answer.decode("utf-8", "replace")) if ended else None
        except ValueError:
            answer = None  # it was killed
        if not isinstance(answer, dict):
            self.wait(1.0)  # when the whole unit is ended, the child ends a moment before this process
            return None
        return answer

    def ours(self):
        """Return the processes that belong to this campaign."""
        return {os.getpid(), *descendants(os.getpid()), *unit_members()}

    def sweep(self):
        """End the processes that a step left in the unit; return the ones that cannot be ended."""
        keep = {os.getpid()}
        if self.sampler is not None:
            keep.update([self.sampler, *descendants(self.sampler)])
        return end_processes([pid for pid in unit_members() if pid not in keep], 1.0)

    def leftovers(self):
        """End everything except this process; report stuck processes and move them out of the unit."""
        pids = {*unit_members(), *descendants(os.getpid())} - {os.getpid()}
        for pid in end_processes(sorted(pids), END_GRACE_RUNNER):
            status = stat_of(pid)
            if status:
                self.spool.event("left", pid=pid, name=status[0], state=status[1])
                set_free(pid)
