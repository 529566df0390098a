"""How a run of `validate` runs its checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Settings:
    """How to run the checks. `every_pair`: measure all pairs of nodes. `override`: the user's thresholds.
    `timeout`: seconds a node has to answer, and a program beyond its load; None leaves each check its own."""

    burn_seconds: int = 60
    timeout: float | None = None
    forks: int = 50
    connections: int = 64
    every_pair: bool = False
    override: Path | None = None
    vault_password_files: tuple[Path, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What checks may know of it."""
        return {"burn_seconds": self.burn_seconds, "timeout": self.timeout}
