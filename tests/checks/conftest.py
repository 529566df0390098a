"""Fixture that locates the folder of real captures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def captures() -> Path:
    """Return the folder of real captures; skip the test if GPUPROV_CAPTURES names none."""
    folder = os.environ.get("GPUPROV_CAPTURES")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "GPUPROV_CAPTURES names no folder of real captures: parsers were tried on our own samples only"
        )
    return Path(folder)
