"""ansible-playbook: a task for each expectation, pipelining, no facts gathered; the same with --check."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.costs import Cost
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes
from benchmarks.peers.contender import CONNECTIONS, Contender, Work

RECAP = re.compile(r"^(\S+)\s*: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


def environment(folder: Path) -> dict[str, str]:
    """Ansible with nobody's settings but these."""
    settings = folder / "ansible.cfg"
    settings.touch()
    return {
        "ANSIBLE_CONFIG": str(settings),
        "ANSIBLE_HOME": str(folder / "ansible"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_FORKS": str(CONNECTIONS),
        "ANSIBLE_HOST_KEY_CHECKING": "1",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DISPLAY_OK_HOSTS": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


def _task(one: Expected) -> dict[str, object]:
    if one.kind == "file":
        return {"ansible.builtin.copy": {"content": one.value, "dest": one.name}}
    looks = {
        "package": ["dpkg-query", "-W", "-f", "${Version}", one.name],
        "module": ["test", "-e", one.initstate],
        "sysctl": ["cat", one.proc],
    }
    found = "('yes' if seen.rc == 0 else 'no')" if one.kind == "module" else "seen.stdout"
    return {
        "ansible.builtin.command": {"argv": looks[one.kind]},
        "register": "seen",
        "check_mode": False,
        "failed_when": False,
        "changed_when": f"{found} != {one.value!r}",
    }


def tasks(*more: str) -> Callable[[Nodes, Sequence[Expected], Path, bool], Work]:
    def make(nodes: Nodes, expected: Sequence[Expected], folder: Path, look: bool) -> Work:  # noqa: ARG001
        named = [{"name": f"{one.kind} {one.name}", **_task(one)} for one in expected]
        play = folder / "play.yml"
        play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": named}], indent=1))
        command: list[str | Path] = ["ansible-playbook", "-i", nodes.inventory(folder), *more, play]
        return Work(command, folder, differences, environment(folder))

    return make


def differences(cost: Cost) -> Mapping[str, int]:
    """What the recap says: changed, or failed; unreachable nodes were not looked at."""
    rows = RECAP.findall(cost.output)
    return {node: int(changed) + int(failed) for node, changed, lost, failed in rows if lost == "0"}


NOTE = "it needs many seconds for each node"
CONTENDERS = (
    Contender("ansible-playbook, 40 tasks", tasks(), most=3, note=NOTE),
    Contender("ansible-playbook --check, 40 tasks", tasks("--check"), most=3, note=NOTE),
)
