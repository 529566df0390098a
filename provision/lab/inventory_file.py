"""Writes the inventory of a lab: an ordinary one, with nothing in it that only a lab could have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from provision.errors import LabError
from provision.lab.record import LabRecord
from provision.lab.repository import HTTP_PORT, OFFERED, Repository, layout
from provision.lab.trees import USER

_FIRST_LINE = "# Written by `gpuprov lab up`"


def render(lab: LabRecord, repository: Repository) -> str:
    """The inventory as YAML: group `gpu_nodes`, the lab's repositories in place of NVIDIA's."""
    import yaml

    options = {
        "UserKnownHostsFile": lab.place.known_hosts,
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
    }
    hosts = {
        node.name: {"ansible_host": lab.address(node), **_repository_places(lab, node.release)}
        for node in lab.nodes
    }
    group = {
        "ansible_user": USER,
        "ansible_become": True,
        "ansible_ssh_private_key_file": str(lab.place.key),
        "ansible_ssh_common_args": " ".join(f"-o {key}={value}" for key, value in options.items()),
        "ansible_python_interpreter": "/usr/bin/python3",
        **{f"nvidia_repository_{name}_key_fingerprint": repository.fingerprints[name] for name in OFFERED},
    }
    text: str = yaml.safe_dump(
        {"gpu_nodes": {"hosts": hosts, "vars": group}}, sort_keys=False, width=200, default_flow_style=False
    )
    return (
        f"{_FIRST_LINE} for the lab {lab.name!r}; written again by the next one.\n"
        "# Any Ansible inventory works with gpuprov. The nvidia_repository_* variables are what a site with\n"
        "# its own mirror of NVIDIA's packages sets, too; without them the roles use NVIDIA's public ones.\n"
        "---\n" + text
    )


def write(path: Path, text: str) -> None:
    """Write the inventory to `path`; raises LabError rather than replace a file that somebody else wrote."""
    if path.exists() and not path.read_text(errors="replace").startswith(_FIRST_LINE):
        raise LabError(
            f"{path} exists and was not written by `gpuprov lab up`", "choose another --inventory PATH"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise LabError(
            f"{path} cannot be written: {error.strerror}", "choose another --inventory PATH"
        ) from error
    _give_to_caller(path)


def _give_to_caller(path: Path) -> None:
    """Under sudo the file belongs to whoever typed the command."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and user.isdigit() and group.isdigit():
        os.chown(path, int(user), int(group))


def _repository_places(lab: LabRecord, release: str) -> dict[str, Any]:
    server = f"http://{lab.bridge_address}:{HTTP_PORT}"
    variables = {}
    for name in OFFERED:
        place = layout(name, release)
        variables[f"nvidia_repository_{name}_url"] = f"{server}/{place.folder}/"
        variables[f"nvidia_repository_{name}_key_url"] = f"{server}/{place.key}"
    return variables
