"""Runs a program that a role writes, with a tree of files in place of /sys and /proc/cpuinfo."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tree over /sys needs root")


class Stage:
    """`sys` is what the program sees as /sys; `tool` puts a program before all others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sys = folder / "sys"
        self.sys.mkdir()
        (folder / "bin").mkdir()
        self.cpuinfo("flags\t\t: fpu vme sse2\n")
        self.log = folder / "log"
        self.log.touch()

    def cpuinfo(self, text: str) -> None:
        (self.folder / "cpuinfo").write_text(text)

    def file(self, path: str, text: str | bytes) -> Path:
        full = self.sys / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(text if isinstance(text, bytes) else text.encode())
        return full

    def tool(self, name: str, script: str) -> None:
        """A program that writes down how it was called, and then does `script`."""
        file = self.folder / "bin" / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        file.chmod(0o755)

    def called(self, name: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(f"{name} ")]

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        program = self.folder / "program"
        program.write_text(text)
        mounts = f"mount --bind {self.sys} /sys && mount --bind {self.folder}/cpuinfo /proc/cpuinfo"
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{mounts} && exec sh {program}"],
            env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
