"""Peers that are not among our dependencies live in a virtual environment of their own, in a cache folder."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.costs import FailedError

PINNED = ("paramiko==4.0.0", "pyinfra==3.10.0", "pytest==9.0.3", "pytest-testinfra==10.2.2")


@functools.cache
def peers() -> Path:
    """The folder with the peers' programs; the first time they are installed, which takes a minute.

    Raises FailedError when pip cannot."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuprov-benchmarks"
    place = base / "-".join(["python", *map(str, sys.version_info[:2]), *PINNED]).replace("==", "-")
    if not (place / "complete").exists():
        print(f"installing {', '.join(PINNED)} into {place}", file=sys.stderr)
        place.mkdir(parents=True, exist_ok=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *PINNED]
        for command in ([sys.executable, "-m", "venv", "--clear", str(place)], pip):
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no word why"])[-1]
                raise FailedError(f"the peers cannot be installed: {last}")
        (place / "complete").touch()
    return place / "bin"
