"""Writes the inventory of a lab: an ordinary one, without anything that only a lab could have."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from gpuprov_lab.record import LabRecord
from gpuprov_lab.repository import HTTP_PORT, OFFERED, Repository, layout
from gpuprov_lab.trees import USER
from provision.errors import LabError

_FIRST_LINE = "# Written by `gpuprov lab up`"


def render(lab: LabRecord, repository: Repository) -> str:
    """Render the inventory as YAML: group `gpu_nodes`, the lab's repositories in place of NVIDIA's."""
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
        **{f"{start}_key_fingerprint": repository.fingerprints[name] for name, start in OFFERED.items()},
        **_locked_memory(),
        "amd_validation_tools_rccl_tests_method": "package",  # AMD publishes no package; a site builds it
    }
    text: str = yaml.safe_dump(
        {"gpu_nodes": {"hosts": hosts, "vars": group}}, sort_keys=False, width=200, default_flow_style=False
    )
    return (
        f"{_FIRST_LINE} for the lab {lab.name!r}; written again by the next one.\n"
        "# Any Ansible inventory works with gpuprov. The *_url, *_key_url and *_key_fingerprint variables\n"
        "# are what a site with a mirror of NVIDIA's or AMD's packages sets; else the roles use theirs.\n"
        "---\n" + text
    )


def write(path: Path, text: str) -> None:
    """Write the inventory to `path`. Raises LabError rather than replace a file of another origin."""
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
    """Give the file to the user who typed the command, if run under sudo."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and user.isdigit() and group.isdigit():
        os.chown(path, int(user), int(group))


def _locked_memory() -> dict[str, str]:
    """Return the memory lock limit for nodes if this machine allows less than the role's default.
    A container cannot exceed its host's limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY or _may_raise_limits():
        return {}
    return {"rdma_memlock": str(hard // 1024)}


def _may_raise_limits() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> 24 & 1)  # CAP_SYS_RESOURCE


def _repository_places(lab: LabRecord, release: str) -> dict[str, Any]:
    server = f"http://{lab.bridge_address}:{HTTP_PORT}"
    variables = {}
    for name, start in OFFERED.items():
        place = layout(name, release)
        variables[f"{start}_url"] = f"{server}/{place.folder}/"
        variables[f"{start}_key_url"] = f"{server}/{place.key}"
    return variables
