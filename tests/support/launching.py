"""The module gpuprov_launch, run as the program it is on a node, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from provision import paths

LAUNCH = "20261122T101500.000Z-validate-nccl-group"
SCRIPTS = {
    name: (paths.DATA / "launch" / f"{name}.sh").read_text("utf-8") for name in ("accept", "reach", "close")
}

# Its folder, and where sshd is and has its keys, are of this machine: the tests must not touch those. Only
# root may give a file away.
_PROGRAM = """\
import importlib.util, json, os, sys
from ansible.module_utils import basic
path, arguments, home, keys = sys.argv[1:]
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.loads(arguments)}).encode()
basic._ANSIBLE_PROFILE = "legacy"
spec = importlib.util.spec_from_file_location("gpuprov_launch", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
run = module.run
module.HOME, module.SSHD_KEYS = home, keys
module.run = lambda argv, **more: run(["sshd" if a == "/usr/sbin/sshd" else a for a in argv], **more)
if os.geteuid():
    os.chown = lambda *_: None
module.main()
"""


class LaunchNode:
    """A node with stand-ins for sshd -T, systemd-run, systemctl and mpirun on PATH; what ran is logged."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "gpuprov-launch"
        self.bin, self.ssh, self.log = folder / "bin", folder / "etc-ssh", folder / "log"
        self.keys = folder / "user" / "authorized_keys"
        for made in (self.bin, self.ssh, self.keys.parent):
            made.mkdir(parents=True)
        self.log.touch()
        (self.ssh / "ssh_host_ed25519_key.pub").write_text(f"ssh-ed25519 {'A' * 68} root@a\n")
        self.sshd("authorizedkeysfile", str(self.keys))
        self.program("systemd-run")
        self.program("systemctl")
        self.program("mpirun", "echo 'mpirun (Open MPI) 5.0.7'")

    def program(self, name: str, script: str = "") -> None:
        file = self.bin / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\n{script}\n')
        file.chmod(0o755)

    def sshd(self, key: str, value: str) -> None:
        """What `sshd -T` says."""
        self.program("sshd", f"echo 'port 22'; echo '{key} {value}'")

    def ran(self, program: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(f"{program} ")]

    def run(self, state: str, launch: str = LAUNCH, **arguments: Any) -> dict[str, Any]:
        told = json.dumps({"state": state, "launch": launch, **arguments})
        env = {key: value for key, value in os.environ.items() if key not in ("SUDO_USER", "DOAS_USER")}
        module = str(paths.MODULES / "gpuprov_launch.py")
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, module, told, str(self.home), str(self.ssh)],
            env={**env, "PATH": f"{self.bin}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))

    def open(self, launch: str = LAUNCH, **arguments: Any) -> dict[str, Any]:
        return self.run("open", launch, scripts=SCRIPTS, **arguments)

    def admit(self, launch: str = LAUNCH, certificate: str = "cert", authority: str = "ca") -> dict[str, Any]:
        return self.run("admit", launch, certificate=certificate, authority=authority)

    def left(self) -> list[str]:
        """What is on the node because of launches."""
        return sorted(path.name for path in self.home.rglob("*")) if self.home.exists() else []
