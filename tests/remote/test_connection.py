"""Routes from Ansible's connection variables and ssh_config, compared with the output of `ssh -G`."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.fleet import Node
from provision.remote.ssh import config
from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError
from provision.remote.ssh.connection import Route, route_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the current user's home, both in the password database and in HOME."""
    monkeypatch.setenv("HOME", str(tmp_path))
    entry = SimpleNamespace(pw_name=getpass.getuser(), pw_dir=str(tmp_path))
    monkeypatch.setattr(config, "pwd", SimpleNamespace(getpwuid=lambda _number: entry))
    config.login.cache_clear()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr("provision.remote.ssh.config.SYSTEM_CONFIG", str(tmp_path / "system_config"))
    (tmp_path / ".ssh").mkdir()
    yield tmp_path
    config.login.cache_clear()


def routed(name: str = "gpu-01", **variables: Any) -> Route:
    return route_of(Node(name, (), variables), ConfigFiles())


def refused(**variables: Any) -> str:
    with pytest.raises(NotUnderstoodError) as caught:
        routed(**variables)
    return str(caught.value)


CONFIG = """\
Host gpu-*
    User=bob
    Port 2200
    IdentityFile ~/.ssh/fleet
    IdentityFile "~/.ssh/with space"
    ConnectTimeout 7
Host gpu-01 !gpu-02
    HostName %h.example.org
    ProxyJump alice@jump:2222,inner
    UserKnownHostsFile ~/.ssh/kh1 ~/.ssh/kh2
Match host *.example.org
    HostKeyAlias alias-of-%n
Match originalhost gpu-03 user bob
    HostName 10.0.0.3
Match final host gpu-04
    IdentitiesOnly yes
Include extra/*.conf
Host *
    User late
    ServerAliveInterval 30
    IdentityFile ~/.ssh/everywhere
"""


@pytest.mark.parametrize("name", ["gpu-01", "gpu-02", "gpu-03", "gpu-04", "other"])
@pytest.mark.parametrize("arguments", ["", "-o Port=99 -l carol", "-oIdentityFile=/k -J none -p 5"])
def test_options_mean_what_they_mean_to_ssh(home: Path, name: str, arguments: str) -> None:
    (home / ".ssh/config").write_text(CONFIG)
    (home / ".ssh/extra").mkdir()
    (home / ".ssh/extra/a.conf").write_text("Host other\n    Port 2300\n    IdentityFile /extra/%h\n")
    # ssh itself reads the home folder from the password database, not from the environment
    for file in (home / ".ssh/config", home / ".ssh/extra/a.conf"):
        text = file.read_text().replace("~/.ssh", f"{home}/.ssh").replace("extra/*", f"{home}/.ssh/extra/*")
        file.write_text(text)
    said = subprocess.run(
        ["ssh", "-G", "-F", str(home / ".ssh/config"), *arguments.split(), name],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    wanted: dict[str, list[str]] = {}
    for line in said.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        wanted.setdefault(keyword, []).append(value)
    target = routed(name, ansible_ssh_common_args=arguments).target
    assert target.host == wanted["hostname"][0]
    assert target.port == int(wanted["port"][0])
    assert target.user == wanted["user"][0]
    assert target.known_as == wanted.get("hostkeyalias", [""])[0].replace("%n", name)
    assert target.identities_only == (wanted["identitiesonly"][0] == "yes")
    assert target.connect_timeout == int(wanted.get("connecttimeout", ["10"])[0].replace("none", "10"))
    assert not target.default_keys
    assert list(target.key_files) == [value.replace("%h", target.host) for value in wanted["identityfile"]]
    if name == "gpu-01":
        assert list(target.user_known_hosts) == wanted["userknownhostsfile"][0].split()
    jumps = routed(name, ansible_ssh_common_args=arguments).jumps
    shown = ",".join(f"{hop.user}@{hop.host}:{hop.port}" for hop in jumps)
    has_jump = wanted.get("proxyjump", ["none"])[0] != "none"
    assert shown == ("alice@jump:2222,late@inner:22" if has_jump else "")


def test_a_plain_node(home: Path) -> None:
    way = routed("gpu-01")
    assert (way.target.host, way.target.port, way.target.user) == ("gpu-01", 22, getpass.getuser())
    assert way.target.default_keys
    assert way.target.user_known_hosts[0] == str(home / ".ssh/known_hosts")
    assert way.python == "python3"


@pytest.mark.usefixtures("home")
def test_ansible_variables() -> None:
    way = routed(
        ansible_host="10.0.0.1",
        ansible_port=2222,
        ansible_user="ops",
        ansible_ssh_private_key_file="/keys/ops",
        ansible_become_password="secret",
        ansible_python_interpreter="/usr/bin/python3.11",
        ansible_ssh_common_args="-o UserKnownHostsFile='/a b/kh' -o Port=1 -o StrictHostKeyChecking=yes",
    )
    assert (way.target.host, way.target.port, way.target.user) == ("10.0.0.1", 2222, "ops")
    assert way.target.key_files == ("/keys/ops",)
    assert way.become
    assert way.become_password == "secret"
    assert way.python == "/usr/bin/python3.11"
    assert "secret" not in repr(way)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("variables", "become"),
    [
        ({"ansible_user": "ops"}, True),
        ({"ansible_user": "ops", "ansible_become": False}, False),
        ({"ansible_user": "ops", "ansible_become": "no"}, False),
        ({"ansible_user": "root"}, False),
        ({"ansible_user": "root", "ansible_become": True}, False),
    ],
)
def test_become_as_our_playbooks_do(variables: dict[str, Any], become: bool) -> None:
    assert routed(**variables).become is become


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "variables",
    [
        {"ansible_connection": "local"},
        {"ansible_connection": "community.docker.docker"},
        {"ansible_host": "{{ address }}"},
        {"ansible_password": {"__ansible_vault": "x"}},
        {"ansible_become_user": "oracle"},
        {"ansible_become_method": "doas"},
        {"ansible_become": "{{ maybe }}"},
        {"ansible_ssh_executable": "/opt/ssh"},
        {"ansible_python_interpreter": "/usr/bin/env python3"},
        {"ansible_python_interpreter": "python3; reboot"},
        {"ansible_ssh_common_args": "-o CertificateFile=/x"},
        {"ansible_ssh_common_args": "-o PKCS11Provider=/x"},
        {"ansible_ssh_common_args": "-o ProxyCommand='nc %h %p | tee log'"},
        {"ansible_ssh_common_args": "-o ProxyCommand='nc %h %p $(reboot)'"},
        {"ansible_ssh_common_args": "-o UnheardOf=1"},
        {"ansible_ssh_common_args": "-o 'unclosed"},
        {"ansible_ssh_common_args": "-W x"},
        {"ansible_ssh_extra_args": "host2"},
        {"ansible_port": "many"},
    ],
)
def test_what_is_left_to_ansible(variables: dict[str, Any]) -> None:
    assert refused(**variables)


@pytest.mark.parametrize(
    "config",
    [
        "Match exec /bin/true\n  User x\n",
        "Match canonical\n  User x\n",
        "User\n",
        "CanonicalizeHostname yes\n",
    ],
)
def test_a_config_file_only_ssh_can_be_trusted_with(home: Path, config: str) -> None:
    (home / ".ssh/config").write_text(config)
    assert refused()


def test_a_circle_of_jump_hosts_is_left_to_ssh(home: Path) -> None:
    (home / ".ssh/config").write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    assert "circles" in refused(ansible_host="a")


@pytest.mark.usefixtures("home")
def test_arguments_for_the_node_are_not_the_jump_hosts() -> None:
    way = routed(ansible_user="ops", ansible_ssh_common_args="-J jump -o UserKnownHostsFile=/kh -i /key")
    assert way.target.user_known_hosts == ("/kh",)
    assert way.jumps[0].user == getpass.getuser()
    assert way.jumps[0].user_known_hosts != ("/kh",)
    assert way.jumps[0].default_keys


def test_ssh_takes_its_home_from_the_list_of_users_and_ansible_its_own_from_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("LOGNAME", "somebody")
    (home / ".ssh/config").write_text("Host *\n Port 2200\n")
    way = routed(ansible_ssh_private_key_file="~/key", ansible_ssh_common_args="-i ~/more -o HostKeyAlias=%d")
    assert way.target.port == 2200
    assert way.target.user_known_hosts[0] == f"{home}/.ssh/known_hosts"
    assert way.target.key_files == ("/elsewhere/key", f"{home}/more")
    assert way.target.known_as == str(home)
    assert way.target.user == config.login()[0] != "somebody"


@pytest.mark.usefixtures("home")
def test_of_several_names_for_one_thing_ansibles_last_one_counts() -> None:
    way = routed(ansible_user="a", ansible_ssh_user="b", ansible_port=1, ansible_ssh_port=2)
    assert (way.target.user, way.target.port) == ("b", 2)
    assert routed(ansible_host="a", ansible_ssh_host="b").target.host == "b"
