"""The module gpuprov_launch, run as a program as on a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provision import paths
from tests.support.modules import Host

LAUNCH = "20261122T101500.000Z-validate-nccl-group"
SCRIPTS = {
    name: (paths.DATA / "launch" / f"{name}.sh").read_text("utf-8") for name in ("accept", "reach", "close")
}

# Its folder, and the paths of sshd and its keys, belong to this machine: the tests must not touch those. Only
# root may give a file away.
_BEFORE = """\
import os
run = module.run
module.HOME, module.SSHD_KEYS = {!r}, {!r}
module.run = lambda argv, **more: run(["sshd" if a == "/usr/sbin/sshd" else a for a in argv], **more)
if os.geteuid():
    os.chown = lambda *_: None
"""


class LaunchNode(Host):
    """A node with stand-ins for sshd -T, systemd-run, systemctl and mpirun."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for variable in ("SUDO_USER", "DOAS_USER"):
            self.environment.pop(variable, None)
        self.home, self.ssh = folder / "gpuprov-launch", folder / "etc-ssh"
        self.keys = folder / "user" / "authorized_keys"
        for made in (self.ssh, self.keys.parent):
            made.mkdir()
        (self.ssh / "ssh_host_ed25519_key.pub").write_text(f"ssh-ed25519 {'A' * 68} root@a\n")
        self.sshd("authorizedkeysfile", str(self.keys))
        self.program("systemd-run")
        self.program("systemctl")
        self.program("mpirun", "echo 'mpirun (Open MPI) 5.0.7'")

    def sshd(self, key: str, value: str) -> None:
        """Make `sshd -T` print this setting."""
        self.program("sshd", f"echo 'port 22'; echo '{key} {value}'")

    def run(self, state: str, launch: str = LAUNCH, **arguments: Any) -> dict[str, Any]:
        before = _BEFORE.format(str(self.home), str(self.ssh))
        return self.module("gpuprov_launch", before=before, state=state, launch=launch, **arguments)

    def open(self, launch: str = LAUNCH, **arguments: Any) -> dict[str, Any]:
        return self.run("open", launch, scripts=SCRIPTS, **arguments)

    def admit(self, launch: str = LAUNCH, certificate: str = "cert", authority: str = "ca") -> dict[str, Any]:
        return self.run("admit", launch, certificate=certificate, authority=authority)

    def left(self) -> list[str]:
        """List the files that launches have left on the node."""
        return sorted(path.name for path in self.home.rglob("*")) if self.home.exists() else []
