"""A real sshd on a loopback address, run as the user of the tests."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from provision.fleet import Node

SSHD_CONFIG = """\
ListenAddress {listen}:{port}
HostKey {folder}/host_ed25519
HostKey {folder}/host_ecdsa
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM {pam}
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups {max_startups}
PrintMotd no
AllowTcpForwarding yes
SetEnv PATH={folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME={folder}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sshd:
    """One sshd with private keys and known_hosts. Its sessions' PATH begins with `bin`."""

    def __init__(
        self,
        folder: Path,
        program: str,
        max_startups: int = 200,
        pam: str = "no",
        listen: str = "127.0.0.1",
    ) -> None:
        self.folder = folder
        self.program = program
        self.port = free_port()
        self.user = getpass.getuser()
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("host_ed25519", "host_ecdsa"):
            self.keygen(name, name.removeprefix("host_"))
        (folder / "authorized_keys").touch()
        self.key_file = self.key("user")
        self.known_hosts = folder / "known_hosts"
        self.know(self.known_hosts)
        settings = {"port": self.port, "folder": folder, "max_startups": max_startups, "pam": pam}
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(**settings, listen=listen))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.start()

    def start(self) -> None:
        self.log = (self.folder / "sshd.log").open("ab")
        self.process = subprocess.Popen(
            [self.program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError((self.folder / "sshd.log").read_text())

    def logins(self) -> int:
        """Return the number of logins."""
        return (self.folder / "sshd.log").read_text().count("Accepted publickey")

    def keygen(self, name: str, kind: str = "ed25519", passphrase: str = "") -> Path:
        path = self.folder / name
        subprocess.run(
            ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", name, "-f", str(path)],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
        )
        return path

    def key(self, name: str, command: str | None = None, passphrase: str = "") -> Path:
        """Create a key that may log in; with `command`, every session runs only that command."""
        path = self.keygen(name, passphrase=passphrase)
        public = path.with_suffix(".pub").read_text()
        option = f'command="{command}" ' if command else ""
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(option + public)
        return path

    def know(self, path: Path, host_key: str = "host_ed25519", name: str | None = None) -> Path:
        """Write a known_hosts file with one of this sshd's keys."""
        kind, blob = (self.folder / f"{host_key}.pub").read_text().split()[:2]
        path.write_text(f"{name or f'[127.0.0.1]:{self.port}'} {kind} {blob}\n")
        return path

    def node(self, name: str = "gpu-01", **variables: Any) -> Node:
        """Return a node that connects here. `known_hosts` and `key` are paths; `ssh_args` adds options."""
        known_hosts = variables.pop("known_hosts", self.known_hosts)
        key = variables.pop("key", self.key_file)
        arguments = variables.pop("ssh_args", "")
        common = f"-F none -o UserKnownHostsFile={known_hosts} -o GlobalKnownHostsFile=/dev/null"
        return Node(
            name,
            (),
            {
                "ansible_host": "127.0.0.1",
                "ansible_port": self.port,
                "ansible_user": self.user,
                "ansible_ssh_private_key_file": str(key),
                "ansible_ssh_common_args": f"{common} -o IdentityAgent=none {arguments}".strip(),
                **variables,
            },
        )

    def troubled(self, folder: Path) -> dict[str, Node]:
        """Return unreachable nodes, each with a different cause; `folder` must contain no key."""
        return {
            "refused": self.node("refused", ansible_port=1),
            "stranger": self.node("stranger", known_hosts=folder / "none"),
            "locked-out": self.node("locked-out", key=folder / "no-key"),
            "no-python": self.node(
                "no-python", ansible_python_interpreter="/no/python3", ansible_become=False
            ),
        }

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()
