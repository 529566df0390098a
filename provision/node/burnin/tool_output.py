"""Telemetry from the kernel and from tools, and the fields to query from nvidia-smi."""

import os
import re
import stat
import time

from provision.node.burnin.kernel_lines import AMDGPU, XID, amdgpu_words, without_stamp

# Text in place of a reading when the GPU does not answer -> NVML's code (nvml.h).
NVML_ERRORS = {"gpu is lost": 15, "gpu requires reset": 16, "unknown error": 999, "err!": 999}
# Fields for which the driver contacts the GPU; it knows the others itself.
ASKED = ("temperature_c", "power_w", "sm_mhz", "util_pct")
NONE = ("", "n/a", "not supported", "not available", "-", "insufficient permissions", *NVML_ERRORS)
# metric -> nvidia-smi's names of the field, the newest first
GPU_FIELDS = (
    ("index", ("index",)),
    ("temperature_c", ("temperature.gpu",)),
    ("memory_c", ("temperature.memory",)),
    ("power_w", ("power.draw",)),
    ("sm_mhz", ("clocks.current.sm", "clocks.sm")),
    ("mem_mhz", ("clocks.current.memory", "clocks.mem")),
    ("throttle", ("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
    ("util_pct", ("utilization.gpu",)),
    ("mem_used_mib", ("memory.used",)),
    ("ecc_ce", ("ecc.errors.corrected.volatile.total",)),
    ("ecc_ue", ("ecc.errors.uncorrected.volatile.total",)),
    ("pcie_gen", ("pcie.link.gen.current",)),
    ("pcie_width", ("pcie.link.width.current",)),
    ("uuid", ("uuid",)),
    ("serial", ("serial",)),
    ("address", ("pci.bus_id",)),
)


def without_field(fields, name):
    """Replace a rejected field name by its older one, or remove the field; return whether that applied."""
    for entry in fields:
        if name == entry[1][0] and entry[0] != "index":
            if len(entry[1]) > 1:
                entry[1].pop(0)
            else:
                fields.remove(entry)
            return True
    return False


def nvml_error(cells):
    """Return NVML's code for a GPU without readings (15 lost, 16 to be reset, 999 unknown), else None.

    `cells`: metric -> cell."""
    codes = [NVML_ERRORS.get(cells.get(name, "").strip("[] ").lower()) for name in ASKED if name in cells]
    errors = [code for code in codes if code]
    if not errors or (min(errors) == 999 and 2 * len(errors) < len(codes)):
        return None
    return min(errors)


def gpu_row(line, names, number=None):
    """Parse a CSV line of nvidia-smi with these metrics into (index, metrics); None for other lines.

    `number`: the queried GPU, used if its index is an error, too."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(names):
        return None
    at = names.index("index")
    error = nvml_error(dict(zip(names, cells)))  # noqa: B905 (strict came with 3.10)
    if error and not cells[at].isdigit() and number is not None:
        cells[at] = str(number)
    if not cells[at].isdigit():
        return None
    metrics = {name: value_of(name, cell) for name, cell in zip(names, cells)}  # noqa: B905 (strict came with 3.10)
    if error:
        metrics["nvml_error"] = str(error)
    return int(metrics.pop("index")), metrics


def value_of(name, cell):
    """Normalise a cell: no unit, no needless digits, empty without a value."""
    if cell.strip("[] ").lower() in NONE:
        return ""
    try:
        if name == "throttle":
            return "0x%x" % int(cell, 16)
        return "%.1f" % float(cell) if name == "power_w" else cell
    except ValueError:
        return ""


class ReplayRows:
    """Reads `nvidia-smi dmon -s e`; lines that begin with # name the columns.

    # gpu  sbecc  dbecc    pci
    # Idx   errs   errs   errs
        0      0      0      0
    """

    def __init__(self):
        self.columns = []
        self.ends = []  # end of each column in a line, the index first

    def row(self, line):
        """Return (index, metrics) of a line; None if it has no values."""
        words = line.split()
        if words[:2] == ["#", "gpu"]:
            self.columns = words[2:]
            self.ends = [word.end() for word in re.finditer(r"\S+", line)][1:]
        elif words and words[0].isdigit() and len(words) < len(self.ends):
            # A number that fills its column touches the one before it: `3     0     0100000` (470.256).
            starts = [0, *self.ends[:-1]]
            words = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], len(line)])]  # noqa: B905 (strict came with 3.10)
        if len(words) != len(self.columns) + 1 or not words[0].isdigit() or "pci" not in self.columns:
            return None
        return int(words[0]), {"pcie_replays": value_of("", words[1 + self.columns.index("pci")])}


GPU_HEAD = re.compile(r"GPU (\d+): ")
LINK_LINE = re.compile(r"\s*Link (\d+): (.*): (\d+)\s*\Z")
# `Link 2: 6 recovery errors`: driver 470 (470.256.02 of Debian 12).
OLD_LINK_LINE = re.compile(r"\s*Link (\d+): (\d+) (?:replay|recovery|flit CRC|data CRC) errors\s*\Z")
# Counted errors. NVLink 5 (595.91.07 on a B300) also prints counters that grow by the billion on a healthy
# link, or that count errors before their correction: FEC and raw errors. Its `Total link recovery events`
# repeats two others.
LINK_ERRORS = (
    "Replay Errors", "Recovery Errors", "CRC Errors", "Malformed packet Errors", "Buffer overrun Errors",
    "Rx Errors", "Rx remote Errors", "Rx General Errors", "Local link integrity Errors", "Tx discards",
    "Link recovery failed events", "Effective Errors", "Symbol Errors",
)  # fmt: skip


def nvlink_rows(text):
    """Parse `nvidia-smi nvlink -e` into {index: metrics}: a GPU's errors, in total and of each bad link.

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-…)
        Link 0: Replay Errors: 0
    """
    result, links = {}, {}
    index = None
    for line in text.splitlines():
        head, counted, old = GPU_HEAD.match(line), LINK_LINE.match(line), OLD_LINK_LINE.match(line)
        if head:
            index = int(head.group(1))
            links[index] = {}
        elif counted and index is not None:
            link, name, count = counted.groups()
            if name in LINK_ERRORS:
                links[index][link] = links[index].get(link, 0) + int(count)
        elif old and index is not None:
            link, count = old.groups()
            links[index][link] = links[index].get(link, 0) + int(count)
    for index, counts in links.items():
        if counts:
            result[index] = {"nvlink_errors": str(sum(counts.values()))}
            result[index].update(("link" + link, str(count)) for link, count in counts.items() if count)
    return result


def without_links(text):
    """Return whether the answer is of GPUs without NVLink: their names, or nothing."""
    return all(GPU_HEAD.match(line) for line in text.splitlines() if line.strip())


def ipmi_row(text):
    """Parse `ipmitool -c sdr list full` into metrics of temperatures and fans.

    Inlet Temp,24,degrees C,ok
    FAN1,9800,RPM,ok
    """
    metrics = {}
    for line in text.splitlines():
        cells = line.split(",")
        unit = {"degrees c": "_c", "rpm": "_rpm"}.get(cells[2].strip().lower()) if len(cells) > 3 else None
        if unit and re.match(r"-?\d+(\.\d+)?\Z", cells[1].strip()) and len(metrics) < 64:
            name = re.sub(r"[^a-z0-9]+", "_", cells[0].strip().lower()).strip("_")
            metrics[name + unit] = cells[1].strip()
    return metrics


KMSG = "/dev/kmsg"
KMSG_DEVICE = (1, 11)
OF_INTEREST = re.compile(
    r"NVRM: .{0,300}(?:fail|error|lost|assert)|SXid|fallen off the bus|PCIe Bus Error|AER: |Hardware Error"
    r"|Out of memory|oom-kill|oom_reaper|Killed process|EDAC .{0,300}\d [CU]E |I/O error"
    r"|soft lockup|hard LOCKUP|blocked for more than|thermal.{0,300}critical|rcu_\w{2,12} .{0,20}stall"
    r"|mlx5_core.{0,300}(?:health|fatal|error|Link down|High temperature|PCI slot is)"
    r"|nvme.{0,120}(?:timeout|abort|dead|will reset|reset failure|probe failure)"
    r"|(?:medium|target|timeout|protection) error, dev"
    r"|EXT4-fs error|Remounting filesystem|XFS \(.{1,40}\): |DPC: containment|md/raid.{1,40}: Disk failure"
    r"|BUG: (?:unable to handle|kernel NULL)|Internal error: Oops|clock (?:is )?throttled"
    r"|disagrees about version|Unknown symbol",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(r"Out of memory|oom-kill|oom_reaper|Killed process", re.IGNORECASE)
MOST_LINES = 60  # kept per minute
LINE_CAP = 300  # letters


def readable_kmsg():
    """Return a handle on /dev/kmsg; None if it is unreadable (a container's is another device)."""
    try:
        handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(handle)
    device = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if stat.S_ISCHR(status.st_mode) and device == KMSG_DEVICE:
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
    """Parse one record into (seconds, text); None for anything else.

    6,339,5140900,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=…
     SUBSYSTEM=pci
    """
    head, semicolon, text = data.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not fields[2].isdigit():
        return None
    return int(fields[2]) / 1e6, text.split("\n", 1)[0]


def read_kmsg(handle):
    """Return the waiting records: [(seconds, text)]."""
    records = []
    for _ in range(5000):
        try:
            record = kmsg_record(os.read(handle, 8192))
        except BlockingIOError:
            break
        except BrokenPipeError:
            continue  # the ring buffer overran: some records are lost
        except OSError:
            break
        if record:
            records.append(record)
    return records


def dmesg_records(text):
    """Parse the output of dmesg into [(seconds, text)].

    [ 5140.900000] NVRM: Xid (PCI:0000:9b:00): 79, pid=…
    """
    parted = [without_stamp(line) for line in text.split("\n")]
    return [(float(clock), words) for clock, words in parted if clock]


class KernelWatch:
    """Reports kernel messages after `seen`, by the kernel's clock (default: now).

    `lines`: patterns of the GPU driver's lines that are reported."""

    def __init__(self, seen, tell, clock=time.monotonic, lines=()):
        self.seen = seen
        self.tell = tell
        self.lines = lines
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
            message = message_of(text, self.lines)
            # Users can make the kernel log lines of interest, so half of the quota is reserved for drivers.
            own = message and ("xid" in message or AMDGPU.match(text) or fits(text, self.lines))
            if message and self._allowed(MOST_LINES if own else MOST_LINES // 2):
                self.tell(dict(message, kernel_at=moment))
        if last > self.seen:
            self.seen = last

    def _allowed(self, most):
        """Allow at most `most` messages a minute; the number left out is reported with the next one."""
        now = self.clock()
        if now - self.minute >= 60.0:
            if self.dropped:
                summary = "%d more messages of that kind within a minute" % self.dropped
                self.tell({"kernel": {"line": summary}, "kernel_at": self.seen})
            self.minute, self.told, self.dropped = now, 0, 0
        allowed = self.told < most
        self.told += allowed
        self.dropped += not allowed
        return allowed


def message_of(text, lines=()):
    """Return the report of an Xid, a line of interest, or a GPU driver's line that fits `lines`; or None."""
    match = XID.match(text)
    if match:
        line = text[:LINE_CAP]
        return {"xid": {"code": int(match.group(3)), "address": match.group(1), "line": line}}
    if OF_INTEREST.search(text) or fits(text, lines):
        return {"kernel": {"line": text[:LINE_CAP]}}
    return None


def fits(text, lines):
    """Return whether a GPU driver's message fits a pattern; for amdgpu, by the text after its name."""
    words = text if text.startswith(("NVRM: ", "nvidia ")) else amdgpu_words(text)[1]
    return bool(words) and any(re.match(one, words) for one in lines)
