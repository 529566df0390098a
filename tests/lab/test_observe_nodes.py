"""Observations of lab nodes, compared with the output of the nodes' own tools over plain ssh."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.desired import inventory
from provision.fleet import Node
from provision.remote.reach.observe import Observation, observe

PACKAGES = ("openssh-server", "python3", "no-such-package")
UNITS = ("ssh.service", "systemd-journald.service", "no-such-unit.service")
FILES = ("/etc/os-release", "/etc/ssh/sshd_config", "/usr/bin/python3", "/etc/no-such-file")
ASK = frozenset(
    [f"package.{name}.{what}" for name in PACKAGES for what in ("version", "status", "held")]
    + [f"service.{unit}.{what}" for unit in UNITS for what in ("active", "enabled")]
    + [f"file.{path}.{what}" for path in FILES for what in ("sha256", "mode", "owner", "exists")]
    + ["sysctl.kernel.ostype.value", "driver.loaded_version", "driver.installed_version"]
)


@pytest.fixture(scope="module")
def nodes(lab: Any) -> Mapping[str, Node]:
    return inventory.load(Path(lab.inventory)).nodes


@pytest.fixture(scope="module")
def seen(nodes: Mapping[str, Node]) -> Mapping[str, Observation]:
    return observe(nodes.values(), dict.fromkeys(nodes, ASK))


def on_node(node: Node, *command: str) -> str:
    """Return a command's output on a node, without any gpuprov code."""
    values = node.variables
    arguments = shlex.split(values.get("ansible_ssh_common_args", ""))
    if key := values.get("ansible_ssh_private_key_file"):
        arguments += ["-i", str(key)]
    arguments += ["-p", str(values.get("ansible_port", 22)), "-l", str(values.get("ansible_user", "root"))]
    done = subprocess.run(
        ["ssh", "-o", "BatchMode=yes", *arguments, str(values["ansible_host"]), shlex.join(command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_every_node_answers(nodes: Mapping[str, Node], seen: Mapping[str, Observation]) -> None:
    assert {name: seen[name].error for name in nodes} == dict.fromkeys(nodes)
    assert {name: dict(seen[name].problems) for name in nodes} == {name: {} for name in nodes}


def test_packages_are_as_dpkg_says(nodes: Mapping[str, Node], seen: Mapping[str, Observation]) -> None:
    for name, node in nodes.items():
        for package in PACKAGES:
            said = on_node(node, "dpkg-query", "-W", "-f", "${Version}|${db:Status-Status}", package)
            version, _, status = said.partition("|")
            assert seen[name].facts[f"package.{package}.version"] == (version or None)
            assert seen[name].facts[f"package.{package}.status"] == (status or "absent")


def test_services_are_as_systemctl_says(nodes: Mapping[str, Node], seen: Mapping[str, Observation]) -> None:
    for name, node in nodes.items():
        for unit in UNITS[:2]:
            assert seen[name].facts[f"service.{unit}.active"] == on_node(node, "systemctl", "is-active", unit)
            assert seen[name].facts[f"service.{unit}.enabled"] == on_node(
                node, "systemctl", "is-enabled", unit
            )
        assert seen[name].facts["service.no-such-unit.service.active"] is None


def test_files_are_as_stat_and_sha256sum_say(
    nodes: Mapping[str, Node], seen: Mapping[str, Observation]
) -> None:
    for name, node in nodes.items():
        facts = seen[name].facts
        for path in FILES[:3]:
            assert facts[f"file.{path}.sha256"] == on_node(node, "sha256sum", path).split()[0]
            mode, _, owner = on_node(node, "stat", "-L", "-c", "%04a %U:%G", path).partition(" ")
            assert (facts[f"file.{path}.mode"], facts[f"file.{path}.owner"]) == (mode.zfill(4), owner)
        assert facts["file./etc/no-such-file.exists"] is False


def test_the_machine_is_as_it_says_itself(nodes: Mapping[str, Node], seen: Mapping[str, Observation]) -> None:
    for name, node in nodes.items():
        facts = seen[name].facts
        assert facts["kernel.release"] == on_node(node, "uname", "-r")
        assert facts["boot.id"] == on_node(node, "cat", "/proc/sys/kernel/random/boot_id")
        gpus = on_node(node, "sh", "-c", "cd /sys/bus/pci/devices; grep -l '^0x03' */class | wc -l")
        assert facts["gpu.count"] == int(gpus) > 0


def test_looking_leaves_no_trace(nodes: Mapping[str, Node]) -> None:
    node = next(iter(nodes.values()))
    look = ["sh", "-c", "find /etc /var/lib/dpkg /tmp /root -newer /tmp/before -not -path '/tmp' | sort"]
    on_node(node, "touch", "/tmp/before")
    observe([node], {node.name: ASK})
    left = [path for path in on_node(node, *look).splitlines() if "systemd-private" not in path]
    on_node(node, "rm", "/tmp/before")
    assert left == []
