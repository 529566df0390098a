"""The fixture archive of a selftest: what every program printed, as it came, in a folder and in one file.

A file is a check, in the form in which a run folder keeps raw output: programs' arguments, exit status,
output and seconds. Their environment is not in it.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.campaign import Raw
from provision.selftest.serials import Serials

FOLDER = "archive"


class Archive:
    """Writes each file as soon as there is something to write: an interrupted selftest keeps what it has."""

    def __init__(self, output: Path, *, mask: bool) -> None:
        self.folder = output / FOLDER
        self.folder.mkdir(parents=True)
        self._serials = Serials() if mask else None

    def keep(self, place: str, raw: Raw) -> None:
        """What came back for one check; `place` is its folder in the archive."""
        self.write(f"{place}/{raw.check}.json", {"format": 1, **asdict(raw)})

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._serials:
            self._serials.learn_values(document)
            for output in document.get("outputs", ()):
                self._serials.learn(f"{output['stdout']}\n{output['stderr']}")
        path.write_text(self.shown(json.dumps(document, indent=1, default=str)) + "\n", encoding="utf-8")

    def shown(self, text: str) -> str:
        """A text as it may leave this machine."""
        return self._serials.hide(text) if self._serials else text

    def pack(self) -> Path:
        """The archive as one file beside its folder; a serial number learnt late is hidden in all of it."""
        if self._serials:
            for path in sorted(self.folder.rglob("*.json")):
                path.write_text(self.shown(path.read_text(encoding="utf-8")), encoding="utf-8")
        packed = self.folder.with_suffix(".tar.gz")
        with tarfile.open(packed, "w:gz") as tar:
            tar.add(self.folder, arcname=self.folder.parent.name)
        return packed
