"""The simulated tools, run inside this process.

They are node-side code outside the product, so they are imported by path, as a node starts them, once per
process.
"""

from __future__ import annotations

import functools
import importlib
import io
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gpuprov_lab
from benchmarks.detection.virtual_time import World

SILICON = Path(gpuprov_lab.__file__).with_name("silicon")


class Simulator:
    """The simulated programs inside this process; `world` is their clock."""

    def __init__(self) -> None:
        self.world = World()
        sys.path.insert(0, str(SILICON))
        names = [".".join(path.relative_to(SILICON).with_suffix("").parts) for path in SILICON.rglob("*.py")]
        modules = [importlib.import_module(name) for name in sorted(names) if "__init__" not in name]
        clock, signals = self.world.clock(), self.world.signals()
        children = SimpleNamespace(**{name: getattr(subprocess, name) for name in subprocess.__all__})
        children.run = self._child
        stand_ins = {"time": clock, "signal": signals, "subprocess": children}
        for module in modules:
            for name, stand_in in stand_ins.items():
                if isinstance(getattr(module, name, None), ModuleType):
                    setattr(module, name, stand_in)
        sys.modules["run"].__dict__["devices"].confine = lambda _: None  # these trees are no containers
        self.tools = frozenset(sys.modules["run"]._tools())

    def main(self, words: Sequence[str]) -> Callable[[], int]:
        """Return the program that `run.py WORDS` starts."""
        return lambda: sys.modules["run"].main(list(words))

    def _child(self, argv: Sequence[str], **_: Any) -> Any:
        """Run run.py again at the same moment, for a simulated program that starts a second program."""
        kept, sys.stdout = sys.stdout, io.StringIO()
        try:
            rc = self.main([str(word) for word in argv[4:]])()
            text = sys.stdout.getvalue()
        finally:
            sys.stdout = kept
        return subprocess.CompletedProcess(argv, rc, text.encode("utf-8", "replace"), b"")


@functools.cache
def simulator() -> Simulator:
    """Return this process's simulator."""
    return Simulator()
