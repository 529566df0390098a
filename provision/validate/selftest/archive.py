"""The fixture archive of a selftest: the unchanged output of every program, as a folder and as one file.

A file is a check, in the form in which a run folder keeps raw output: programs' arguments, exit status,
output and seconds. Their environment is not in it, nor are the variables that were declared; the kernel's
log is, with the command line the kernel was booted with. It is closed to other users, as a run folder is.
"""

from __future__ import annotations

import json
import platform
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision.runs.raw_output import Raw
from provision.validate.selftest.serials import Serials

FOLDER = "archive"


class Archive:
    """Writes each file as soon as there is something to write: an interrupted selftest keeps what it has."""

    def __init__(self, output: Path, *, mask: bool) -> None:
        self.folder = output / FOLDER
        self.folder.mkdir(mode=0o700)
        self._serials = Serials(platform.node()) if mask else None

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
                self._serials.learn_columns(output["argv"], output["stdout"])
        path.write_text(_text(self.shown(document)), encoding="utf-8")

    def shown(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A document as it may leave this machine."""
        plain: dict[str, Any] = json.loads(json.dumps(document, default=str))
        return self._serials.hidden(plain) if self._serials else plain

    def pack(self) -> Path:
        """The archive as one file beside its folder; a serial number learnt late is hidden in all of it."""
        if self._serials:
            for path in sorted(self.folder.rglob("*.json")):
                path.write_text(_text(self.shown(json.loads(path.read_text("utf-8")))), encoding="utf-8")
        packed = self.folder.with_suffix(".tar.gz")
        packed.touch(mode=0o600)
        # The output folder is called after the machine.
        inside = "selftest" if self._serials else self.folder.parent.resolve().name
        with tarfile.open(packed, "w:gz") as tar:
            tar.add(self.folder, arcname=inside)
        return packed


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"
