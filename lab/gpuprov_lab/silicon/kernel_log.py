"""The simulated kernel log since boot: <state>/kmsg, one `[ seconds.micros] text` per line.

In a message of several lines `\\x0a` separates the lines, as in /dev/kmsg.
"""

import re
import time
from pathlib import Path

LINE = re.compile(r"\[ *(\d+\.\d+)\] (.*)")


def begin(folder: Path) -> None:
    """Begin a new boot: an empty log with a clock that starts now."""
    (folder / "boot_time").write_text(f"{time.time():.6f}\n")
    (folder / "kmsg").write_text("")


def boot_time(folder: Path) -> float:
    """Return when the node booted (seconds since the epoch); now if it never did."""
    try:
        return float((folder / "boot_time").read_text())
    except (OSError, ValueError):
        return time.time()


def append(folder: Path, lines, at=None) -> None:
    """Append lines to the log, now or `at` seconds after boot."""
    when = max(0.0, time.time() - boot_time(folder)) if at is None else at
    with (folder / "kmsg").open("a") as log:
        for i, line in enumerate(lines):
            log.write(f"[{when + i * 0.000001:12.6f}] {line}\n")


def read(folder: Path) -> list:
    """Read the log as (seconds since boot, text) pairs."""
    try:
        lines = (folder / "kmsg").read_text().splitlines()
    except OSError:
        return []
    found = [LINE.match(line) for line in lines]
    return [(float(one.group(1)), one.group(2)) for one in found if one]
