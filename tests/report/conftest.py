"""The sample fleets, for every test of this folder."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support import samples as sample_fleets


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    return sample_fleets
