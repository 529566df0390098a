"""The facts about all packages whose names match a pattern, on dpkg and on rpm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from provision.remote import node_program, protocol

DPKG = """\
Package: libnccl2
Status: hold ok installed
Architecture: amd64
Version: 2.29.7-1+cuda12.9

Package: libnccl-dev
Status: install ok half-configured
Architecture: amd64
Version: 2.29.7-1+cuda12.9

Package: libnccl-old
Status: deinstall ok config-files
Architecture: amd64
Version: 1-1

Package: bash
Status: install ok installed
Architecture: amd64
Version: 5-1
Description: Package: libnccl9
"""
RPM = "libnccl|(none)|2.29.7-1\\ncuda-drivers|3|580.126.09-1.el9\\nkernel|(none)|5\\nkernel|(none)|6\\n"


def ask(root: Path, *facts: str) -> dict[str, Any]:
    document = answered(root, *facts)
    assert not set(facts) & set(document["problems"]), document["problems"]
    return {fact: document["facts"][fact] for fact in facts}


def problems(root: Path, *facts: str) -> dict[str, str]:
    found = answered(root, *facts)["problems"]
    return {fact: found[fact] for fact in facts}


def answered(root: Path, *facts: str) -> Any:
    text = node_program.packed_for(facts) + f"\n\nmain({ {'facts': list(facts), 'root': str(root)}!a})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"],
        input=text.encode("ascii"),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == b""
    return json.loads(protocol.unframed(done.stdout))


def a_file(root: Path, path: str, text: str, mode: int = 0o644) -> None:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(mode)


def test_dpkg_says_what_is_installed_whole_and_matches(tmp_path: Path) -> None:
    a_file(tmp_path, "var/lib/dpkg/status", DPKG.replace("amd64", native()))
    assert ask(
        tmp_path, "packages.libnccl*.versions", "packages.b?sh.versions", "packages.none*.versions"
    ) == {
        "packages.libnccl*.versions": {"libnccl2": "2.29.7-1+cuda12.9"},
        "packages.b?sh.versions": {"bash": "5-1"},
        "packages.none*.versions": {},
    }


def native() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def test_rpm_says_the_same_with_epochs_and_nothing_of_what_is_there_twice(tmp_path: Path) -> None:
    a_file(tmp_path, "usr/bin/rpm", f"#!/bin/sh\nprintf '{RPM}'\n", 0o755)
    assert ask(tmp_path, "packages.*.versions", "packages.cuda-*.versions") == {
        "packages.*.versions": {"libnccl": "2.29.7-1", "cuda-drivers": "3:580.126.09-1.el9"},
        "packages.cuda-*.versions": {"cuda-drivers": "3:580.126.09-1.el9"},
    }


def test_a_family_brings_the_family_it_is_built_on_and_no_other() -> None:
    text = node_program.text_for(["packages.x*.versions"])
    assert "def dpkg_paragraphs" in text
    assert "def driver_loaded" not in text
    assert "def dpkg_versions" not in node_program.text_for(["package.x.version"])


def test_a_database_that_cannot_be_read_whole_answers_nobody(tmp_path: Path) -> None:
    """Several families read it, once: none may take what was read before the error for all there is."""
    a_file(tmp_path, "var/lib/dpkg/status", DPKG)
    (tmp_path / "var/lib/dpkg/updates/0001").mkdir(parents=True)
    facts = ["fabric.manager_package", "package.bash.version", "packages.b?sh.versions"]
    assert problems(tmp_path, *facts) == dict.fromkeys(facts, "not a regular file")
