"""File tree that represents a machine, and the node program run on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provision.remote import node_program, protocol

PROGRAM = node_program.text_for([f"{family}.x" for family in node_program.families()])
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----
Comment: a key made for this test

mDMEawDpCBYJKwYBBAHaRw8BAQdA9z7dBJNaNOrP62u8gmNVF/WPrjk/d7Lfh1YI
HVlrZlC0IUZpeHR1cmUgS2V5IDxmaXh0dXJlQGV4YW1wbGUub3JnPoiQBBMWCAA4
FiEErGemMLv/SDbSanVeXIO39M9BhmYFAmsA6QgCGwMFCwkIBwIGFQoJCAsCBBYC
AwECHgECF4AACgkQXIO39M9BhmaTzgEA3whDemZ6z+PTG3K5MNghZi9JdpLLMTfE
uTFzcyruCIYA/RLuI8UzmhZPKhuNnytHxX8tInqAbCqfcRnchGg+y3QK
=gCJ7
-----END PGP PUBLIC KEY BLOCK-----
"""
KEY_FINGERPRINT = "AC67A630BBFF4836D26A755E5C83B7F4CF418666"  # in gpg's format


class Tree:
    """File tree that represents a machine's root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: str | bytes, mode: int = 0o644) -> Path:
        full = self.root / path.lstrip("/")
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(text if isinstance(text, bytes) else text.encode())
        full.chmod(mode)
        return full

    def lines(self, folder: str, **texts: object) -> None:
        """Write one-line files to a folder."""
        for name, text in texts.items():
            self.file(f"{folder}/{name}", f"{text}\n")

    def link(self, path: str, target: str) -> None:
        full = self.root / path.lstrip("/")
        full.parent.mkdir(parents=True, exist_ok=True)
        full.symlink_to(target)

    def tool(self, name: str, script: str) -> None:
        self.file(f"/usr/bin/{name}", f"#!/bin/sh\n{script}\n", 0o755)

    def program(self, facts: Sequence[str], /) -> str:
        return node_program.packed_for(facts)

    def run(self, *facts: str, python: str = sys.executable, first: str = "", **request: Any) -> bytes:
        request = {"facts": list(facts), "root": str(self.root), **request}
        text = f"{first}{self.program(facts)}\n\nmain({request!a})\n"
        done = subprocess.run(
            [python, "-I", "-S", "-"],
            input=text.encode("ascii"),
            capture_output=True,
            timeout=60,
            env={"LC_ALL": "C"},
        )
        assert done.stderr == b""
        return done.stdout

    def ask(self, *facts: str, **request: Any) -> tuple[dict[str, Any], dict[str, str]]:
        document = json.loads(protocol.unframed(self.run(*facts, **request)))
        return document["facts"], document["problems"]

    def values(self, *facts: str) -> dict[str, Any]:
        """Return the values of these facts, none of which may have a problem."""
        observed, problems = self.ask(*facts)
        assert problems == {}
        return {fact: observed[fact] for fact in facts}

    def value(self, fact: str) -> Any:
        facts, problems = self.ask(fact)
        assert fact not in problems, problems
        return facts[fact]

    def problem(self, fact: str, **request: Any) -> str:
        facts, problems = self.ask(fact, **request)
        assert fact not in facts
        return problems[fact]


class Machine(Tree):
    """Debian 13 machine, observed by the complete program with all families of facts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.file("/etc/os-release", 'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n')
        self.lines("/proc/sys/kernel/random", boot_id="1f2e-3d")

    def program(self, _facts: Sequence[str], /) -> str:
        return PROGRAM

    def pci(self, address: str, **attributes: str) -> None:
        self.lines(f"/sys/bus/pci/devices/{address}", **attributes)
