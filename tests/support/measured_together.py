"""Nodes that `gpuprov validate` measures together, in pairs or all at once, with a single check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provision.checks.check import KERNEL_LOG_DELTA
from provision.checks.health import from_json
from provision.validate import campaign
from tests.support.machines import Machines
from tests.support.pair_nodes import facts

Answer = tuple[int, dict[str, Any], Path]
PLAIN = {"stdout": "", "stderr": "", "rc": 0, "seconds": 1.5, "timed_out": False, "truncated": False}


class Together(Machines):
    """Machines measured together. `validate` is the fixture of that name."""

    only: tuple[str, ...] = ()
    validate: Callable[..., Answer]

    def add_nodes(self, count: int) -> None:
        for number in range(1, count + 1):
            self.add(f"gpu-{number:02d}", **facts())

    def run(self, count: int = 0, *words: str, code: int | None = None, **more: Any) -> Answer:
        """Validate `count` more nodes and judge the run again, which must agree; return code, report, run."""
        self.add_nodes(count)
        ended, report, folder = self.validate(*(words or self.only), **more)
        assert code in (None, ended)
        assert not report or campaign.rejudge(folder) == from_json(report)
        return ended, report, folder


def answered(*outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the module's answer with these outputs, which by default ended successfully."""
    log = {"name": KERNEL_LOG_DELTA, "argv": []}
    return {
        "outputs": [{**PLAIN, "not_started": "", **output} for output in (*outputs, log)],
        "boot_id": "boot-1",
    }
