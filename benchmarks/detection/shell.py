"""Substitutes for the shell scripts of checks, with loops that sleep by the virtual clock.

A script is identified by its name, the word after its text; its effect is reproduced here in Python.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.detection.simulator import Simulator

_ABSENT = 127


def script(silicon: Simulator, root: Path, argv: Sequence[str]) -> Callable[[], int]:
    """Return the substitute of `sh -c TEXT NAME WORD…`.
    `sampler` and `write` are AMD's telemetry.py and gpu_burn.py; another `write`, `each`, `agfhc`
    data/amd_acceptance.yml."""
    name, words = argv[3], argv[4:]
    if name == "write" and len(words) == 4:
        return lambda: _configure(silicon, root / words[1].lstrip("/"), words[2], words[3])
    if name == "write":
        return lambda: _write(root / words[1].lstrip("/"), words[0])
    if name == "sampler":
        return lambda: _sample(silicon, float(words[0]))
    tools = {"each": words[1:2], "agfhc": ["agfhc"]}.get(name)
    if tools and not silicon.tools & set(tools):  # no role installs it
        return lambda: _ABSENT
    raise ValueError(f"what does the script {name} do? say it here")


def _configure(silicon: Simulator, path: Path, last: str, each: str) -> int:
    """Write a configuration of RVS: one action for each GPU that RVS lists, then the last action."""
    listed = re.findall(r" - GPU\[ *\d+ - *(\d+)\]", _said(silicon, "rvs", "-g"))
    actions = [each.replace("%s", number) for number in listed]
    return _write(path, "".join(["actions:\n", *actions, last]))


def _said(silicon: Simulator, *words: str) -> str:
    """Return the output of a simulated program."""
    kept, streams = io.StringIO(), (sys.stdout, sys.stderr)
    sys.stdout = sys.stderr = kept
    try:
        silicon.main(words)()
    finally:
        sys.stdout, sys.stderr = streams
    return kept.getvalue()


def _write(path: Path, text: str) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return 0


def _sample(silicon: Simulator, interval: float) -> int:
    clock = silicon.world.clock()
    while True:
        moment = int(clock.time())
        output = _said(silicon, "amd-smi", "metric", "--json")
        print(moment, " ".join(output.split()), flush=True)
        clock.sleep(interval)
