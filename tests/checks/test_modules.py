"""Checks are known by name and stage without being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from provision.checks import SHIPPED
from provision.checks_asked import PAIRS

EVERY = {**SHIPPED.stages, **PAIRS.stages}


@pytest.mark.parametrize("name", EVERY)
def test_a_check_is_what_its_line_says(name: str) -> None:
    check = (SHIPPED if name in SHIPPED else PAIRS)[name]
    assert (name, EVERY[name]) == (check.ID, check.STAGE)


def test_a_name_of_no_check_is_no_check() -> None:
    assert "gpu_burns" not in SHIPPED
    with pytest.raises(KeyError):
        SHIPPED["gpu_burns"]


def test_a_look_at_a_fleet_imports_no_check() -> None:
    """Their import is most of what a short command would cost."""
    program = (
        "import sys; from provision import assess, checks_asked, drift_report, drift_formats;"
        "checks_asked.select('standard'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = {
        name for name in done.stdout.split() if name.startswith(("provision.checks.", "provision.pairs"))
    }
    assert imported <= {f"provision.checks.{name}" for name in ("check", "modules", "registry")}
