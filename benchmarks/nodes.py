"""Nodes to measure on: light lab nodes as root, otherwise one private sshd under many addresses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import light_nodes
from tests.support.sshd import Sshd


class FailedError(Exception):
    """A measured program failed at its task, so there is no measurement."""


@dataclass(frozen=True)
class Nodes:
    """Names of nodes behind sshd, with their addresses.
    `cpu`: seconds that all of them have spent; `busy`: whether a session is still open. All addresses share
    one root, so a difference there appears on all nodes, except in the folder `own` that each node has for
    itself (name → its path from outside)."""

    addresses: dict[str, str]
    port: int
    user: str
    key: Path
    known_hosts: Path
    cpu: Callable[[], float]
    busy: Callable[[], bool]
    kind: str
    own: Callable[[str], Path] | None = None

    @property
    def names(self) -> list[str]:
        return list(self.addresses)

    def first(self, count: int) -> Nodes:
        """Return the first `count` nodes at most."""
        return replace(self, addresses=dict(list(self.addresses.items())[:count]))

    def ssh_options(self) -> list[str]:
        """Return OpenSSH options: no user configuration, checked host keys, F's key exchange."""
        options = ["-F", "none", "-i", str(self.key), "-p", str(self.port), "-l", self.user]
        for option in (
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "KexAlgorithms=curve25519-sha256",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.known_hosts}",
            "GlobalKnownHostsFile=/dev/null",
        ):
            options += ["-o", option]
        return options

    def run(self, name: str, *command: str, given: str = "") -> str:
        """Run a command on a node and return its output. Raises FailedError, also after a minute."""
        words = ["ssh", *self.ssh_options(), self.addresses[name], *command]
        try:
            done = subprocess.run(words, input=given, capture_output=True, text=True, check=False, timeout=60)
        except subprocess.TimeoutExpired:
            raise FailedError(f"{name} did not answer for a minute") from None
        if done.returncode:
            raise FailedError(f"{name}: {' '.join(command)}: {done.stderr.strip()[-200:]}")
        return done.stdout

    def inventory(self, folder: Path, **variables: object) -> Path:
        """Write an Ansible inventory of the nodes with these variables for all."""
        common = "-F none -o IdentitiesOnly=yes -o IdentityAgent=none -o KexAlgorithms=curve25519-sha256"
        common += f" -o UserKnownHostsFile={self.known_hosts} -o GlobalKnownHostsFile=/dev/null"
        shared: dict[str, object] = {
            "ansible_user": self.user,
            "ansible_port": self.port,
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": f"{common} -o StrictHostKeyChecking=yes",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_become": False,
            **variables,
        }
        hosts = {name: {"ansible_host": address} for name, address in self.addresses.items()}
        path = folder / "inventory.json"
        path.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}, indent=1))
        return path


def _ended_cpu(pid: int) -> float:
    """Return the CPU seconds of a process's ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _has_children(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())


def fleet(count: int) -> contextlib.AbstractContextManager[Nodes]:
    """Start this many nodes, which are removed at the end. Light nodes need root."""
    return light(count) if os.geteuid() == 0 else loopback(count)


@contextlib.contextmanager
def light(count: int, delay: float = 0.0, own: str = "") -> Iterator[Nodes]:
    """Start light lab nodes, with an address each, in a namespace and over a root of their own.
    `delay`: seconds in each direction. `own`: the path of a folder that each node has for itself."""
    with light_nodes.light_nodes(count, delay=delay, own=own) as fleet:
        idle = len(light_nodes.below(fleet.pid))
        yield Nodes(
            dict(fleet.addresses),
            light_nodes.PORTS["delay" if delay else "ssh"],
            "root",
            fleet.key,
            fleet.known_hosts,
            cpu=fleet.cpu,
            busy=lambda: len(light_nodes.below(fleet.pid)) > idle,
            kind="light nodes, with real sshd, an address and a root of their own, without systemd",
            own=fleet.own if own else None,
        )


@contextlib.contextmanager
def loopback(count: int) -> Iterator[Nodes]:
    """Start one real sshd of this user, which answers at 127.0.x.y, with a name for each address."""
    program = shutil.which("sshd", path=f"/usr/sbin:{os.environ.get('PATH', '')}")
    if program is None:
        raise SystemExit("sshd is not installed: apt install openssh-server")
    with tempfile.TemporaryDirectory(prefix="gpuprov-nodes-") as name:
        sshd = Sshd(Path(name), program, max_startups=2000, listen="0.0.0.0")  # noqa: S104 - of a benchmark
        addresses = {f"node-{i:05}": f"127.0.{1 + i // 250}.{1 + i % 250}" for i in range(count)}
        kind, blob = Path(name, "host_ed25519.pub").read_text().split()[:2]
        sshd.known_hosts.write_text(
            "".join(f"[{address}]:{sshd.port} {kind} {blob}\n" for address in addresses.values())
        )
        try:
            yield Nodes(
                addresses,
                sshd.port,
                sshd.user,
                sshd.key_file,
                sshd.known_hosts,
                cpu=lambda: _ended_cpu(sshd.process.pid),
                busy=lambda: _has_children(sshd.process.pid),
                kind="one sshd on this machine, under a loopback address for each node",
            )
        finally:
            sshd.stop()


def in_parallel(nodes: Nodes, command: Sequence[str], connections: int, folder: Path) -> list[str]:
    """Return the command line of `xargs -P ssh` that runs `command` on all nodes."""
    addresses = folder / "addresses"
    addresses.write_text("".join(f"{address}\n" for address in nodes.addresses.values()))
    many = ["xargs", "-a", str(addresses), "-P", str(connections), "-I", "{}"]
    return [*many, "ssh", "-n", *nodes.ssh_options(), "{}", *command]
