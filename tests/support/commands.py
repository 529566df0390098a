"""Helper that runs a program to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ran(
    words: Sequence[str | Path], *, check: bool = False, timeout: float = 120, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its output, as text, and its exit status."""
    return subprocess.run(words, capture_output=True, text=True, check=check, timeout=timeout, **more)
