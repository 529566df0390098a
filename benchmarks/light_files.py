"""What light nodes and who talks to them are given: keys, known_hosts, the inventory, the keeper's plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.light_nodes import LightFleet

PORTS = {"ssh": 22, "refused": 23, "hang": 2201, "banner": 2202, "delay": 2203}
SILENT = ("dead", "refused", "hang", "banner")  # kinds of bad nodes at which no SSH server answers


def write_files(fleet: LightFleet, delay: float, variables: Mapping[str, Any], own_root: bool) -> None:
    """Keys, known_hosts and the inventory, into the fleet's folder."""
    for name in ("host_key", "key"):
        fleet.folder.joinpath(name).unlink(missing_ok=True)
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(fleet.folder / name)]
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL, timeout=30)
    shared_key = " ".join((fleet.folder / "host_key.pub").read_text().split()[:2])
    host_keys = dict(_host_keys(fleet)) if own_root else {}
    hosts, lines = {}, []
    for name, address in fleet.addresses.items():
        port = _port(fleet.bad.get(name, ""), delay)
        place = address if port == PORTS["ssh"] else f"[{address}]:{port}"
        lines.append(f"{place} {host_keys.get(name, shared_key)}\n")
        hosts[name] = {"ansible_host": address} | ({"ansible_port": port} if port != PORTS["ssh"] else {})
    fleet.known_hosts.write_text("".join(lines))
    common = f"-F none -o UserKnownHostsFile={fleet.known_hosts} -o GlobalKnownHostsFile=/dev/null"
    shared = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(fleet.key),
        "ansible_ssh_common_args": f"{common} -o IdentityAgent=none",
        **variables,
    }
    fleet.inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}, indent=1))


def _host_keys(fleet: LightFleet) -> Iterator[tuple[str, str]]:
    """Each node's name and public key. ssh-keygen would be started for each of them."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder = fleet.folder / "host_keys"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    form = serialization.PrivateFormat.OpenSSH
    for name in fleet.names:
        key = Ed25519PrivateKey.generate()
        secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        with (folder / name).open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secret)
        public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        yield name, key.public_key().public_bytes(*public).decode()


def _port(kind: str, delay: float) -> int:
    return PORTS.get(kind, PORTS["delay"] if delay and not kind else PORTS["ssh"])


def write_plan(fleet: LightFleet, octet: int, delay: float, own_root: bool) -> Path:
    """What the keeper is to do. `own`: the nodes with a root of their own, by name."""
    bad: dict[str, list[str]] = {}
    for name, kind in fleet.bad.items():
        bad.setdefault(kind, []).append(fleet.addresses[name])
    sshd = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")
    if sshd is None:
        raise SystemExit("there is no sshd: apt install openssh-server")
    own = {name: at for name, at in fleet.addresses.items() if fleet.bad.get(name) not in SILENT}
    plan = {"folder": str(fleet.folder), "range": f"10.{octet}.0.0/16", "sshd": sshd, "ports": PORTS}
    path = fleet.folder / "plan.json"
    path.write_text(json.dumps({**plan, "bad": bad, "delay": delay, "own": own if own_root else {}}))
    return path
