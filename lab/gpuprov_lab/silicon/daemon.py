"""Daemons, for systemd units that wait for the first process to exit (Type=forking)."""

import os
import signal
import sys
from pathlib import Path


def run_in_background(marker: Path) -> int:
    """Fork a child that holds `marker` (with its pid) until TERM; the caller gets 0 once it is ready."""
    ready, done = os.pipe()
    child = os.fork()
    if child:
        os.close(done)
        arrived = os.read(ready, 1)
        return 0 if arrived else 1
    os.close(ready)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    hold(marker, lambda: os.write(done, b"1"))
    os._exit(0)  # skip the parent's buffers and handlers
    return 0


def hold(marker: Path, ready) -> None:
    """Write the marker, signal readiness, wait for TERM, then remove the marker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    marker.write_text(f"{os.getpid()}\n")
    ready()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    try:
        marker.unlink()
    except OSError:
        sys.exc_info()  # a reboot has already removed it
