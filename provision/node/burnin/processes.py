"""Processes of this unit: what descends from whom, who holds a GPU, and how what must end is ended."""

import fcntl
import os
import re
import select
import signal
import time

from provision.node.burnin.spool import write_all

UNIT = "gpuprov-burnin.service"
ROOT_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
# Programs that only watch: they hold a context without work (provision/checks/gpu/nvidia_smi.py has the
# same).
WATCHERS = ("nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-smi", "nvidia-persiste")
GOES_FIRST = 500  # when memory ends: what loads the node, not what watches
GPU_FILE = re.compile(r"/dev/nvidia\d+\Z")


def stat_fields(pid):
    """(name, the fields behind it) in the status of a process; None when it is gone.

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
    """(name, state, parent) of a process; None when it is gone."""
    found = stat_fields(pid)
    return found and (found[0], found[1][0], int(found[1][1]))


def cpu_seconds(pid):
    """CPU seconds of a running process."""
    _, fields = stat_fields(pid) or ("", ())
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(*ancestors):
    """All processes below these, at any depth."""
    children = {}
    for pid in all_pids():
        found = stat_of(pid)
        if found:
            children.setdefault(found[2], []).append(pid)
    below, todo = [], list(ancestors)
    while todo:
        fresh = children.pop(todo.pop(), [])
        below += fresh
        todo += fresh
    return below


def in_unit(pid="self"):
    """Whether a process runs under the unit, and not by hand; False when it is gone.

    0::/system.slice/gpuprov-burnin.service
    """
    try:
        with open("/proc/%s/cgroup" % pid) as source:
            return any(line.rstrip().endswith("/" + UNIT) for line in source)
    except OSError:
        return False


def unit_members():
    """The processes in this program's own unit; none when it runs by hand."""
    return [pid for pid in all_pids() if in_unit(pid)] if in_unit() else []


def alive(pid):
    found = stat_of(pid)
    return found is not None and found[1] not in "ZX"


def end_processes(pids, grace):
    """TERM, a grace in seconds, KILL, a grace; returns those that are still there: stuck in the kernel."""
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
    """Bury our dead children that nobody waits for any more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except OSError:
        pass


def locked(handle, seconds=0.0):
    """Whether the lock of an open file or folder was got within so many seconds."""
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
    """Move a process that cannot be killed out of the unit, which could not end before it."""
    for folder in ROOT_GROUPS:
        try:
            with open(folder + "/cgroup.procs", "w") as target:
                target.write("%d\n" % pid)
        except OSError:
            continue


class Worker:
    """A function that runs in a child process and answers with bytes; the parent never blocks on it."""

    def __init__(self, function, closed=()):
        """`closed`: handles that are the parent's alone."""
        self.answer = b""
        self.ended = False
        self.status = None
        self.pid, self.handle = forked(lambda writer: write_all(writer, function()), closed, GOES_FIRST)
        os.set_blocking(self.handle, False)

    def read(self):
        """Take what it answered so far; whether it has ended."""
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
        """End it with all that it started; returns what could not be ended."""
        left = end_processes([*descendants(self.pid), self.pid], grace)
        self.read()
        self.close()
        return left


def forked(function, closed=(), oom_score=0):
    """Run `function` in a child, with a handle to write to; (its process id, the handle to read from).
    `closed`: handles that are the parent's alone."""
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
    """What a child undoes of its parent: signals, and handles that are not its own. `oom_score`: when memory
    ends, the highest goes first."""
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
    """`/usr/bin/nv-hostengine`, `nvidia-smi`"""
    stem = (name.split() or ["?"])[0].rsplit("/", 1)[-1]
    return stem.startswith(WATCHERS)


def holders_by_file(pattern=GPU_FILE):
    """{pid: name} of the processes that have a GPU's file open: what can be told without the driver."""
    found = {}
    for pid in all_pids():
        folder = "/proc/%d/fd" % pid
        try:
            files = [os.readlink(folder + "/" + name) for name in os.listdir(folder)]
        except OSError:
            continue
        if any(pattern.match(file) for file in files):
            found[pid] = (stat_of(pid) or ("?",))[0]
    return found


def holders_in(text):
    """{pid: name} in what `nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader` prints;
    None when that is no answer.

    31337, /usr/bin/python3
    """
    found = {}
    for line in text.splitlines():
        pid, comma, name = line.partition(",")
        if not comma and line.strip().lower().startswith("no running"):
            continue
        if not comma or not pid.strip().isdigit():
            if line.strip():
                return None
            continue
        found[int(pid)] = name.strip()
    return found


def foreign_of(holders, ours):
    """Those that hold a GPU, are not ours and do more than watch: [(pid, name)], the oldest first."""
    return sorted((pid, name) for pid, name in holders.items() if pid not in ours and not watches_only(name))


def wake_handle():
    """A handle that becomes readable when a signal comes that is handled here: poll goes on otherwise."""
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
    """Those of the handles that can be read, within so many seconds."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN | select.POLLHUP)
    return [handle for handle, _ in poll.poll(max(0, int(seconds * 1000)))]
