"""Python interpreters of this machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path


@functools.cache
def python(version: str) -> str | None:
    """Find an interpreter of this version; pyenv's shims may name versions that are not installed."""
    candidates = [sys.executable, shutil.which(f"python{version}"), shutil.which("python3")]
    homes = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    candidates += [str(path) for home in homes for path in sorted(home.glob(f"{version}.*/bin/python3"))]
    for path in filter(None, candidates):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
        if said.strip() == version:
            return path
    return None
