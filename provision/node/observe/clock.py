"""Clock facts (state of synchronisation, the program behind it) and the machine's uptime.

A container without permission to set the clock uses the host's, and both clock facts are then "host".
"""

import os

from provision.node.observe.files import ReadError, labelled, names_in, read_text
from provision.node.observe.probe import FAMILIES, Probe, units_shown, whole_family

SET_TIME = 25  # CAP_SYS_TIME, include/uapi/linux/capability.h
UNSYNCHRONISED = 0x40  # STA_UNSYNC, include/uapi/linux/timex.h
# Units of the programs that synchronise a clock, and their names.
KEEPERS = (
    ("chrony.service", "chrony"),
    ("chronyd.service", "chrony"),
    ("systemd-timesyncd.service", "timesyncd"),
    ("ntpsec.service", "ntpsec"),
    ("ntp.service", "ntp"),
    ("ntpd.service", "ntp"),
    ("phc2sys.service", "phc2sys"),
)


def sets_its_clock():
    rights = labelled(read_text("/proc/self/status"), "CapBnd")
    return rights is None or bool(int(rights, 16) >> SET_TIME & 1)


def kernel_clock():
    """Return the clock's status bits and its largest error in microseconds, from a read-only adjtimex(2)."""
    import ctypes

    names = ("offset", "frequency", "largest_error", "likely_error")
    fields = [("modes", ctypes.c_uint)] + [(name, ctypes.c_long) for name in names]
    fields += [("status", ctypes.c_int), ("rest", ctypes.c_char * 256)]
    timex = type("Timex", (ctypes.Structure,), {"_fields_": fields})()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        raise ReadError("adjtimex(2) was refused")
    return timex.status, timex.largest_error


def clock_state():
    """Return the state of the clock. timesyncd's file appears before the kernel clears its flag."""
    if not sets_its_clock():
        return "host"
    if "synchronized" in names_in("/run/systemd/timesync"):
        return "synchronised"
    return "unsynchronised" if kernel_clock()[0] & UNSYNCHRONISED else "synchronised"


def parse_keeper(names, output):
    if not sets_its_clock():
        return dict.fromkeys(names, "host")
    blocks = units_shown(output, len(KEEPERS), "ActiveState")
    active = [KEEPERS[i][1] for i in range(len(blocks)) if blocks[i]["ActiveState"] == "active"]
    return dict.fromkeys(names, active[0] if active else None)


def uptime():
    """Return the seconds since this machine's first process started; None if the kernel reports none.
    A container's first process is younger than its kernel."""
    text = read_text("/proc/uptime")
    if text is None:
        return None
    seconds = int(text.partition(".")[0])
    # 1 (systemd) S 0 1 and so on: the 20th field after the name is its start time in clock ticks
    words = (read_text("/proc/1/stat") or "").rpartition(")")[2].split()
    began = int(words[19]) // os.sysconf("SC_CLK_TCK") if len(words) > 19 else 0
    return max(0, seconds - began)


def keeper_probe(name):
    show = ["systemctl", "show", "--no-pager", "--property=ActiveState", "--"]
    return Probe([name], command=show + [unit for unit, _ in KEEPERS], parse=parse_keeper)


FAMILIES["clock"] = whole_family(
    {"state": clock_state, "uptime_s": uptime, "largest_error_us": lambda: kernel_clock()[1]},
    tools={"keeper": keeper_probe},
)
