"""A tree of files that stands for a machine, and the program for nodes asked about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from provision.remote import node_program, protocol


class Tree:
    """A tree of files that stands for a machine's root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: str | bytes, mode: int = 0o644) -> None:
        full = self.root / path.lstrip("/")
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(text if isinstance(text, bytes) else text.encode())
        full.chmod(mode)

    def link(self, path: str, target: str) -> None:
        full = self.root / path.lstrip("/")
        full.parent.mkdir(parents=True, exist_ok=True)
        full.symlink_to(target)

    def tool(self, name: str, script: str) -> None:
        self.file(f"/usr/bin/{name}", f"#!/bin/sh\n{script}\n", 0o755)

    def ask(self, *names: str) -> tuple[dict[str, Any], dict[str, str]]:
        request = {"facts": list(names), "root": str(self.root)}
        text = node_program.packed_for(names) + f"\n\nmain({request!a})\n"
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-"], input=text.encode("ascii"), capture_output=True, timeout=60
        )
        assert done.stderr == b""
        document = json.loads(protocol.unframed(done.stdout))
        return document["facts"], document["problems"]

    def value(self, name: str) -> Any:
        facts, problems = self.ask(name)
        assert name not in problems, problems
        return facts[name]

    def problem(self, name: str) -> str:
        facts, problems = self.ask(name)
        assert name not in facts
        return problems[name]
