"""The simulated kernel log: <state>/kmsg, one `[ seconds.micros] text` a line, since the node's boot.

A message of several lines has `\\x0a` where a new one begins, as /dev/kmsg shows it.
"""

import re
import time
from pathlib import Path

LINE = re.compile(r"\[ *(\d+\.\d+)\] (.*)")


def begin(folder: Path) -> None:
    """A new boot: an empty log whose clock starts now."""
    (folder / "boot_time").write_text(f"{time.time():.6f}\n")
    (folder / "kmsg").write_text("")


def boot_time(folder: Path) -> float:
    """When the node booted (seconds since the epoch); now if it never did."""
    try:
        return float((folder / "boot_time").read_text())
    except (OSError, ValueError):
        return time.time()


def append(folder: Path, lines, at=None) -> None:
    """Write lines to the log, now or `at` seconds after boot."""
    when = max(0.0, time.time() - boot_time(folder)) if at is None else at
    with (folder / "kmsg").open("a") as log:
        for i, line in enumerate(lines):
            log.write(f"[{when + i * 0.000001:12.6f}] {line}\n")


def read(folder: Path) -> list:
    """The log as (seconds since boot, text) pairs."""
    try:
        lines = (folder / "kmsg").read_text().splitlines()
    except OSError:
        return []
    found = [LINE.match(line) for line in lines]
    return [(float(one.group(1)), one.group(2)) for one in found if one]
