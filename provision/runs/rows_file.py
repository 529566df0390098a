"""Temporary file for a large fleet's rows, which are most of its data, until its report is written.
A report shows few of them. The file is unlinked, so it disappears with the owners of its rows."""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision.checks import health
from provision.checks.health import CheckResult, LazyRows, NodeHealth
from provision.shared_facts import Pool


class RowsFile:
    """An unlinked file in `folder`, or in the temporary folder if that is read-only. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        here = folder if os.access(folder, os.W_OK) else None
        self._descriptor, name = tempfile.mkstemp(prefix=".rows-", dir=here)
        weakref.finalize(self, os.close, self._descriptor)
        Path(name).unlink()
        self._end = 0
        self._read = self._rows  # one bound method for all rows
        self._words: dict[str, str] = {}  # strings shared by many nodes, each stored once
        self._facts = Pool()

    def kept(self, node: NodeHealth) -> NodeHealth:
        """Return the node with its rows moved to the file. Raises OSError."""
        gpus = (
            replace(gpu, name=self._word(gpu.name), pci_address=self._word(gpu.pci_address))
            for gpu in node.gpus
        )
        checks = tuple(map(self._check, health.compressed(node).checks))
        return replace(node, checks=checks, gpus=tuple(gpus), facts=self._facts.of(node.facts))

    def _check(self, check: CheckResult) -> CheckResult:
        findings, measurements = self._put(check.findings), self._put(check.measurements)
        return replace(check, check=self._word(check.check), findings=findings, measurements=measurements)

    def _word(self, text: str) -> str:
        return self._words.setdefault(text, text)

    def _put(self, rows: Any) -> Any:
        data = rows.packed
        if data is None:
            return rows  # already stored
        position = self._end << 32 | len(data)
        while data:
            written = os.pwrite(self._descriptor, data, self._end)
            self._end, data = self._end + written, data[written:]
        return LazyRows(self._read, position, rows.wrong, rows.metrics)

    def _rows(self, place: int) -> tuple[Any, ...]:
        return health.unpacked(os.pread(self._descriptor, place & 0xFFFFFFFF, place >> 32))
