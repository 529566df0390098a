"""Fixtures: file trees that represent machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.machine import Machine, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.fixture
def bare(tmp_path: Path) -> Tree:
    """Return a machine without any files."""
    return Tree(tmp_path / "bare")
