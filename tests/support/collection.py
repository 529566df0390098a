"""The collection gpuprov.gpu as a stranger has it: installed from the archive, with no gpuprov beside it."""

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
    """The archive, made in `folder`."""
    words = [sys.executable, str(BUILD), "--output", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=100, cwd=folder)
    archive = Path(done.stdout.strip())
    with tarfile.open(archive) as found:
        assert "roles/nccl/tasks/main.yml" in found.getnames()
    return archive


class Controller:
    """The programs of an Ansible, and a folder that begins empty and gets the collection, nothing else."""

    def __init__(self, home: Path, programs: Path) -> None:
        self.home = home
        self._programs = programs
        self.settings: dict[str, str] = {}  # variables of the environment

    def install(self, archive: Path) -> None:
        self.call("ansible-galaxy", "collection", "install", str(archive), "-p", str(self.home), "--offline")

    def run(self, program: str, *words: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """One of the programs, which finds no role or module but the collection's."""
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
        """The standard output of a program that has to end well."""
        done = self.run(program, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def play(
        self, play: dict[str, Any], *words: str, timeout: float = 100
    ) -> subprocess.CompletedProcess[str]:
        """ansible-playbook of this one play."""
        (self.home / "play.yml").write_text(json.dumps([play]))
        return self.run("ansible-playbook", "play.yml", *words, timeout=timeout)


def play(*roles: str, **keywords: Any) -> dict[str, Any]:
    """A play of these roles of the collection, as docs/ansible.md shows it."""
    named = [f"gpuprov.gpu.{role}" for role in roles]
    return {"hosts": "all", "become": True, "roles": named, **keywords}
