"""A program that waits for a server started together with it."""

from __future__ import annotations

import socket
import sys
import time
from types import ModuleType
from typing import Any

import pytest

from tests.support import modules

SERVER = """
import socket, sys, time
time.sleep(0.6)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
connection, _ = listener.accept()
connection.sendall(b"served")
time.sleep(60)
"""
CLIENT = """
import socket, sys
print(socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(6).decode())
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loaded = modules.load("gpuprov_run")
    monkeypatch.setattr(loaded, "GRACE", 0.3)
    monkeypatch.setattr(loaded, "READY", 5.0)
    return loaded


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def together(module: ModuleType, server: str, port: int) -> dict[str, Any]:
    argv = [sys.executable, "-I", "-S", "-c"]
    commands = [
        {"name": "client", "argv": [*argv, CLIENT, str(port)], "deadline": 20.0},
        {"name": "server", "argv": [*argv, server, str(port)], "deadline": 20.0, "beside": "client"},
    ]
    commands[1]["port"] = port
    return {output["name"]: output for output in module.run_all(commands, 65536)}


def test_the_client_waits_until_its_server_listens(module: ModuleType) -> None:
    outputs = together(module, SERVER, free_port())
    assert (outputs["client"]["rc"], outputs["client"]["stdout"]) == (0, "served\n")
    assert outputs["server"]["timed_out"] is False


def test_a_server_that_ended_is_not_waited_for(module: ModuleType) -> None:
    began = time.monotonic()
    outputs = together(module, "raise SystemExit(3)", free_port())
    assert time.monotonic() - began < 3
    assert outputs["server"]["rc"] == 3
    assert "refused" in outputs["client"]["stderr"]


def test_a_server_that_never_listens_is_waited_for_only_so_long(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READY", 0.5)
    began = time.monotonic()
    outputs = together(module, "import time; time.sleep(60)", free_port())
    assert time.monotonic() - began < 5
    assert "refused" in outputs["client"]["stderr"]
