"""A machine on which the roles' programs run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.roles.scripts import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
