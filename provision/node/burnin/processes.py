"""Processes of this unit: descendants, holders of GPUs, and how to end them."""

import fcntl
import os
import re
import select
import signal
import time

from provision.node.burnin.spool import write_all

UNIT = "gpuprov-burnin.service"
ROOT_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
# Programs that only monitor: they hold a context without work (same list in
# provision/checks/gpu/nvidia_smi.py).
WATCHERS = ("nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-smi", "nvidia-persiste")
GOES_FIRST = 500  # out-of-memory score: the load is killed first, the sampler last
GPU_FILE = re.compile(r"/dev/nvidia\d+\Z")


def stat_fields(pid):
    """Parse the status of a process into (name, further fields); None if it is gone.

    4711 (gpu burn) S 4710 4711 …
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            head, _, rest = source.read(4096).decode("utf-8", "replace").rpartition(")")
    except OSError:
        return None
    fields = rest.split()
    return (head.partition("(")[2], fields) if len(fields) > 1 else None


def stat_of(pid):
    """Return (name, state, parent) of a process; None if it is gone."""
    fields = stat_fields(pid)
    return fields and (fields[0], fields[1][0], int(fields[1][1]))


def cpu_seconds(pid):
    """Return the CPU seconds of a running process."""
    _, fields = stat_fields(pid) or ("", ())
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(*ancestors):
    """Return all processes below these, at any depth."""
    children = {}
    for pid in all_pids():
        status = stat_of(pid)
        if status:
            children.setdefault(status[2], []).append(pid)
    below, todo = [], list(ancestors)
    while todo:
        fresh = children.pop(todo.pop(), [])
        below += fresh
        todo += fresh
    return below


def in_unit(pid="self"):
    """Return whether a process runs in the unit rather than by hand; False if it is gone.

    0::/system.slice/gpuprov-burnin.service
    """
    try:
        with open("/proc/%s/cgroup" % pid) as source:
            return any(line.rstrip().endswith("/" + UNIT) for line in source)
    except OSError:
        return False


def unit_members():
    """Return the processes in this program's unit; none if it runs by hand."""
    return [pid for pid in all_pids() if in_unit(pid)] if in_unit() else []


def alive(pid):
    status = stat_of(pid)
    return status is not None and status[1] not in "ZX"


def end_processes(pids, grace):
    """Send TERM and then KILL, each with a grace in seconds; return processes stuck in the kernel."""
    left = [pid for pid in pids if alive(pid)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            try:
                os.kill(pid, number)
            except OSError:
                continue
        until = time.monotonic() + grace
        while left and time.monotonic() < until:
            time.sleep(0.1)
            reap()
            left = [pid for pid in left if alive(pid)]
    return left


def reap():
    """Reap orphaned child processes."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except OSError:
        pass


def locked(handle, seconds=0.0):
    """Return whether the lock of an open file or folder was acquired within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
        time.sleep(0.2)


def set_free(pid):
    """Move a process that cannot be killed out of the unit, which could not end otherwise."""
    for folder in ROOT_GROUPS:
        try:
            with open(folder + "/cgroup.procs", "w") as target:
                target.write("%d\n" % pid)
        except OSError:
            continue


class Worker:
    """A function in a child process that answers with bytes; the parent never blocks on it."""

    def __init__(self, function, closed=()):
        """Fork the child. `closed`: handles that the child must not keep."""
        self.answer = b""
        self.ended = False
        self.status = None
        self.pid, self.handle = forked(lambda writer: write_all(writer, function()), closed, GOES_FIRST)
        os.set_blocking(self.handle, False)

    def read(self):
        """Read the answer so far; return whether the child has ended."""
        while not self.ended:
            try:
                data = os.read(self.handle, 65536)
            except BlockingIOError:
                break
            self.answer += data
            if not data:
                self.close()
        return self.ended

    def close(self):
        if not self.ended:
            self.ended = True
            os.close(self.handle)
        try:
            _, self.status = os.waitpid(self.pid, os.WNOHANG)
        except OSError:
            self.status = None

    def finish(self, grace):
        """End the child and its descendants; return the ones that could not be ended."""
        left = end_processes([*descendants(self.pid), self.pid], grace)
        self.read()
        self.close()
        return left


def forked(function, closed=(), oom_score=0):
    """Run `function` in a child, with a handle to write to; return (pid, handle to read from).

    `closed`: handles that the child must not keep."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            become_worker(closed, oom_score)
            function(writer)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def become_worker(closed, oom_score):
    """Reset inherited signals and close handles. `oom_score`: out of memory, the highest is killed first."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for handle in closed:
        os.close(handle)
    try:
        with open("/proc/self/oom_score_adj", "w") as target:
            target.write("%d\n" % oom_score)
    except OSError:
        pass


def watches_only(name):
    """Match `/usr/bin/nv-hostengine`, `nvidia-smi` and other programs that only monitor."""
    stem = (name.split() or ["?"])[0].rsplit("/", 1)[-1]
    return stem.startswith(WATCHERS)


def holders_by_file(pattern=GPU_FILE):
    """Return {pid: name} of processes with an open GPU file, found without the driver."""
    holders = {}
    for pid in all_pids():
        folder = "/proc/%d/fd" % pid
        try:
            files = [os.readlink(folder + "/" + name) for name in os.listdir(folder)]
        except OSError:
            continue
        if any(pattern.match(file) for file in files):
            holders[pid] = (stat_of(pid) or ("?",))[0]
    return holders


def holders_in(text):
    """Parse `nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader`; None if invalid.

    31337, /usr/bin/python3
    """
    holders = {}
    for line in text.splitlines():
        pid, comma, name = line.partition(",")
        if not comma and line.strip().lower().startswith("no running"):
            continue
        if not comma or not pid.strip().isdigit():
            if line.strip():
                return None
            continue
        holders[int(pid)] = name.strip()
    return holders


def foreign_of(holders, ours):
    """Return [(pid, name)] of foreign processes that use a GPU and do not only monitor, sorted by pid."""
    return sorted((pid, name) for pid, name in holders.items() if pid not in ours and not watches_only(name))


def wake_handle():
    """Return a handle that becomes readable on a handled signal, which would not wake poll otherwise."""
    reader, writer = os.pipe()
    for handle in (reader, writer):
        os.set_blocking(handle, False)
    signal.set_wakeup_fd(writer)
    return reader


def drain(handle):
    """Empty a pipe."""
    try:
        while os.read(handle, 4096):
            pass
    except OSError:
        pass


def wait_readable(handles, seconds):
    """Return the handles that become readable within so many seconds."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN | select.POLLHUP)
    return [handle for handle, _ in poll.poll(max(0, int(seconds * 1000)))]
