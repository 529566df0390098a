"""The Ansible collection that is built from the roles and modules of this repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.paths import NODE, ROLES
from provision.remote import node_program
from tests.support.collection import Controller, build, play

LOCAL = ("-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}")
# A cached description, deliberately of another machine.
REMEMBERED = {
    "os": {"id": "debian", "version_id": "1", "family": "debian"},
    "kernel": {"release": "remembered"},
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the role looks as root: sudo scripts/test")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Controller:
    """Install the collection from its archive for the Ansible of this environment."""
    made = Controller(tmp_path_factory.mktemp("collection"), Path(sys.executable).parent)
    made.install(build(tmp_path_factory.mktemp("archive")))
    return made


def test_every_role_is_found_with_all_its_modules(controller: Controller) -> None:
    roles = sorted(folder.name for folder in ROLES.iterdir() if folder.is_dir())
    removals = [
        {"ansible.builtin.import_role": {"name": f"gpuprov.gpu.{role}", "tasks_from": "remove"}}
        for role in roles
    ]
    done = controller.play(play(*roles, tasks=removals), "-i", "node,", "--syntax-check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_step_is_chosen_by_its_tag_with_what_it_builds_on(controller: Controller) -> None:
    done = controller.play(play("nccl"), "-i", "node,", "--list-tasks", "--tags", "nccl_configure")
    listed = [line.partition("TAGS:")[0] for line in done.stdout.splitlines() if "TAGS:" in line]
    for part in ("Gather node facts", "Validate role variables and prerequisites", "Pin the NCCL build"):
        assert [line for line in listed if part in line], done.stdout
    assert not [line for line in listed if "Install NCCL" in line]


def test_the_module_describes_a_node_and_reads_facts_by_name(controller: Controller) -> None:
    asked = {"facts": ["sysctl.kernel.ostype.value", "no.such"]}
    words = ["localhost", "-c", "local", "-m", "gpuprov.gpu.node_facts", "-a", json.dumps(asked)]
    found = json.loads(controller.call("ansible", *words).partition("=>")[2])
    assert found["facts"]["sysctl.kernel.ostype.value"] == "Linux"
    assert found["problems"] == {"no.such": "no such fact"}
    assert found["ansible_facts"]["gpuprov_node"]["kernel"]["release"] == os.uname().release


def described(**keywords: Any) -> dict[str, Any]:
    """Run a play of node_facts that prints the description before it and the one that roles get after it."""
    show = {"ansible.builtin.debug": {"msg": "{{ gpuprov_node.kernel.release | default('none') }}"}}
    before = [*keywords.pop("pre_tasks", []), {"name": "given", **show}]
    return play(
        "node_facts", become=False, gather_facts=False, pre_tasks=before, post_tasks=[show], **keywords
    )


def releases(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the kernel releases in the descriptions that `described` printed."""
    return re.findall(r'"msg": "(.*)"', done.stdout)


@needs_root
@pytest.mark.parametrize("origin", ["a cache of facts", "an earlier task", "the playbook"])
def test_a_description_of_another_moment_or_machine_is_not_used(
    controller: Controller, origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember = {
        "ansible.builtin.set_fact": {"gpuprov_node": REMEMBERED, "cacheable": origin == "a cache of facts"}
    }
    facts = {"hosts": "all", "gather_facts": False, "tasks": [remember]}
    if origin == "a cache of facts":
        monkeypatch.setitem(controller.settings, "ANSIBLE_CACHE_PLUGIN", "jsonfile")
        monkeypatch.setitem(controller.settings, "ANSIBLE_CACHE_PLUGIN_CONNECTION", str(tmp_path))
        assert controller.play(facts, *LOCAL).returncode == 0
        done = controller.play(described(), *LOCAL)
    elif origin == "an earlier task":
        done = controller.play(described(pre_tasks=[remember]), *LOCAL)
    else:
        done = controller.play(described(vars={"gpuprov_node": REMEMBERED}), *LOCAL)
    assert releases(done) == ["remembered", os.uname().release], done.stdout + done.stderr


@needs_root
def test_a_description_that_cannot_be_replaced_is_refused(controller: Controller) -> None:
    done = controller.play(described(), *LOCAL, "-e", json.dumps({"gpuprov_node": REMEMBERED}))
    assert done.returncode == 2
    assert "gpuprov_node is given with -e or as a variable of a role" in done.stdout


def test_what_gpuprov_hands_over_is_used_without_a_second_look(controller: Controller) -> None:
    handed = {"gpuprov_node": REMEMBERED, "gpuprov_run": "run-1"}
    done = controller.play(described(vars=handed), *LOCAL)
    assert releases(done) == ["remembered", "remembered"], done.stdout + done.stderr


def test_the_module_knows_every_family_of_facts() -> None:
    text = (NODE / "modules" / "node_facts.py").read_text()
    listed = text.partition("import (  # noqa: E402, F401\n")[2].partition(")")[0]
    assert {name.strip(" ,") for name in listed.splitlines() if name.strip()} == node_program.families()


def test_ansible_doc_shows_options_returns_and_two_examples(controller: Controller) -> None:
    shown = json.loads(controller.call("ansible-doc", "--json", "gpuprov.gpu.node_facts"))
    described = shown["gpuprov.gpu.node_facts"]
    assert set(described["doc"]["options"]) == {"facts", "timeout"}
    assert {"facts", "problems", "root", "ansible_facts"} <= set(described["return"])
    assert described["examples"].count("gpuprov.gpu.node_facts:") == 2
