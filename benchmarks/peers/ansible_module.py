"""ansible-playbook with one task: a custom module that looks at everything (library/look.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.costs import Cost
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes
from benchmarks.peers import ansible_playbook
from benchmarks.peers.contender import Contender, Work

FAILED = re.compile(
    r"^fatal: \[([^\]]+)\]: FAILED! => .*?\"msg\": \"(\d+) differ\"", re.MULTILINE | re.DOTALL
)


def make(nodes: Nodes, expected: Sequence[Expected], folder: Path, look: bool) -> Work:  # noqa: ARG001
    task = {"name": "Look", "look": {"expected": [asdict(one) for one in expected]}}
    play = folder / "play.yml"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}], indent=1))
    library = {"ANSIBLE_LIBRARY": str(Path(__file__).with_name("library"))}
    command: list[str | Path] = ["ansible-playbook", "-i", nodes.inventory(folder), play]
    return Work(command, folder, differences, {**ansible_playbook.environment(folder), **library})


def differences(cost: Cost) -> Mapping[str, int]:
    found = dict(ansible_playbook.differences(cost))
    return {**found, **{node: int(count) for node, count in FAILED.findall(cost.output)}}


CONTENDERS = (Contender("one custom Ansible module", make),)
