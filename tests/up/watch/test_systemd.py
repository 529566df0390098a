"""Notifications to systemd, over a socket like its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.up.watch import systemd


@pytest.fixture(params=["a file", "no file"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """Yield systemd's end of the socket; NOTIFY_SOCKET is a path or a name that begins with "@"."""
    place = str(tmp_path / "notify") if request.param == "a file" else f"@gpuprov-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made, pytest.MonkeyPatch.context() as patch:
        made.bind(place.replace("@", "\0", 1) if place.startswith("@") else place)
        made.settimeout(5)
        patch.setenv("NOTIFY_SOCKET", place)
        yield made


def test_lines_arrive_and_no_program_below_takes_part(manager: socket.socket) -> None:
    tell = systemd.teller()
    assert "NOTIFY_SOCKET" not in os.environ, "a check that the watch starts is not the service"
    tell("READY=1\nSTATUS=10 nodes · at work")
    assert manager.recv(1000).decode() == "READY=1\nSTATUS=10 nodes · at work"


def test_a_manager_that_does_not_read_or_is_gone_stops_nothing(manager: socket.socket) -> None:
    tell = systemd.teller()
    for _ in range(2000):  # more than the socket's buffer holds
        tell("WATCHDOG=1")
    manager.close()
    tell("WATCHDOG=1")


def test_without_systemd_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.teller()("READY=1")
