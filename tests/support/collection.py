"""The collection gpuprov.gpu as a user has it: installed from the archive, without gpuprov."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from provision.paths import PACKAGE

BUILD = PACKAGE.parent / "scripts" / "collection.py"


def build(folder: Path) -> Path:
    """Build the archive in `folder`."""
    words = [sys.executable, str(BUILD), "--output", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=100, cwd=folder)
    archive = Path(done.stdout.strip())
    with tarfile.open(archive) as found:
        assert "roles/nccl/tasks/main.yml" in found.getnames()
    return archive


class Controller:
    """The programs of one Ansible, and an empty folder into which only the collection is installed."""

    def __init__(self, home: Path, programs: Path) -> None:
        self.home = home
        self._programs = programs
        self.settings: dict[str, str] = {}  # environment variables

    def install(self, archive: Path) -> None:
        self.call("ansible-galaxy", "collection", "install", str(archive), "-p", str(self.home), "--offline")

    def run(self, program: str, *words: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run one of the programs, which finds only the collection's roles and modules."""
        return subprocess.run(
            [str(self._programs / program), *words],
            capture_output=True, text=True, timeout=timeout, check=False, cwd=self.home,
            env={
                **{"HOME": str(self.home), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"},
                "PATH": f"{self._programs}:{os.environ['PATH']}",
                "ANSIBLE_COLLECTIONS_PATH": str(self.home),
                **self.settings,
            },
        )  # fmt: skip

    def call(self, program: str, *words: str) -> str:
        """Run a program that must succeed, and return its standard output."""
        done = self.run(program, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def play(
        self, play: dict[str, Any], *words: str, timeout: float = 100
    ) -> subprocess.CompletedProcess[str]:
        """Run ansible-playbook with this play."""
        (self.home / "play.yml").write_text(json.dumps([play]))
        return self.run("ansible-playbook", "play.yml", *words, timeout=timeout)


def play(*roles: str, **keywords: Any) -> dict[str, Any]:
    """Return a play with these roles of the collection, as docs/ansible.md shows it."""
    named = [f"gpuprov.gpu.{role}" for role in roles]
    return {"hosts": "all", "become": True, "roles": named, **keywords}
