"""Fixtures that hide the user's ansible.cfg and give Ansible's private folders a parent per test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Parent of the private folders, so tests can list leftovers; short, since it will hold sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setattr("provision.remote.ansible.handover.memory_folder", lambda: Path(name))
        yield Path(name)


@pytest.fixture(autouse=True)
def _as_the_login_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
