"""dmesg: prints the simulated kernel log, with the commonly used options."""

import sys
import time
from pathlib import Path

import kernel_log

_WITH_VALUE = (
    "-l",
    "--level",
    "-f",
    "--facility",
    "-s",
    "--buffer-size",
    "-n",
    "--console-level",
    "--since",
    "--until",
)

_LOOK = 0.2  # seconds between two polls of the log


def dmesg(node, arguments: list) -> int:
    """Run dmesg: -T, -t, --time-format, -x and -r change the format, -w follows the log.
    Filters let everything pass, and -C is ignored."""
    if not node.privileged() and _restricted():
        print("dmesg: read kernel buffer failed: Operation not permitted", file=sys.stderr)
        return 1
    style, prefix, follow = "seconds", "", False
    words = iter(arguments)
    for word in words:
        if word in ("-T", "--ctime"):
            style = "ctime"
        elif word in ("-t", "--notime"):
            style = "notime"
        elif word.startswith("--time-format"):
            style = word.partition("=")[2] or next(words, "")
        elif word in ("-x", "--decode"):
            prefix = "kern  :warn  : "
        elif word in ("-r", "--raw"):
            prefix = "<4>"
        elif word in ("-w", "--follow"):
            follow = True
        elif word in _WITH_VALUE:
            next(words, None)
    began, shown = kernel_log.boot_time(node.folder), 0
    while True:
        found = kernel_log.read(node.folder)
        for seconds, text in found[shown:]:
            head = prefix + _stamp(style, seconds, began + seconds)
            # Continuation lines of a message are indented below its first one.
            print(head + text.replace("\\x0a", "\n" + " " * len(head)), flush=follow)
        shown = len(found)
        if not follow:
            return 0
        time.sleep(_LOOK)


def _restricted() -> bool:
    try:
        return Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "0"
    except OSError:
        return False


def _stamp(style: str, seconds: float, moment: float) -> str:
    if style in ("ctime", "reltime"):
        return time.strftime("[%a %b %e %H:%M:%S %Y] ", time.localtime(moment))
    if style == "iso":
        zone = time.strftime("%z", time.localtime(moment))
        micros = int(moment % 1 * 1000000)
        return (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))
            + f",{micros:06d}{zone[:3]}:{zone[3:]} "
        )
    if style == "notime":
        return ""
    return f"[{seconds:12.6f}] "
