"""Every way to disable host key checking, for gpuprov's own connections and for Ansible's: an unknown
key is accepted and stored, a changed one is refused. Uses a real sshd and this machine's ssh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.desired.inventory.ansible import ansible_settings
from provision.fleet import Fleet, Node
from provision.remote.ansible.runner import run_playbook
from provision.remote.protocol import NodeError
from provision.remote.ssh import connection
from provision.remote.ssh import known_hosts as host_keys
from provision.remote.ssh.client import Ssh
from provision.remote.ssh.config import ConfigFiles
from provision.remote.ssh.connection import route_of
from tests.support.sshd import Sshd

ANSWER = "@gpuprov-facts 1 2\n{}\n@gpuprov-end\n"
PROGRAM = f"import sys\nsys.stdout.write({ANSWER!r})\n".encode()
Form = Callable[[Node, Path], Node]
NO = "-o StrictHostKeyChecking=no"
PLAY = "- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.raw: 'echo reached'}]\n"


def given(**variables: Any) -> Form:
    return lambda node, _folder: replace(node, variables={**node.variables, **variables})


def arguments(name: str, text: str) -> Form:
    def form(node: Node, _folder: Path) -> Node:
        before = str(node.variables.get(name, ""))
        return replace(node, variables={**node.variables, name: f"{text} {before}"})

    return form


def by_settings(name: str, text: str) -> Form:
    """Disable checking by ansible.cfg or the environment; the settings become node variables."""

    def form(node: Node, folder: Path) -> Node:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            if name == "ansible.cfg":
                (folder / name).write_text(text)
                patch.setenv("ANSIBLE_CONFIG", str(folder / name))
            else:
                patch.setenv(name, text)
            settings = ansible_settings.read().variables
        return ansible_settings.with_defaults(Fleet(folder, {node.name: node}, {}), settings).nodes[node.name]

    return form


def by_file(text: str) -> Form:
    """Disable checking by an ssh_config included from another one."""

    def form(node: Node, folder: Path) -> Node:
        (folder / "included").write_text(text)
        (folder / "config").write_text(f"Host *\n  IdentityAgent none\nInclude {folder}/included\n")
        common = str(node.variables["ansible_ssh_common_args"])
        assert "-F none" in common
        changed = common.replace("-F none", f"-F {folder}/config")
        return replace(node, variables={**node.variables, "ansible_ssh_common_args": changed})

    return form


FORMS: Mapping[str, Form] = {
    "variable": given(ansible_host_key_checking=False),
    "variable of ssh": given(ansible_ssh_host_key_checking="no"),
    "ansible.cfg": by_settings("ansible.cfg", "[defaults]\nhost_key_checking = False\n"),
    "environment": by_settings("ANSIBLE_HOST_KEY_CHECKING", "False"),
    "common arguments": arguments("ansible_ssh_common_args", NO),
    "arguments": arguments("ansible_ssh_args", '-C -o "StrictHostKeyChecking = off"'),
    "extra arguments": arguments("ansible_ssh_extra_args", '-oStrictHostKeyChecking="No"'),
    "ssh_config": by_file("Host 127.0.0.*\n  StrictHostKeyChecking no\n"),
}


@pytest.fixture
def nodes(sshd: Sshd, tmp_path: Path) -> dict[str, Node]:
    """Return one node per form, each with its own, still missing known_hosts file."""
    made = {}
    for number, (name, form) in enumerate(FORMS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        # Without ControlMaster: all nodes are the same server and would share one connection.
        bare = sshd.node(f"gpu-{number}", known_hosts=folder / "known_hosts", ansible_ssh_args="-C")
        node = form(bare, folder)
        made[name] = replace(node, variables={**node.variables, "ansible_become": False})
    return made


def by_ansible(nodes: Mapping[str, Node], tmp_path: Path, **extra: Any) -> dict[str, str]:
    """Return form → outcome of the play: `reached` or ssh's error message."""
    playbook = tmp_path / "play.yml"
    playbook.write_text(PLAY)
    hosts = {node.name: node.variables for node in nodes.values()}
    ends = run_playbook(playbook, hosts, extra_vars=extra, timeout=120)
    return {
        name: "reached" if ends[node.name].status == "ok" else ends[node.name].message
        for name, node in nodes.items()
    }


def by_us(nodes: Mapping[str, Node]) -> dict[str, str]:
    found = {}
    for name, node in nodes.items():
        ssh = Ssh()
        try:
            answer = ssh.ask(route_of(node, ConfigFiles()), PROGRAM, 20)
            found[name] = "reached" if ANSWER.encode() in answer else repr(answer)
        except NodeError as error:
            found[name] = error.what
        finally:
            ssh.close()
    return found


def known_hosts(tmp_path: Path) -> list[Path]:
    return [tmp_path / str(number) / "known_hosts" for number in range(len(FORMS))]


REACHED = dict.fromkeys(FORMS, "reached")


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("how", ["us", "ansible"])
def test_an_unknown_key_is_accepted_and_kept(
    nodes: Mapping[str, Node], sshd: Sshd, tmp_path: Path, how: str
) -> None:
    assert (by_us(nodes) if how == "us" else by_ansible(nodes, tmp_path)) == REACHED
    for file in known_hosts(tmp_path):
        assert f"[127.0.0.1]:{sshd.port} " in file.read_text()


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])  # this sshd has no rsa key, so it presents another type
@pytest.mark.parametrize("how", ["us", "ansible"])
def test_a_changed_key_is_refused(
    nodes: Mapping[str, Node], own_sshd: Sshd, sshd: Sshd, tmp_path: Path, how: str, kind: str
) -> None:
    public = own_sshd.keygen("another", kind).with_suffix(".pub").read_text().split()[:2]
    for file in known_hosts(tmp_path):
        file.write_text(f"[127.0.0.1]:{sshd.port} {' '.join(public)}\n")
    before = sshd.logins()
    found = by_us(nodes) if how == "us" else by_ansible(nodes, tmp_path)
    assert sshd.logins() == before, found
    assert not [name for name, text in found.items() if "host key" not in text.lower()], found
    assert {file.read_text().count("\n") for file in known_hosts(tmp_path)} == {1}


@pytest.mark.usefixtures("memory")
def test_extra_variables_and_what_only_ansible_reaches_are_no_way_around_it(
    nodes: Mapping[str, Node], own_sshd: Sshd, sshd: Sshd, tmp_path: Path
) -> None:
    """`--set` overrides node variables; nodes with an option unknown to gpuprov are left to Ansible."""
    foreign = {
        name: replace(node, variables={**node.variables, "ansible_become_exe": "/usr/bin/sudo"})
        for name, node in nodes.items()
    }
    assert by_ansible(foreign, tmp_path, ansible_host_key_checking=False) == REACHED
    public = own_sshd.keygen("another").with_suffix(".pub").read_text().split()[:2]
    for file in known_hosts(tmp_path):
        file.write_text(f"[127.0.0.1]:{sshd.port} {' '.join(public)}\n")
    before = sshd.logins()
    outcomes = by_ansible(foreign, tmp_path, ansible_host_key_checking=False, ansible_ssh_args=NO)
    assert sshd.logins() == before, outcomes
    assert not [name for name, text in outcomes.items() if "host key" not in text.lower()], outcomes


def test_a_jump_host_that_the_ssh_config_does_not_check_is_checked(
    own_sshd: Sshd, sshd: Sshd, tmp_path: Path
) -> None:
    changed = tmp_path / "changed"
    public = own_sshd.keygen("another").with_suffix(".pub").read_text().split()[:2]
    changed.write_text(f"[127.0.0.1]:{own_sshd.port} {' '.join(public)}\n")
    (tmp_path / "config").write_text(
        f"Host jump\n HostName 127.0.0.1\n Port {own_sshd.port}\n StrictHostKeyChecking no\n"
        f" User {sshd.user}\n IdentityFile {own_sshd.key_file}\n UserKnownHostsFile {changed}\n"
    )
    way = f"-F {tmp_path}/config -o UserKnownHostsFile={sshd.known_hosts} -o ProxyJump=jump"
    found = by_us({"jump": sshd.node(ansible_ssh_common_args=way)})["jump"]
    assert found.startswith("jump host"), found
    assert "CHANGED" in found
    assert own_sshd.logins() == 0


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("how", ["us", "ansible"])
def test_keys_that_a_user_sends_to_dev_null_are_kept_all_the_same(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    kept = tmp_path / "kept"
    for module in (connection, host_keys):
        monkeypatch.setattr(module, "KEPT_KEYS", str(kept))
    node = sshd.node(known_hosts="/dev/null", ssh_args=NO, ansible_become=False)
    nodes = {"null": node}
    assert (by_us(nodes) if how == "us" else by_ansible(nodes, tmp_path)) == {"null": "reached"}
    assert f"[127.0.0.1]:{sshd.port} " in kept.read_text()


def test_every_run_has_one_line_about_it(nodes: Mapping[str, Node], sshd: Sshd, tmp_path: Path) -> None:
    everyone = f"host key checking is off for gpu-[0-6] and in {tmp_path}/7/config: "
    assert host_keys.note(nodes.values()) == (
        everyone + "an unknown key is accepted and kept, a changed one is refused"
    )
    assert host_keys.note([sshd.node(), sshd.node(ssh_args="-o StrictHostKeyChecking=accept-new")]) == ""
