"""The shell scripts that checks run on nodes, as programs in this process, whose loops sleep by its clock.

A script is known by its name, the word behind its text; what it does is done here in its stead.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.detection.simulator import Simulator


def script(silicon: Simulator, root: Path, argv: Sequence[str]) -> Callable[[], int]:
    """`sh -c TEXT NAME WORD…`: AMD's telemetry.py and gpu_burn.py have `sampler` and `write`."""
    name, words = argv[3], argv[4:]
    if name == "write":
        return lambda: _write(root / words[1].lstrip("/"), words[0])
    if name == "sampler":
        return lambda: _sample(silicon, float(words[0]))
    raise ValueError(f"what does the script {name} do? say it here")


def _write(path: Path, text: str) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return 0


def _sample(silicon: Simulator, interval: float) -> int:
    clock = silicon.world.clock()
    while True:
        moment = int(clock.time())
        kept, streams = io.StringIO(), (sys.stdout, sys.stderr)
        sys.stdout = sys.stderr = kept
        try:
            silicon.main(["amd-smi", "metric", "--json"])()
        finally:
            sys.stdout, sys.stderr = streams
        print(moment, " ".join(kept.getvalue().split()), flush=True)
        clock.sleep(interval)
