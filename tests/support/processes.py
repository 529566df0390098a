"""Processes of this machine as seen in /proc; any may end while it is examined."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def command_of(pid: int) -> str:
    """Return the command line, arguments joined by blanks; "" if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def line_of(file: Path, process: subprocess.Popen[Any]) -> str:
    """Wait for a complete first line in `file`, written by a descendant of `process`, and return it."""
    while not (file.exists() and "\n" in file.read_text()):
        assert process.poll() is None, f"ended without a word in {file.name}"
        time.sleep(0.02)
    return file.read_text().partition("\n")[0]


def until(true: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not so in {seconds} s"
        time.sleep(0.02)
