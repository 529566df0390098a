"""Runs a program that a role installs, with a file tree in place of /sys and /proc/cpuinfo."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ran
from tests.support.modules import Host

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tree over /sys needs root")


class Stage(Host):
    """A host for one program; `sys` replaces /sys."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sys = folder / "sys"
        self.sys.mkdir()
        self.cpuinfo("flags\t\t: fpu vme sse2\n")

    def cpuinfo(self, text: str) -> None:
        (self.folder / "cpuinfo").write_text(text)

    def file(self, path: str, text: str | bytes) -> Path:
        full = self.sys / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(text if isinstance(text, bytes) else text.encode())
        return full

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        program = self.folder / "program"
        program.write_text(text)
        mounts = f"mount --bind {self.sys} /sys && mount --bind {self.folder}/cpuinfo /proc/cpuinfo"
        return ran(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mounts} && exec sh {program}"],
            env={**self.environment, "LC_ALL": "C"},
            timeout=180,
        )
