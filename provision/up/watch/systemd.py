"""Notification of systemd about the watch it started: ready, working, ending (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable


def teller() -> Callable[[str], None]:
    """Return a function that sends lines such as READY=1 to systemd, a no-op without NOTIFY_SOCKET.

    It neither waits nor raises. The variable is removed: checks started by the watch are not the service."""
    place = os.environ.pop("NOTIFY_SOCKET", "")
    address = f"\0{place[1:]}" if place.startswith("@") else place  # "@": an abstract socket name

    def tell(lines: str) -> None:
        if not address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.setblocking(False)
            own.sendto(lines.encode("utf-8", "replace"), address)

    return tell
