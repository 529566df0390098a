"""Playbooks played on this machine with the real Ansible, here or by a process that can be interrupted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from provision import paths

# What a process of its own plays: `{play}` is given `book`, `host` and the functions that play.
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
    """A process that plays a playbook with its private folders in `memory`; interrupted, it ends with 130."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(play=play), str(book), str(memory)],
        env={**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)},
        stdout=subprocess.DEVNULL,
    )


def recap(output: str) -> dict[str, dict[str, int]]:
    """Node → how many tasks were ok, changed, failed, … by the last lines of ansible-playbook."""
    return {
        match[1]: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
        for match in re.finditer(r"^(\S+) +: (ok=.*)$", output, re.MULTILINE)
    }
