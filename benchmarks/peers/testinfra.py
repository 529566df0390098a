"""pytest-testinfra: a test for each expectation, over OpenSSH and over paramiko."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.costs import Cost
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes
from benchmarks.peers.contender import Contender, Work
from benchmarks.peers.packages import peers

TESTS = """\
import json

import pytest

with open("expected.json", encoding="utf-8") as file:
    EXPECTED = json.load(file)


@pytest.mark.parametrize("one", EXPECTED, ids=lambda one: one["name"])
def test_expectation(host, one):
    kind, name, value = one["kind"], one["name"], one["value"]
    if kind == "package":
        assert host.package(name).version == value
    elif kind == "file":
        assert host.file(name).content_string == value
    elif kind == "module":
        assert host.file(f"/sys/module/{name}/initstate").exists == (value == "yes")
    else:
        assert host.file("/proc/sys/" + name.replace(".", "/")).content_string.strip() == value
"""
LINE = re.compile(r"^(PASSED|FAILED|ERROR) \S*\[(?:ssh|paramiko)://([^\]]+?)-(?:\S+)\]", re.MULTILINE)
SSH_CONFIG = """\
Host *
  User {nodes.user}
  Port {nodes.port}
  IdentityFile {nodes.key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {nodes.known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  KexAlgorithms curve25519-sha256
  ControlPath {folder}/%C
"""


def over(backend: str) -> Callable[[Nodes, Sequence[Expected], Path, bool], Work]:
    def make(nodes: Nodes, expected: Sequence[Expected], folder: Path, look: bool) -> Work:  # noqa: ARG001
        (folder / "expected.json").write_text(json.dumps([asdict(one) for one in expected]))
        (folder / "test_expected.py").write_text(TESTS)
        config = folder / "ssh_config"
        config.write_text(SSH_CONFIG.format(nodes=nodes, folder=folder))
        hosts = ",".join(f"{backend}://{address}" for address in nodes.addresses.values())
        quiet = ["-q", "-rA", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider", "-p", "no:warnings"]
        command: list[str | Path] = [
            peers() / "pytest",
            *quiet,
            f"--hosts={hosts}",
            f"--ssh-config={config}",
            "test_expected.py",
        ]
        names = {address: name for name, address in nodes.addresses.items()}
        return Work(command, folder, lambda cost: differences(cost, names))

    return make


def differences(cost: Cost, names: Mapping[str, str]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for result, address in LINE.findall(cost.output):
        found[names[address]] += result != "PASSED"
    return found


CONTENDERS = (
    Contender("pytest-testinfra, OpenSSH", over("ssh"), most=8, note="one node after another"),
    Contender(
        "pytest-testinfra, paramiko",
        over("paramiko"),
        most=16,
        note="one node after another; no host key checked",
    ),
)
