"""Ansible modules of gpuprov, loaded from their files and run as programs as on a node."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from provision import paths
from tests.support.commands import ran

# The code `before`, with which a test changes the module, refers to it as `module`.
_PROGRAM = """\
import importlib.util, json, sys
from ansible.module_utils import basic
path, arguments, before = sys.argv[1:]
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.loads(arguments)}).encode()
basic._ANSIBLE_PROFILE = "legacy"
spec = importlib.util.spec_from_file_location("module", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
exec(before)
module.main()
"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, paths.MODULES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Host:
    """A node with stand-ins for its programs on PATH, and a log of every call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.log = folder, folder / "bin", folder / "log"
        self.bin.mkdir(parents=True)
        self.log.touch()
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def program(self, name: str, script: str = "") -> None:
        """Add a program that logs its call and then runs `script`."""
        file = self.bin / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        file.chmod(0o755)

    def says(self, name: str, text: str, status: int = 0, stream: int = 1) -> None:
        """Add a program that prints the text."""
        (self.folder / f"{name}.txt").write_text(text)
        self.program(name, f"cat {self.folder}/{name}.txt >&{stream}\nexit {status}")

    def ran(self, program: str = "") -> list[str]:
        """Return the logged calls, of all programs or of one."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if not program or line.startswith(f"{program} ")]

    def module(self, name: str, /, check: bool = False, before: str = "", **arguments: Any) -> dict[str, Any]:
        """Run the module and return its answer."""
        told = json.dumps({**arguments, "_ansible_check_mode": check})
        done = ran(
            [sys.executable, "-c", _PROGRAM, str(paths.MODULES / f"{name}.py"), told, before],
            env=self.environment,
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))
