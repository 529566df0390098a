"""Burn-in orders for tests, with short programs instead of loads."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

from provision.checks.on_node import packed_program

PYTHON = [sys.executable, "-I", "-S", "-c"]


def command(name: str, *argv: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "argv": list(argv), "deadline": 20.0, **more}


def step(check: str, *argv: str, **more: Any) -> dict[str, Any]:
    return {"check": check, "commands": [command(check, *argv, **more)]}


def load(name: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "load", "repeat": 1, "minutes": None, "steps": list(steps), **more}


def order(*segments: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "campaign": "it",
        "node": "gpu-01",
        "sample_seconds": 1,
        "space_mib": 1,
        "segments": list(segments),
        **more,
    }


def put_program(path: Path, *changes: tuple[str, str, str]) -> None:
    """Write the burn-in program to this path. `changes`: (module below provision/node, old text, new text).
    With changes the program is a folder, which Python runs like the file."""
    if not changes:
        path.write_bytes(packed_program.build("burnin"))
        return
    with zipfile.ZipFile(io.BytesIO(packed_program.build("burnin"))) as archive:
        archive.extractall(path)
    for module, old, new in changes:
        file = path / "provision/node" / module
        assert file.read_text().count(old) == 1
        file.write_text(file.read_text().replace(old, new))
