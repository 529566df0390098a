"""The spool, a folder on the node's disk with all data of a burn-in, and the clocks that date it.

A crash costs at most the line being written, and a full disk nothing that was written before.
"""

import errno
import gzip
import json
import os
import time

from provision.node.modules.gpuprov_run import boot_id

BOOTTIME = 7  # CLOCK_BOOTTIME; named in Python since 3.7
JUMP = 2.0  # seconds; more than a clock is slewed between two readings


def since_boot():
    """Return the seconds since the node booted, including suspended time."""
    return time.clock_gettime(BOOTTIME)


def wall_offset():
    """Return the seconds that the wall clock is ahead of the clock since boot, both read at one moment."""
    for _ in range(5):
        before = since_boot()
        wall = time.time()
        if since_boot() - before < 0.2:
            break
    return wall - before


class ClockWatch:
    """Detects changes of the wall clock."""

    def __init__(self, read=wall_offset):
        self.read = read
        self.offset = read()

    def jump(self):
        """Return the seconds that the wall clock jumped since the last call; 0.0 if it did not."""
        offset = self.read()
        moved, self.offset = offset - self.offset, offset
        return round(moved, 3) if abs(moved) >= JUMP else 0.0


RESERVE = 256 * 1024  # bytes kept for the last events
BACKLOG = 500  # events kept in memory while the disk is full
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
        """Create the folders and the reserve. Raises OSError if they do not fit."""
        for name in ("raw", "telemetry"):
            os.makedirs(self.file(name), mode=0o700, exist_ok=True)
        if not os.path.exists(self.file("reserve")):
            write_whole(self.file("reserve"), b"\0" * RESERVE)

    def give_reserve(self):
        """Free the room reserved for the last events; return whether there was any."""
        try:
            os.unlink(self.file("reserve"))
        except OSError:
            return False
        return True

    # -- events

    def event(self, _event, **fields):
        """Append an event to events.jsonl and fsync; on a full disk it is kept for later."""
        line = {"t": round(time.time(), 3), "up": round(since_boot(), 3), "boot": self.boot, "event": _event}
        line.update(fields)
        self.backlog.append(json.dumps(line))
        del self.backlog[:-BACKLOG]
        self.flush()

    def flush(self):
        """Write the waiting events; return whether all were written."""
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
        """Return the position; None if it is missing or unreadable."""
        try:
            with open(self.file("state.json"), encoding="utf-8") as source:
                state = json.load(source)
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) else None

    def write_state(self, state):
        """Replace the position; return whether that succeeded."""
        data = json.dumps(state).encode("utf-8")
        for _ in range(2):
            try:
                write_whole(self.file("state.json"), data)
                return True
            except OSError as error:
                if not full(error) or not self.give_reserve():
                    return False
        return False

    # -- output of programs

    def write_raw(self, name, answer):
        """Store a step's answer as raw/NAME. Raises OSError and then leaves nothing behind."""
        data = gzip.compress(json.dumps(answer).encode("utf-8", "replace"), 6)
        write_whole(self.file("raw", name), data)

    # -- room

    def free(self):
        """Return the free bytes on the disk."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def used(self):
        """Return the bytes used by the spool."""
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
        # A tenth of the quota stays free for steps, half of that for events.
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
    """Replace a file atomically and fsync. Raises OSError and then leaves nothing behind."""
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
    """Append lines to a file, all or none, and fsync. Raises OSError."""
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
