"""The floors: `xargs -P ssh host …`, doing nothing there, or starting a Python that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.expected import Expected
from benchmarks.nodes import Nodes, in_parallel
from benchmarks.peers.contender import CONNECTIONS, Contender, Work


def running(*command: str) -> Callable[[Nodes, Sequence[Expected], Path, bool], Work]:
    def make(nodes: Nodes, expected: Sequence[Expected], folder: Path, look: bool) -> Work:  # noqa: ARG001
        words = in_parallel(nodes, command, CONNECTIONS, folder)
        return Work(words, folder, lambda cost: {} if cost.code else dict.fromkeys(nodes.names, 0))

    return make


FLOOR = Contender("ssh host true (F)", running("true"))
PYTHON = Contender("ssh host python3 -c pass", running("/usr/bin/python3", "-c", "pass"))
BARE_PYTHON = Contender(
    "ssh host python3 -I -S -c pass", running("/usr/bin/python3", "-I", "-S", "-c", "pass")
)
