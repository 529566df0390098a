"""Errors of broken inventories: one line with the location and one with the remedy.
Neither shows internals of Ansible or gpuprov."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision import cli
from provision.errors import ExitCode

VAULT = "$ANSIBLE_VAULT;1.1;AES256\n6162\n"
# Files by name, the first being the inventory; the two lines of the error.
BROKEN: dict[str, tuple[dict[str, str | bytes], str, str]] = {
    "no YAML": (
        {"i.yml": "all:\n  hosts:\n    gpu-01: {a: [}\n"},
        "i.yml:3:18: not valid YAML: did not find expected node content",
        "look at that line and the one above: indentation, quotes, colons",
    ),
    "a tab": (
        {"i.yml": "all:\n  hosts:\n\tgpu-01:\n"},
        "i.yml:3:1: not valid YAML: found character that cannot start any token",
        "look at that line and the one above: indentation, quotes, colons",
    ),
    "a key twice": (
        {"i.yml": "all:\n  hosts:\n    gpu-01:\n  hosts:\n    gpu-03:\n"},
        "{here}/i.yml:4: hosts is there twice",
        "keep one: Ansible heeds the last alone",
    ),
    "an unknown child": (
        {"hosts": "[gpus]\ngpu-01\n[racks:children]\ngpus\nrack1\n"},
        "hosts:5: [racks:children] names the group rack1, which is nowhere declared",
        "write a section [rack1], or take the name out",
    ),
    "a bad range": (
        {"hosts": "[gpus:children]\nold\n[old]\ngpu-[01:08]\ngpu-[09:10:2]\ngpu-[09:1]\n"},
        "hosts:6: not a range of hosts",
        "as gpu-[01:40]: the lower end first, both ends numbers of the same length, or both a letter",
    ),
    "hosts as a list": (
        {"i.yml": "all:\n  hosts: [gpu-01]\n"},
        "i.yml:2: `hosts` of the group all must be a mapping",
        "a colon behind each name, and no dash before it: `gpu-01:`",
    ),
    "a wrong type": (
        {"i.yml": "all:\n  hosts:\n    gpu-01:\n      nvidia_driver_hold: maybe\n"},
        "i.yml:4: nvidia_driver_hold (gpu-01) must be true or false, not 'maybe'",
        "correct it in the inventory",
    ),
    "a wrong word": (
        {"i.yml": "all:\n  hosts:\n    gpu-01:\n      nvidia_driver_source: foo\n"},
        "i.yml:4: nvidia_driver_source (gpu-01) must be one of repository, distribution, not 'foo'",
        "correct it in the inventory",
    ),
    "a wrong word in a list": (
        {"i.yml": "all:\n  hosts:\n    gpu-01:\n      container_toolkit_runtimes: [docker, rkt]\n"},
        "i.yml:4: container_toolkit_runtimes (gpu-01) must be a list in which each element is one of "
        "auto, docker, containerd, crio, podman, not ['docker', 'rkt']",
        "correct it in the inventory",
    ),
    "a wrong key": (
        {"i.yml": "all:\n  hosts:\n    gpu-01:\n      rdma_expected_ports: [{device: a, speed: 4}]\n"},
        "i.yml:4: rdma_expected_ports (gpu-01) must be a list in which each element is a mapping "
        "with no other keys than device, link_layer, port, rate, pkey, not [{'device': 'a', 'speed': 4}]",
        "correct it in the inventory",
    ),
    "a version that lost a digit": (
        {"hosts": "[gpus]\ngpu-01 cuda_toolkit_version=12.90\n"},
        "hosts:2: cuda_toolkit_version (gpu-01) must be text, in quotes, not 12.9",
        "correct it in the inventory",
    ),
    "no vault password": (
        {"hosts": "gpu-01\n", "group_vars/all.yml": VAULT},
        "group_vars/all.yml: holds vaulted values that could not be decrypted",
        "give --vault-password-file FILE",
    ),
    "not UTF-8": (
        {"hosts": b"# \xe9 is no matter here\ngpu-01 a=\xe9\xff\n"},
        "hosts:2: not UTF-8 text",
        "save it as UTF-8",
    ),
    "an unknown connection": (
        {"hosts": "gpu-01 ansible_connection=sssh\n"},
        "hosts:1: no connection 'sssh' (gpu-01)",
        "did you mean ssh?",
    ),
    "an empty file": (
        {"hosts": ""},
        "hosts: no nodes",
        "name at least one host in it; gpuprov init writes a commented one",
    ),
    "a script that fails": (
        {"inv.sh": "#!/bin/sh\necho no credentials >&2\nexit 3\n"},
        "inv.sh: the inventory script ended with status 3: no credentials",
        "run it to see why: inv.sh --list",
    ),
    "bad JSON of a script": (
        {"inv.sh": "#!/bin/sh\necho '{gpus: [}'\n"},
        "inv.sh: the inventory script did not print JSON: Value could not be parsed as JSON: Expecting "
        "property name enclosed in double quotes: line 1 column 2 (char 1)",
        "run it to see what it prints: inv.sh --list",
    ),
    "a script that is none": (
        {"inv.py": "#!/usr/bin/env python3\nprint('{}')\n"},
        "inv.py: an inventory script that cannot be executed",
        "chmod +x inv.py",
    ),
    "a template that fails": (
        {"i.yml": 'all:\n  hosts:\n    gpu-01:\n      ansible_host: "{{ rack_net }}.1"\n'},
        "i.yml:4: gpu-01: ansible_host: 'rack_net' is undefined",
        "correct it in the inventory",
    ),
    "a mistyped variable": (
        {"i.yml": "all:\n  vars:\n    nccl_verison: '2'\n  hosts:\n    gpu-01:\n"},
        "i.yml:3: unknown variable nccl_verison (gpu-01)",
        "did you mean nccl_version or nvlink_version or rocm_version?",
    ),
    "a bad port": (
        {"hosts": "gpu-01 ansible_port=ssh\n"},
        "hosts:1: ansible_port (gpu-01) must be a port from 1 to 65535, not 'ssh'",
        "correct it in the inventory",
    ),
    "no word of its own for root": (
        {"hosts": "[gpus]\ngpu-01\n\n[gpus:vars]\nansible_become=mayhap\n"},
        "hosts:5: ansible_become (gpu-01) must be true or false, not 'mayhap'",
        "correct it in the inventory",
    ),
    "an unknown plugin": (
        {"x.yml": "plugin: no.such.plugin\n"},
        "x.yml:1: the inventory plugin no.such.plugin is not installed",
        "install its collection with ansible-galaxy, or correct the name",
    ),
    "an open quote": ({"hosts": 'gpu-01 a="x\n'}, "hosts:1: a quote is not closed", "close it"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_inventory_is_said_in_one_line_with_its_place(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, what, fix = BROKEN[name]
    for file, content in files.items():
        path = here / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if path.suffix == ".sh":
            path.chmod(0o755)
    assert cli.main(["plan", "-i", next(iter(files)), "--timeout", "1"]) == ExitCode.ERROR
    said = capsys.readouterr().err.splitlines()[-2:]
    assert said == [f"gpuprov: {what.replace('{here}', str(here))}", f"  → {fix}"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("file", ["hosts", "group_vars/all.yml"])
def test_a_file_that_may_not_be_read(file: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hosts").write_text("gpu-01\n")
    (here / "group_vars").mkdir()
    (here / "group_vars/all.yml").write_text("a: 1\n")
    (here / file).chmod(0)
    assert cli.main(["plan", "-i", "hosts"]) == ExitCode.ERROR
    assert capsys.readouterr().err.startswith(f"gpuprov: {file}: cannot be read: Permission denied\n")
