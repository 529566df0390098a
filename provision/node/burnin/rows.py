"""Telemetry rows: t,up,source,device,metric=value;metric=value…

`t` is seconds since the epoch, `up` since boot. A metric that did not change since its device's row before is
left out; a row without any says that the device was looked at. The first row of a device has all, and again
one each ten minutes. `metric=` means that there is no value any more. Units are in the names: _c °C, _w W,
_mhz, _pct, _rpm, _mib, _s; `throttle` are the bits of nvml.h, in hexadecimal; the rest are counts or words.
"""

import os
import re
import time

from provision.node.burnin.clocks import since_boot
from provision.node.burnin.spool import full, write_all

WHOLE_EVERY = 600.0  # seconds
SYNC_EVERY = 10.0
LOOK_EVERY = 15.0  # seconds between two looks at the room there is
UNSAFE = re.compile(r"[^A-Za-z0-9 .:_+/%()-]")


def safe(text):
    """A value as it may stand in a row."""
    return UNSAFE.sub("_", text.strip())[:64]


class Telemetry:
    """The file with this boot's rows. `said` is called when it stops for want of room, or goes on."""

    def __init__(self, path, room, said):
        self.path = path
        self.room = room
        self.said = said
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.known = {}  # (source, device) -> (metrics, when a whole row was written last, and when any)
        self.stopped = False
        self.look_again = 0.0
        self.rows = 0
        size = os.fstat(self.handle).st_size
        if size and os.pread(self.handle, 1, size - 1) != b"\n":
            self._write(b"\n")  # a crash cut the last line

    def add(self, source, device, metrics, seldom=0.0):
        """Write a row: metrics are texts by name. One that would say nothing new is written every `seldom`
        seconds."""
        if not self._may_write():
            return
        up = since_boot()
        before, whole_at, last = self.known.get((source, device), ({}, None, up))
        if whole_at is None or up - whole_at >= WHOLE_EVERY:
            whole_at, changed = up, metrics
        else:
            changed = {name: value for name, value in metrics.items() if before.get(name) != value}
        if not changed and up - last < seldom:
            return
        words = ";".join("%s=%s" % (safe(name), safe(value)) for name, value in changed.items())
        line = "%.1f,%.1f,%s,%s,%s\n" % (time.time(), up, source, safe(device), words)
        if self._write(line.encode("ascii", "replace")):
            self.known[source, device] = (dict(before, **metrics), whole_at, up)
            self.rows += 1

    def _may_write(self):
        now = time.monotonic()
        if now >= self.look_again:
            self.look_again = now + LOOK_EVERY
            self._set_stopped(not self.room.telemetry())
        return not self.stopped

    def _set_stopped(self, stopped):
        if stopped != self.stopped:
            self.stopped = stopped
            self.known = {}  # after a gap everything is said again
            self.said(stopped)

    def _write(self, data):
        size = os.fstat(self.handle).st_size
        try:
            write_all(self.handle, data)
        except OSError as error:
            os.ftruncate(self.handle, size)
            if not full(error):
                raise
            self._set_stopped(True)
            self.look_again = time.monotonic() + LOOK_EVERY
            return False
        return True


def keep_on_disk(path):
    """Bring what was written to the disk, again and again: in a child, since a busy disk takes its time."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(SYNC_EVERY)
        os.fdatasync(handle)
