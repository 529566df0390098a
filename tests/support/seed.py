"""The seed for random draws in tests: fixed in every run of CI, drawn in every run of the long set."""

from __future__ import annotations

import os

VARIABLE = "GPUPROV_TEST_SEED"
DRAWN = VARIABLE in os.environ  # by scripts/test --long, or by a person who repeats such a run
SEED = int(os.environ.get(VARIABLE, "20261124"))


def times(few: int, many: int) -> int:
    """Return the number of attempts: `few` with the fixed seed, `many` with a drawn one."""
    return many if DRAWN else few


class Selected:
    """The tests that this session runs. `long`: also those marked long (set by tests/conftest.py)."""

    long = True
