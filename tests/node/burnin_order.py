"""Orders for tests of the burn-in: short programs instead of loads."""

from __future__ import annotations

import sys
from typing import Any

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
