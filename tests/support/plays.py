"""Playbooks run here by the real Ansible, in this process or in one that can be interrupted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from provision import paths

# Code of the separate process; `{play}` can use `book`, `host` and the functions that run playbooks.
_PROGRAM = """\
import sys
from pathlib import Path
import provision.remote.ansible.handover as handover
from provision.remote.reach.partitions import run_sharded
from provision.remote.ansible.runner import run_playbook
handover.memory_folder = lambda: Path(sys.argv[2])
book = Path(sys.argv[1])
host = {{"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
try:
    {play}
except KeyboardInterrupt:
    sys.exit(130)
"""
ALONE = "run_playbook(book, {'a': host}, on_event=print)"
SHARDED = "run_sharded(book, {'a': host, 'b': host}, on_event=print, places=[None, None])"


def local(**variables: Any) -> dict[str, Any]:
    return {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **variables}


def playbook(folder: Path, tasks: str, head: str = "gather_facts: false") -> Path:
    path = folder / "play.yml"
    path.write_text(f"- hosts: all\n  {head}\n  tasks:\n" + textwrap.indent(textwrap.dedent(tasks), "    "))
    return path


def playing(play: str, book: Path, memory: Path) -> subprocess.Popen[bytes]:
    """Start a process that plays `book` with private folders in `memory`; interrupted, it exits with 130."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(play=play), str(book), str(memory)],
        env={**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)},
        stdout=subprocess.DEVNULL,
    )


def recap(output: str) -> dict[str, dict[str, int]]:
    """Parse the recap of ansible-playbook: node → counts of ok, changed, failed and other tasks."""
    return {
        match[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
        for match in re.finditer(r"^(\S+) +: (ok=.*)$", output, re.MULTILINE)
    }
