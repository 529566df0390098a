"""The folder of real captures, for the tests that have one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def captures() -> Path:
    """The folder of real captures; the test is skipped, with this reason, where there is none."""
    folder = os.environ.get("GPUPROV_CAPTURES")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "GPUPROV_CAPTURES names no folder of real captures: parsers were tried on our own samples only"
        )
    return Path(folder)
