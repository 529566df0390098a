"""The seed of what tests draw: the same in every run of CI, another in every run of the long set."""

from __future__ import annotations

import os

VARIABLE = "GPUPROV_TEST_SEED"
DRAWN = VARIABLE in os.environ  # by scripts/test --long, or by a person who repeats such a run
SEED = int(os.environ.get(VARIABLE, "20261124"))


def times(few: int, many: int) -> int:
    """How often something is tried: `few` times with the fixed seed, `many` with a drawn one."""
    return many if DRAWN else few


class Selected:
    """What this session runs. `long`: also tests marked long (set by tests/conftest.py)."""

    long = True
