"""The Ansible collection that is built from the roles and modules of this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from provision.paths import NODE, PACKAGE, ROLES
from provision.remote import node_program

ROOT = PACKAGE.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of collections with ours in it, installed from the archive."""
    folder = tmp_path_factory.mktemp("collection")
    words = [sys.executable, str(ROOT / "scripts" / "collection.py"), "--output", str(folder)]
    built = subprocess.run(words, check=True, capture_output=True, text=True, timeout=100, cwd=folder)
    archive = Path(built.stdout.strip())
    with tarfile.open(archive) as found:
        assert "roles/nccl/tasks/main.yml" in found.getnames()
    _ansible("ansible-galaxy", folder, "collection", "install", str(archive), "-p", str(folder))
    return folder


def _ansible(program: str, collections: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A program of Ansible's that finds no role or module but those of the collection."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(program)), *words],
        capture_output=True, text=True, timeout=100, check=False, cwd=collections,
        env={
            **{"HOME": str(collections), "LC_ALL": "C.UTF-8"},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": str(collections),
        },
    )  # fmt: skip


def test_every_role_is_found_with_all_its_modules(installed: Path) -> None:
    roles = sorted(folder.name for folder in ROLES.iterdir() if folder.is_dir())
    remove = [
        {"ansible.builtin.import_role": {"name": f"gpuprov.gpu.{role}", "tasks_from": "remove"}}
        for role in roles
    ]
    play = [
        {"hosts": "all", "become": True, "roles": [f"gpuprov.gpu.{role}" for role in roles], "tasks": remove}
    ]
    (installed / "play.yml").write_text(json.dumps(play))
    done = _ansible("ansible-playbook", installed, "-i", "node,", "--syntax-check", "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_module_describes_a_node_and_reads_facts_by_name(installed: Path) -> None:
    asked = {"facts": ["sysctl.kernel.ostype.value", "no.such"]}
    words = ["localhost", "-c", "local", "-m", "gpuprov.gpu.node_facts", "-a", json.dumps(asked)]
    done = _ansible("ansible", installed, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.partition("=>")[2])
    assert found["facts"]["sysctl.kernel.ostype.value"] == "Linux"
    assert found["problems"] == {"no.such": "no such fact"}
    assert found["ansible_facts"]["gpuprov_node"]["kernel"]["release"] == os.uname().release


def test_the_module_knows_every_family_of_facts() -> None:
    text = (NODE / "modules" / "node_facts.py").read_text()
    listed = text.partition("import (  # noqa: E402, F401\n")[2].partition(")")[0]
    assert {name.strip(" ,") for name in listed.splitlines() if name.strip()} == node_program.families()


def test_ansible_doc_shows_options_returns_and_two_examples(installed: Path) -> None:
    done = _ansible("ansible-doc", installed, "--json", "gpuprov.gpu.node_facts")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)["gpuprov.gpu.node_facts"]
    assert set(shown["doc"]["options"]) == {"facts", "timeout"}
    assert {"facts", "problems", "root", "ansible_facts"} <= set(shown["return"])
    assert shown["examples"].count("gpuprov.gpu.node_facts:") == 2
