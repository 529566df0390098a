"""No ansible.cfg of whoever runs the tests, and a folder of their own for what is handed to Ansible."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Private folders go here, so that a test sees what is left. A short path: sockets are made in them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setattr("provision.remote.ansible.handover.memory_folder", lambda: Path(name))
        yield Path(name)


@pytest.fixture(autouse=True)
def _as_the_login_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
