"""pyinfra: an operation for each expectation, where a fact tells whether there is something to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.costs import Cost
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes
from benchmarks.peers.contender import CONNECTIONS, Contender, Work
from benchmarks.peers.packages import peers

DEPLOY = """\
import json

from pyinfra import host
from pyinfra.facts.files import File
from pyinfra.facts.server import Command
from pyinfra.operations import apt, files, server

with open("expected.json", encoding="utf-8") as file:
    expected = json.load(file)
for one in expected:
    kind, name, value = one["kind"], one["name"], one["value"]
    if kind == "package":
        apt.packages(name=f"package {name}", packages=[f"{name}={value}"])
    elif kind == "file":
        files.put(name=f"file {name}", src="files/" + name.rpartition("/")[2], dest=name)
    elif kind == "module":
        loaded = host.get_fact(File, path=f"/sys/module/{name}/initstate")
        if bool(loaded) != (value == "yes"):
            server.shell(name=f"module {name}", commands=[f"modprobe {name}"])
    else:
        found = host.get_fact(Command, "cat /proc/sys/" + name.replace(".", "/"))
        if found.strip() != value:
            server.shell(name=f"sysctl {name}", commands=[f"sysctl -w {name}={value}"])
"""


def make(nodes: Nodes, expected: Sequence[Expected], folder: Path, look: bool) -> Work:
    shared = {
        "ssh_user": nodes.user,
        "ssh_port": nodes.port,
        "ssh_key": str(nodes.key),
        "ssh_known_hosts_file": str(nodes.known_hosts),
        "ssh_strict_host_key_checking": "yes",
        "ssh_config_file": "/dev/null",
        "ssh_paramiko_connect_kwargs": {"allow_agent": False, "look_for_keys": False},
    }
    hosts = [(name, {"ssh_hostname": address, **shared}) for name, address in nodes.addresses.items()]
    (folder / "inventory.py").write_text(f"nodes = {hosts!r}\n")
    (folder / "expected.json").write_text(json.dumps([asdict(one) for one in expected]))
    (folder / "deploy.py").write_text(DEPLOY)
    (folder / "files").mkdir()
    for one in expected:
        if one.kind == "file":
            (folder / "files" / Path(one.name).name).write_text(one.value)
    how = ["--dry"] if look else ["-y"]
    command: list[str | Path] = [
        peers() / "pyinfra",
        "--json",
        *how,
        "--parallel",
        str(CONNECTIONS),
        "inventory.py",
        "deploy.py",
    ]
    return Work(command, folder, lambda cost: differences(cost, nodes))


def differences(cost: Cost, nodes: Nodes) -> Mapping[str, int]:
    """Operations that changed something, or would; an operation that is left out had nothing to do."""
    said = json.loads(cost.output)
    found: Counter[str] = Counter(dict.fromkeys(nodes.names, 0))
    for operation in said["plan"]:
        found.update(operation["hosts_with_change"])
    for operation in (said["results"] or {}).get("operations", []):
        found.update(operation["error"])
    for lost in (said["results"] or {}).get("failed_hosts", []):
        del found[lost]
    return found


CONTENDERS = (Contender("pyinfra", make, most=50),)
