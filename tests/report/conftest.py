"""Storage of runs for the tests that use stored runs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"
