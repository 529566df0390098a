"""The sampling process: reads every source, writes telemetry, and sends messages to the runner.

Messages are lines of JSON: {"event": {…}} to be written as an event, {"hot": …} for a GPU over the limit,
{"xid": …}, {"kernel": …} and {"kernel_at": …} for kernel messages. Nothing here waits for a source: each has
a separate process, and a GPU that does not answer blocks only its own nvidia-smi.
"""

import json
import os
import re
import resource
import signal
import time

from provision.node.burnin.amd_gpus import AMD_DRIVER, AMD_PATIENCE, AmdGpus
from provision.node.burnin.processes import (
    cpu_seconds,
    drain,
    forked,
    reap,
    wait_readable,
    wake_handle,
)
from provision.node.burnin.sources import Forked, Source, listed, program, read_ports
from provision.node.burnin.spool import full, since_boot, write_all
from provision.node.burnin.tool_output import (
    GPU_FIELDS,
    KernelWatch,
    ReplayRows,
    dmesg_records,
    gpu_row,
    ipmi_row,
    nvlink_rows,
    read_kmsg,
    readable_kmsg,
    without_field,
    without_links,
)

WHOLE_EVERY = 600.0  # seconds
SYNC_EVERY = 10.0
LOOK_EVERY = 15.0  # seconds between two checks of the free space
UNSAFE = re.compile(r"[^A-Za-z0-9 .:_+/%()-]")


def safe(text):
    """Replace characters that are not allowed in a row."""
    return UNSAFE.sub("_", text.strip())[:64]


class Telemetry:
    """The file with this boot's rows: t,up,source,device,metric=value;metric=value…

    `t` is seconds since the epoch, `up` since boot. A metric that did not change since its device's previous
    row is left out; a row without metrics means that the device was read. The first row of a device is
    complete, and then one every ten minutes. `metric=` means that there is no value any longer. Units are in
    the names: _c °C, _w W, _mhz, _pct, _rpm, _mib, _s; `throttle` has the bits of nvml.h, `violations` the
    bits of amd_gpus.py, in hexadecimal; the rest are counts or words. `said` is called when the disk is full,
    and when there is room again.
    """

    def __init__(self, path, room, said):
        self.path = path
        self.room = room
        self.said = said
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.known = {}  # (source, device) -> (metrics, time of the last complete row, of the last row)
        self.stopped = False
        self.look_again = 0.0
        self.rows = 0
        size = os.fstat(self.handle).st_size
        if size and os.pread(self.handle, 1, size - 1) != b"\n":
            self._write(b"\n")  # a crash cut the last line

    def add(self, source, device, metrics, seldom=0.0):
        """Write a row; metrics are texts by name. An unchanged row is written only every `seldom` seconds."""
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
            self.known = {}  # after a gap every value is written again
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
    """Flush the file to disk regularly, in a child, since a busy disk takes its time."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(SYNC_EVERY)
        os.fdatasync(handle)


GPU_FOLDERS = "/proc/driver/nvidia/gpus"  # a folder for each GPU, named by address; does not access the GPU
IPMI_DEVICE = "/dev/ipmi0"
PIPE_WHOLE = 4096  # bytes that are written to a pipe atomically (pipe(7))
UNTOLD = 1000  # messages kept while the runner does not read
SELDOM = 30.0  # seconds between two rows of unchanged counters
GPUS_EVERY = 20.0  # seconds between two searches for missing GPUs
OWN_EVERY = 60.0  # seconds between two rows on the cost of sampling
END_GRACE = 3.0
SKIP_PORT = 600.0  # seconds for which a port that hung is skipped
WRONG_FIELD = 'Field "'


class Sampler:
    """All work of the sampling process until it receives TERM."""

    def __init__(self, spool, order, room, told, kernel_seen):
        """Open the sources, with a handle of the pipe to the runner. kernel_seen: see KernelWatch."""
        self.order, self.told = order, told
        self.untold = []
        self.every = order["sampler"]
        self.limit = order["abort"]["gpu_celsius"]
        self.hot = {}
        path = spool.file("telemetry", (spool.boot or "unknown") + ".csv")
        self.telemetry = Telemetry(path, room, self._no_room)
        self.kernel = KernelWatch(kernel_seen, self.say, lines=order["kernel_lines"])
        self.kmsg = readable_kmsg()
        self.sources = self._sources()
        self.gpus = set()
        self.gpus_due = 0.0
        self.began = time.monotonic()
        self.own_due = self.began + OWN_EVERY
        self.stopping = False

    # -- sources

    def _sources(self):
        sources = []
        if os.path.isdir("/sys/class/infiniband"):
            sources.append(self._ports())
        if os.path.exists(IPMI_DEVICE):
            argv = ["ipmitool", "-c", "sdr", "list", "full"]
            sources.append(self._source("ipmi", "node", program(argv), self._take_ipmi, once=True))
        if self.kmsg is None:
            sources.append(self._source("kernel", "node", program(["dmesg"]), self._take_dmesg, once=True))
        return sources

    def _find_gpus(self, now):
        """Add the GPUs that have appeared, since the driver may load after this process starts."""
        self.gpus_due = now + GPUS_EVERY
        if self.order["vendor"] == "amd":
            if self.order["gpus"] and not self.gpus and os.path.isdir(AMD_DRIVER):
                self.gpus.update(self.order["gpus"])
                self.sources.append(self._amd_gpus())
            return
        addresses = listed(GPU_FOLDERS)  # sorted by address, as in nvidia-smi
        if addresses and not self.gpus:
            self.sources += [self._replays(), self._nvlink()]
        for number, address in enumerate(addresses):
            if address not in self.gpus:
                self.gpus.add(address)
                self.sources.append(self._gpu(number, address))

    def _source(self, name, device, start, take, once=False):
        def tell(trouble):
            self._say_of(name, device, trouble)

        return Source(name, device, self.every[name], start, take, tell, once)

    def _gpu(self, number, address):
        """Return a source with one nvidia-smi for one GPU, which prints a line per sample."""
        fields = [[metric, list(names)] for metric, names in GPU_FIELDS]

        def start():
            query = ",".join(names[0] for _, names in fields)
            every = str(int(self.every["gpu"] * 1000))
            argv = ["nvidia-smi", "-i", address, "--query-gpu=" + query, "--format=csv,noheader,nounits"]
            return program([*argv, "-lms", every])()

        def take(line):
            row = gpu_row(line, [metric for metric, _ in fields], number)
            if row:
                self._gpu_sample("gpu%d" % row[0], row[1])
            elif line.startswith(WRONG_FIELD):
                source.asks_differently = without_field(fields, line[len(WRONG_FIELD) :].partition('"')[0])
            return row is not None

        source = self._source("gpu", "gpu%d" % number, start, take)
        return source

    def _amd_gpus(self):
        """Return a source that runs amd-smi repeatedly for all GPUs."""
        reader = AmdGpus({address: "gpu%d" % place for place, address in enumerate(self.order["gpus"])})

        def take(text):
            rows = reader.rows(text)
            for device, metrics in rows or ():
                self._gpu_sample(device, metrics)
            return rows is not None

        source = self._source("gpu", "node", lambda: program(reader.argv())(), take, once=True)
        source.patience = max(source.patience, AMD_PATIENCE)
        return source

    def _gpu_sample(self, device, metrics):
        self.telemetry.add("gpu", device, metrics)
        text = metrics.get("temperature_c", "")
        if self.limit is None or not text.isdigit():
            return
        self.hot[device] = self.hot.get(device, 0) + 1 if int(text) >= self.limit else 0
        if self.hot[device] == 2:  # a single reading may be a glitch
            self.say({"hot": {"device": device, "celsius": int(text)}})

    def _replays(self):
        reader = ReplayRows()

        def take(line):
            row = reader.row(line)
            if row:
                self.telemetry.add("errors", "gpu%d" % row[0], row[1], seldom=SELDOM)
            return row is not None

        # dmon takes whole seconds; more than ten may be rejected
        argv = ["nvidia-smi", "dmon", "-s", "e", "-d", str(int(max(1, min(10, self.every["errors"]))))]
        return self._source("errors", "node", program(argv), take)

    def _nvlink(self):
        def take(text):
            rows = nvlink_rows(text)
            for index, metrics in rows.items():
                self.telemetry.add("nvlink", "gpu%d" % index, metrics)
            return bool(rows) or without_links(text)

        argv = ["nvidia-smi", "nvlink", "-e"]
        return self._source("nvlink", "node", program(argv), take, once=True)

    def _ports(self):
        skip = {}  # port -> when it may be read again
        reading = [""]

        def start():
            now = time.monotonic()
            if reading[0]:  # the last reader hung there
                skip[reading[0]] = now + SKIP_PORT
                self._say_of("ib", reading[0], "it hangs")
                reading[0] = ""
            return Forked(read_ports(self.every["ib"], {port for port, end in skip.items() if end > now}))

        def take(line):
            if line.startswith("?"):
                reading[0] = line[1:]
                return False
            reading[0] = ""
            if line.startswith("="):
                port, _, values = line[1:].partition(",")
                metrics = dict(pair.partition("=")[::2] for pair in values.split(";") if pair)
                if metrics:
                    self.telemetry.add("ib", port, metrics)
            return line[:1] in ("=", ".")

        return self._source("ib", "node", start, take)

    def _take_ipmi(self, text):
        metrics = ipmi_row(text)
        if metrics:
            self.telemetry.add("ipmi", "node", metrics)
        return bool(metrics)

    def _take_dmesg(self, text):
        records = dmesg_records(text)
        self.kernel.take(records)
        return bool(records) or not text.strip()

    # -- messages

    def say(self, message):
        line = json.dumps(message) + "\n"
        if len(line) <= PIPE_WHOLE:
            self.untold.append(line)
        del self.untold[:-UNTOLD]

    def _say_of(self, source, device, trouble):
        fields = {"event": "sampler", "source": source, "device": device}
        fields.update({"trouble": trouble} if trouble else {"answers": True})
        self.say({"event": fields})

    def _no_room(self, stopped):
        room = self.telemetry.room.said()
        self.say({"event": {"event": "space", "what": "telemetry", "stopped": stopped, "room": room}})

    def _tell(self):
        """Write as many messages as the pipe takes; a line is written completely or not at all."""
        while self.untold:
            try:
                os.write(self.told, self.untold[0].encode("ascii"))
            except BlockingIOError:
                return
            self.untold.pop(0)

    # -- the loop

    def run(self):
        parent = os.getppid()
        wake = wake_handle()
        signal.signal(signal.SIGTERM, self._on_term)
        syncer = Forked(lambda _: keep_on_disk(self.telemetry.path))
        while not self.stopping and os.getppid() == parent:
            now = time.monotonic()
            if now >= self.gpus_due:
                self._find_gpus(now)
            moments = [one.tick(now) for one in self.sources]
            next_tick = min([now + 10.0, self.own_due, self.gpus_due, *moments])
            if now >= self.own_due:
                self.own_due = now + OWN_EVERY
                self.telemetry.add("sampler", "node", self.cost())
            self._tell()
            by_handle = {one.handle: one for one in self.sources if one.handle is not None}
            handles = [wake, *by_handle] + ([] if self.kmsg is None else [self.kmsg])
            seconds = max(0.01, min(next_tick - time.monotonic(), 0.5 if self.untold else 10.0))
            for handle in wait_readable(handles, seconds):
                if handle == wake:
                    drain(wake)
                elif handle == self.kmsg:
                    self.kernel.take(read_kmsg(handle))
                else:
                    by_handle[handle].readable(time.monotonic())
        self._end(syncer)

    def _on_term(self, _number, _frame):
        self.stopping = True

    def _end(self, syncer):
        for one in self.sources:
            one.end()
        until = time.monotonic() + END_GRACE
        while time.monotonic() < until and any(one.child for one in self.sources):
            for one in self.sources:
                if one.child:
                    one.due = until + 60.0
                    one.tick(time.monotonic())
            time.sleep(0.05)
        os.kill(syncer.pid, signal.SIGKILL)
        reap()
        costs = self.cost()
        self.telemetry.add("sampler", "node", costs)
        wall = round(time.monotonic() - self.began, 3)
        self.say({"cost": dict({name: float(value) for name, value in costs.items()}, wall_s=wall)})
        self._tell()

    def cost(self):
        """Return the CPU seconds of this process, and of its programs and readers."""
        mine = resource.getrusage(resource.RUSAGE_SELF)
        buried = resource.getrusage(resource.RUSAGE_CHILDREN)
        running = sum(cpu_seconds(one.child.pid) for one in self.sources if one.child)
        tools = buried.ru_utime + buried.ru_stime + running
        return {"cpu_s": "%.2f" % (mine.ru_utime + mine.ru_stime), "tools_cpu_s": "%.2f" % tools}


def sampling(spool, order, room, kernel_seen, closed):
    """Start the sampler; return its process id and the handle to read its messages from."""

    def run(writer):
        try:
            os.set_blocking(writer, False)
            Sampler(spool, order, room, writer, kernel_seen).run()
        except Exception as error:
            words = "%s: %s" % (type(error).__name__, error)
            report = {"event": {"event": "sampler", "source": "sampler", "device": "node", "trouble": words}}
            os.write(writer, (json.dumps(report) + "\n").encode())

    pid, reader = forked(run, closed)
    os.set_blocking(reader, False)
    return pid, reader
