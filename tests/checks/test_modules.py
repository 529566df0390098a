"""Checks are known by name and stage without being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from provision.checks.judging.registry import CHECKS
from provision.checks.judging.table import BUILT_IN, SAME, Entry


@pytest.mark.parametrize("entry", BUILT_IN, ids=[one.id for one in BUILT_IN])
def test_a_check_is_what_its_line_says(entry: Entry) -> None:
    assert entry.id == entry.load().ID
    assert entry.load_for("nvidia") is (entry.load() if entry.module else None)
    of_amd = entry.load_for("amd")
    assert of_amd is None or entry.id == of_amd.ID
    assert (of_amd is entry.load()) == (entry.amd == SAME or not entry.module)


def test_a_name_of_no_check_is_no_check() -> None:
    assert "gpu_burns" not in CHECKS
    with pytest.raises(KeyError):
        CHECKS["gpu_burns"]


KINDS = tuple(f"provision.checks.{kind}." for kind in ("amd", "gpu", "host", "network", "nccl", "pairs"))


def test_a_look_at_a_fleet_imports_no_check() -> None:
    """Their import is most of what a short command would cost."""
    program = (
        "import sys; from provision.drift import assess, drift_report, formats;"
        "from provision.checks.judging import registry;"
        "registry.select('standard'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = [name for name in done.stdout.split() if name.startswith(KINDS)]
    assert imported == []
