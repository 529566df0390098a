"""The folder on the node's disk where everything is kept, and the clocks that date it.

It is written so that a crash costs the line being written at most, and a full disk nothing that was there.
"""

import errno
import gzip
import json
import os
import time

from provision.node.modules.gpuprov_run import boot_id

BOOTTIME = 7  # CLOCK_BOOTTIME; Python has a name for it since 3.7
JUMP = 2.0  # seconds between two looks that no clock discipline slews


def since_boot():
    """Seconds since the node booted, time asleep included."""
    return time.clock_gettime(BOOTTIME)


def wall_offset():
    """Seconds the wall clock is ahead of the clock since boot. The two are read at one moment, or again."""
    for _ in range(5):
        before = since_boot()
        wall = time.time()
        if since_boot() - before < 0.2:
            break
    return wall - before


class ClockWatch:
    """Notices when the wall clock is set."""

    def __init__(self, read=wall_offset):
        self.read = read
        self.offset = read()

    def jump(self):
        """Seconds the wall clock jumped since the last look; 0.0 when it did not."""
        offset = self.read()
        moved, self.offset = offset - self.offset, offset
        return round(moved, 3) if abs(moved) >= JUMP else 0.0


RESERVE = 256 * 1024  # bytes kept for the last words
BACKLOG = 500  # events kept in memory while the disk takes none
MEBI = 1024 * 1024


def full(error):
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Spool:
    """One campaign's folder; `path` exists."""

    def __init__(self, path):
        self.path = path
        self.boot = boot_id()
        self.backlog = []

    def file(self, *names):
        return os.path.join(self.path, *names)

    def prepare(self):
        """Make the folders and the reserve. Raises OSError when not even that fits."""
        for name in ("raw", "telemetry"):
            os.makedirs(self.file(name), mode=0o700, exist_ok=True)
        if not os.path.exists(self.file("reserve")):
            write_whole(self.file("reserve"), b"\0" * RESERVE)

    def give_reserve(self):
        """Free the room kept for the last words; whether there was any."""
        try:
            os.unlink(self.file("reserve"))
        except OSError:
            return False
        return True

    # -- events

    def event(self, _event, **fields):
        """Add a line to events.jsonl, on the disk when this returns; on a full disk it is kept for later."""
        line = {"t": round(time.time(), 3), "up": round(since_boot(), 3), "boot": self.boot, "event": _event}
        line.update(fields)
        self.backlog.append(json.dumps(line))
        del self.backlog[:-BACKLOG]
        self.flush()

    def flush(self):
        """Write the events that wait; whether none waits any more."""
        while self.backlog:
            data = "".join(line + "\n" for line in self.backlog).encode("utf-8", "replace")
            try:
                append_whole(self.file("events.jsonl"), data)
                self.backlog = []
            except OSError as error:
                if not full(error) or not self.give_reserve():
                    return False
        return True

    # -- position

    def read_state(self):
        """The position; None when there is none that can be read."""
        try:
            with open(self.file("state.json"), encoding="utf-8") as source:
                state = json.load(source)
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) else None

    def write_state(self, state):
        """Replace the position; whether that worked."""
        data = json.dumps(state).encode("utf-8")
        for _ in range(2):
            try:
                write_whole(self.file("state.json"), data)
                return True
            except OSError as error:
                if not full(error) or not self.give_reserve():
                    return False
        return False

    # -- what programs printed

    def write_raw(self, name, answer):
        """Store a step's answer as raw/NAME. Raises OSError, with nothing left behind."""
        data = gzip.compress(json.dumps(answer).encode("utf-8", "replace"), 6)
        write_whole(self.file("raw", name), data)

    # -- room

    def free(self):
        """Bytes the disk still has for us."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def used(self):
        """Bytes the spool takes."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except OSError:
                    continue
        return total


class Room:
    """Whether there is room for telemetry, and for another step, on the spool's disk."""

    def __init__(self, spool, mebibytes):
        self.spool = spool
        self.most = mebibytes * MEBI
        # A tenth of what was granted stays free for steps, half of that for events.
        self.for_telemetry = max(self.most // 10, 4 * RESERVE)
        self.for_steps = max(self.most // 20, 2 * RESERVE)

    def telemetry(self):
        return self.spool.free() > self.for_telemetry and self.spool.used() < self.most

    def steps(self):
        return self.spool.free() > self.for_steps and self.spool.used() < self.most + self.for_steps

    def said(self):
        return "%.1f MiB free, %.1f MiB of %.0f MiB used" % (
            self.spool.free() / MEBI,
            self.spool.used() / MEBI,
            self.most / MEBI,
        )


def write_whole(path, data):
    """Put a file in place in one step, on the disk when this returns. Raises OSError, nothing left behind."""
    beside = path + ".new"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(beside, path)
    except OSError:
        os.unlink(beside)
        raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_whole(path, data):
    """Add lines to a file, all or none, on the disk when this returns. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        try:
            if size and os.pread(handle, 1, size - 1) != b"\n":
                write_all(handle, b"\n")  # a crash cut the last line
            write_all(handle, data)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def write_all(handle, data):
    while data:
        data = data[os.write(handle, data) :]
