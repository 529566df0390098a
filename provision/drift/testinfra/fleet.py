"""Expectations of each node for the testinfra suite, by gpuprov's flow with testinfra as observer."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import testinfra

from provision.desired.expectations import Expectation
from provision.drift import assess
from provision.drift.testinfra.readers import Reader
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation

_OF_ANSIBLE = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password", "ansible_become_password")


@dataclass(frozen=True)
class Case:
    """One test of a node's expectation, or the reason why it has none (`trouble`)."""

    node: str
    expectation: Expectation | None = None
    trouble: str = ""

    @property
    def name(self) -> str:
        """The id of the test: `gpu-01-nvidia_driver/driver.loaded_version`."""
        if self.expectation is None:
            return f"{self.node}-reachable"
        return f"{self.node}-{self.expectation.role}/{self.expectation.fact}"


class Suite:
    """The cases of a fleet, and a reader for each node."""

    def __init__(self, fleet: Fleet, overrides: Mapping[str, Any]) -> None:
        """Observe these nodes. Raises GpuprovError for a mistake in the inventory."""
        self.readers: dict[str, Reader] = {}
        self._fleet: Fleet = fleet
        self._sockets = tempfile.TemporaryDirectory(prefix="gpuprov-")
        seen = assess.assess(fleet, overrides, observe=self._observe)
        self.secrets = seen.secrets
        self.cases = [case for name in fleet.nodes for case in _cases(name, seen)]

    def close(self) -> None:
        """Forget the shared connections; they end by themselves soon after."""
        self._sockets.cleanup()

    def _observe(
        self, nodes: Collection[Node], _ask: Mapping[str, Collection[str]], **_options: Any
    ) -> dict[str, Observation]:
        """Read the base facts of nodes with testinfra, ignoring all other requested facts."""
        observed = {}
        for node in nodes:
            try:
                reader = self.readers.setdefault(
                    node.name, Reader(host_of(node, self._fleet, self._sockets.name))
                )
                observed[node.name] = Observation(node.name, base_facts(reader))
            except (RuntimeError, OSError, AssertionError) as why:
                text = " ".join(str(why).split())[-300:]
                observed[node.name] = Observation(node.name, error=text or repr(why), unreachable=True)
        return observed


def _cases(name: str, seen: assess.Assessment) -> list[Case]:
    if name in seen.troubles:
        return [Case(name, trouble=seen.troubles[name])]
    refusals = seen.refused.get(name, ())
    if refusals:
        return [Case(name, trouble=f"{each.what} ({each.fix})") for each in refusals]
    return [Case(name, expectation) for expectation in seen.expected[name]]


def host_of(node: Node, fleet: Fleet, sockets: str) -> Any:
    """Return testinfra's connection to a node; `sockets`: folder for the sockets its commands share.

    Connections with a password go through Ansible, which reads it from the inventory itself."""
    values = node.variables
    connection = str(values.get("ansible_connection") or "ssh")
    become = values.get("ansible_become", True) not in (False, "false", "no", "False", 0)
    if connection not in ("ssh", "smart", "ansible.builtin.ssh") or any(
        values.get(key) for key in _OF_ANSIBLE
    ):
        os.environ["ANSIBLE_INVENTORY"] = fleet.place  # testinfra's own parameter takes a single inventory
        return testinfra.get_host(f"ansible://{node.name}", sudo=become)
    user = values.get("ansible_user")
    address = str(values.get("ansible_host") or node.name)
    address = f"[{address}]" if ":" in address else address
    port = f":{values['ansible_port']}" if values.get("ansible_port") else ""
    words = ["-o BatchMode=yes"]
    words += [
        str(values[key]) for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args") if values.get(key)
    ]
    key_file = values.get("ansible_ssh_private_key_file")
    return testinfra.get_host(
        f"ssh://{f'{user}@' if user else ''}{address}{port}",
        ssh_identity_file=str(key_file) if key_file else None,
        ssh_extra_args=" ".join(words),
        controlpath=f"{sockets}/%%C",  # doubled because testinfra formats it
        controlpersist=20,
        sudo=become and user != "root",
    )


def base_facts(reader: Reader) -> dict[str, Any]:
    """Read the facts behind `gpuprov_node`: the system and its GPUs, named as in docs/facts.md."""
    host = reader.host
    release: dict[str, str] = {}
    for line in host.file("/etc/os-release").content_string.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            release[key] = "".join(shlex.split(value))
    kin = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    debian, redhat = {"debian", "ubuntu"}.intersection(kin), {"rhel", "fedora", "centos"}.intersection(kin)
    running = host.check_output("uname -r")
    kernels = host.run("ls -1 /boot | sed -n 's/^vmlinuz-//p' | sort -V").stdout.split()
    gpus = reader.pci_functions("gpu")
    return {
        "os.id": release.get("ID"),
        "os.version_id": release.get("VERSION_ID"),
        "os.codename": release.get("VERSION_CODENAME"),
        "os.family": "debian" if debian else "redhat" if redhat else release.get("ID"),
        "os.arch": host.check_output("uname -m"),
        "kernel.release": running,
        "kernel.boot_release": kernels[-1] if kernels else running,
        "gpu.count": len(gpus),
        "gpu.pci": [{"device_id": device} for device in gpus],
        "gpu.nvswitch_count": len(reader.pci_functions("switch")),
    }
