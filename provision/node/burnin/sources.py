"""Telemetry sources: a program or reader each, restarted when it ends, paused when it hangs.

Nothing here waits for a source.
"""

import os
import signal
import subprocess
import time

from provision.node.burnin.processes import forked
from provision.node.modules.gpuprov_run import PATH

AGAIN = 30.0  # seconds until a source that ended is restarted
SOON = 1.0
LINE_MOST = 65536  # bytes of one line; no expected program prints longer ones
TEXT_MOST = 4 * 1024 * 1024
KILL_AFTER = 5.0  # seconds between TERM and KILL
LATE = 1.0  # seconds until an end is reported; if the whole unit is stopped, this process is gone by then


class Source:
    """A program, or a function in a child, that prints lines.

    every: seconds between two samples. patience: seconds of silence until it is stopped. `take(line)` returns
    whether a line was a sample. once: the program prints one answer and ends; `take` then gets all of it.
    `tell(trouble)` is called when it falls silent or ends (with a text), and when it answers again (None). An
    end is reported after LATE seconds, and not at all once `end` was called, since something else may have
    ended it.
    """

    def __init__(self, name, device, every, start, take, tell, once=False):
        self.name, self.device, self.every = name, device, every
        self.start, self.take, self.tell, self.once = start, take, tell, once
        self.patience = max(4.0 * every, every + 15.0) if not once else max(30.0, every / 2)
        self.child = None
        self.handle = None
        self.pending = b""
        self.due = 0.0  # next start
        self.heard = 0.0
        self.dying = None  # when it was signalled to end
        self.trouble = None
        self.end_untold = None  # (trouble, when to report it)
        self.last_words = ""
        self.asks_differently = False  # set by `take`: restart without delay, with another query

    def tick(self, now):
        """Perform due actions; return when to call again (by the same clock)."""
        if self.end_untold is not None and now >= self.end_untold[1]:
            self._tell_end()
        due = self._do(now)
        return due if self.end_untold is None else min(due, self.end_untold[1])

    def _do(self, now):
        if self.child is None:
            if now < self.due:
                return self.due
            self._begin(now)
        elif self.dying is None and now - self.heard > self.patience:
            self._complain("no answer for %d s" % (now - self.heard))
            self.due = max(self.due, now + AGAIN)
            self._give_up(now)
        if self.dying is not None:
            return self._bury(now)
        return self.heard + self.patience + 0.1 if self.child else self.due

    def _begin(self, now):
        self._tell_end()
        self.heard, self.pending, self.last_words = now, b"", ""
        self.due = now + self.every
        try:
            self.child = self.start()
        except (OSError, ValueError) as error:
            self._complain(getattr(error, "strerror", None) or str(error))
            self.due = now + max(self.every, 10 * AGAIN)
            return
        self.handle = self.child.stdout.fileno()
        os.set_blocking(self.handle, False)

    def readable(self, now):
        """Read the output."""
        try:
            data = os.read(self.handle, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.pending += data
        if self.once:
            if len(self.pending) > TEXT_MOST:
                self._complain("it prints without end")
                self._give_up(now)
            elif not data:
                self._ended(now)
            return
        lines = self.pending.split(b"\n")
        self.pending = lines.pop()[-LINE_MOST:]
        for line in lines:
            self._line(line.decode("utf-8", "replace"), now)
        if not data:
            self._ended(now)

    def _line(self, line, now):
        if self.dying is None and self.take(line):
            self.heard = now
            self._answers()
        elif line.strip():
            self.last_words = line.strip()[:200]

    def _ended(self, now):
        """Handle the end of the output."""
        if self.once and self.dying is None:
            if self.take(self.pending.decode("utf-8", "replace")):
                self._answers()
            else:
                lines = self.pending.decode("utf-8", "replace").strip().splitlines()
                self.end_untold = (lines[-1][:200] if lines else "it gave no message", now + LATE)
            self._give_up(now)
            return
        if self.dying is None:
            if not self.asks_differently:
                self.end_untold = (self.last_words or "it ended", now + LATE)
            self.due = now + (SOON if self.asks_differently else AGAIN)
            self.asks_differently = False
        self._give_up(now)

    def _tell_end(self):
        if self.end_untold is not None:
            self._complain(self.end_untold[0])
            self.end_untold = None

    def _complain(self, trouble):
        if self.trouble is None:
            self.trouble = trouble
            self.tell(trouble)

    def _answers(self):
        if self.trouble is not None:
            self.trouble = None
            self.tell(None)

    def _give_up(self, now):
        if self.dying is None:
            self.dying = now
            self._signal(signal.SIGTERM)
            self.child.stdout.close()
            self.handle = None

    def _bury(self, now):
        """Check whether a child that was signalled to end has ended, without blocking."""
        if self.child.poll() is None:
            if now - self.dying < KILL_AFTER:
                return now + 0.2 if now - self.dying < 1.0 else now + 1.0
            self._signal(signal.SIGKILL)
            return now + KILL_AFTER  # it is stuck in the kernel: check occasionally
        self._signal(signal.SIGKILL)  # for processes that it left behind
        self.child, self.dying = None, None
        self.due = max(self.due, now)
        return self.due

    def _signal(self, number):
        try:
            os.killpg(self.child.pid, number)
        except OSError:
            pass

    def end(self):
        """Signal the child to end."""
        self.end_untold = None
        if self.child is not None and self.dying is None:
            self._give_up(time.monotonic())


def program(argv):
    """Return a function that starts a program with its output in a pipe."""

    def begin():
        environment = dict(os.environ, PATH=PATH, LC_ALL="C")
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            close_fds=True,
        )

    return begin


class Forked:
    """A Python function in a child, with the parts of Popen that Source uses."""

    def __init__(self, function):
        def run(writer):
            os.setsid()
            function(writer)

        self.pid, reader = forked(run)
        self.stdout = os.fdopen(reader, "rb", 0)
        self.status = None

    def poll(self):
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except OSError:
                pid, status = self.pid, -1
            if pid:
                self.status = status
        return self.status


IB = "/sys/class/infiniband"
IB_COUNTERS = (
    *("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
    *("port_rcv_data", "port_xmit_data", "port_xmit_wait"),
)
IB_HW_COUNTERS = (
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rx_icrc_encapsulated"),
    *("roce_adp_retrans", "np_cnp_sent", "rp_cnp_handled"),
)


def short(text):
    """Shorten `4: ACTIVE` to ACTIVE, `400 Gb/sec (4X NDR)` to 400."""
    head, colon, rest = text.partition(":")
    return rest.strip() if colon and head.strip().isdigit() else text.split(" ")[0]


def listed(folder):
    """Return the names in a folder, in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def ib_ports(root=IB):
    """Return the ports of the RDMA cards: [(name, folder)]."""
    folders = [(card, os.path.join(root, card, "ports")) for card in listed(root)]
    return [
        ("%s/%s" % (card, port), os.path.join(folder, port))
        for card, folder in folders
        for port in listed(folder)
    ]


def ib_metrics(folder):
    """Return state, rate and counters of a port, as texts."""
    metrics = {}
    names = [("state", "state"), ("rate", "rate")]
    names += [(name, "counters/" + name) for name in IB_COUNTERS]
    names += [(name, "hw_counters/" + name) for name in IB_HW_COUNTERS]
    for name, path in names:
        try:
            with open(os.path.join(folder, path), "rb", 0) as source:
                text = source.read(256).decode("ascii", "replace").strip()
        except OSError:
            continue
        metrics[name] = short(text) if name in ("state", "rate") else text
    return metrics


def read_ports(every, skip, root=IB):
    """Return a reader for a child: it prints `?PORT` before reading a port, which may hang, then values."""

    def read(writer):
        while True:
            for port, folder in ib_ports(root):
                if port in skip:
                    continue
                os.write(writer, ("?%s\n" % port).encode())
                values = ";".join("%s=%s" % pair for pair in ib_metrics(folder).items())
                os.write(writer, ("=%s,%s\n" % (port, values)).encode())
            os.write(writer, b".\n")
            time.sleep(every)

    return read
