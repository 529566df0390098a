"""The kernel's messages as they come: those that tell of faults."""

import os
import re
import stat
import time

KMSG = "/dev/kmsg"
KMSG_DEVICE = (1, 11)
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\)[^:]*: *(\d+)")
OF_INTEREST = re.compile(
    r"NVRM: .*(?:fail|error|lost|assert)|SXid|fallen off the bus|PCIe Bus Error|AER: |Hardware Error"
    r"|Out of memory|oom-kill|oom_reaper|Killed process|EDAC .*\d+ [CU]E |I/O error"
    r"|soft lockup|hard LOCKUP|blocked for more than|thermal.*critical"
    r"|mlx5_core.*(?:health|fatal|error|Link down)|nvme.*(?:timeout|abort|dead)",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(r"Out of memory|oom-kill|oom_reaper|Killed process", re.IGNORECASE)
DMESG_LINE = re.compile(r"\[ *(\d+\.\d+)\] (.*)")
MOST_LINES = 60  # kept of a minute
LINE_CAP = 300  # letters


def readable_kmsg():
    """A handle on the kernel's own log; None where it cannot be read (a container's is no such device)."""
    try:
        handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(handle)
    device = (os.major(found.st_rdev), os.minor(found.st_rdev))
    if stat.S_ISCHR(found.st_mode) and device == KMSG_DEVICE:
        try:
            os.read(handle, 8192)
            os.lseek(handle, 0, os.SEEK_SET)
            return handle
        except BlockingIOError:
            return handle
        except OSError:
            pass
    os.close(handle)
    return None


def kmsg_record(data):
    """(seconds, text) of one record; None when it is none.

    6,339,5140900,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=…
     SUBSYSTEM=pci
    """
    head, semicolon, text = data.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isdigit():
        return None
    return int(fields[2]) / 1e6, text.split("\n", 1)[0]


def read_kmsg(handle):
    """The records that wait: [(seconds, text)]."""
    found = []
    for _ in range(5000):
        try:
            record = kmsg_record(os.read(handle, 8192))
        except BlockingIOError:
            break
        except BrokenPipeError:
            continue  # the ring was faster: some are gone
        except OSError:
            break
        if record:
            found.append(record)
    return found


def dmesg_records(text):
    """The same of what dmesg prints.

    [ 5140.900000] NVRM: Xid (PCI:0000:9b:00): 79, pid=…
    """
    matches = [DMESG_LINE.match(line) for line in text.splitlines()]
    return [(float(one.group(1)), one.group(2)) for one in matches if one]


class KernelWatch:
    """Tells of the messages after `seen`, a moment of the kernel's own clock; None: of those from now on."""

    def __init__(self, seen, tell, clock=time.monotonic):
        self.seen = seen
        self.tell = tell
        self.clock = clock
        self.minute, self.told, self.dropped = 0.0, 0, 0

    def take(self, records):
        last = max([moment for moment, _ in records] + [self.seen or 0.0])
        if self.seen is None:
            self.seen = last
            self.tell({"kernel_at": last})
            return
        fresh = [record for record in records if record[0] > self.seen]
        for moment, text in fresh:
            message = message_of(text)
            if message and self._allowed():
                self.tell(dict(message, kernel_at=moment))
        if last > self.seen:
            self.seen = last

    def _allowed(self):
        """At most so many a minute; how many there were more is told with the next."""
        now = self.clock()
        if now - self.minute >= 60.0:
            if self.dropped:
                said = "%d more messages of that kind within a minute" % self.dropped
                self.tell({"kernel": {"line": said}, "kernel_at": self.seen})
            self.minute, self.told, self.dropped = now, 0, 0
        self.told += 1
        self.dropped += self.told > MOST_LINES
        return self.told <= MOST_LINES


def message_of(text):
    """What is told of a message: an Xid, or a line of interest; None for all others."""
    found = XID.search(text)
    if found:
        line = text[:LINE_CAP]
        return {"xid": {"code": int(found.group(2)), "address": found.group(1), "line": line}}
    if OF_INTEREST.search(text):
        return {"kernel": {"line": text[:LINE_CAP]}}
    return None
