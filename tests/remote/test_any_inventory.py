"""`gpuprov plan` reaches exactly the nodes that `ansible -m ping` reaches with the same inventory.
Covers inventory shapes of GPU projects, two configurations, three homes and one private sshd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible.module_utils.parsing.convert_bool import boolean  # type: ignore[import-untyped]

from provision import cli
from provision.commands import fleet_options, passwords, up
from provision.desired import inventory, variable_types
from provision.remote.ansible.runner import run_playbook
from provision.remote.reach.observe import observe
from provision.remote.ssh import config
from provision.runs.store import RunFolder
from tests.support import vault
from tests.support.sshd import Sshd

OWN = "ansible_port={port} ansible_user={user} ansible_ssh_private_key_file={key}"
# A project's ansible.cfg in the working folder, and another project's, with a user unknown here.
WHOLE = """\
[defaults]
remote_user = {user}
remote_port = {port}
private_key_file = keys/id
interpreter_python = {python}
timeout = 20
[ssh_connection]
ssh_args = -o ControlMaster=no -o IdentitiesOnly=yes
ssh_common_args = {args}
"""
FOREIGN = """\
[defaults]
remote_user = nobody-here
interpreter_python = {python}
[ssh_connection]
ssh_args = -o ControlMaster=no -o IdentityAgent=none
"""
SCRIPT = """\
#!{python}
import json, sys
local = {{"ansible_host": "127.0.0.1"}}
hosts = {{"gpu-01": local, "gpu-02": {{**local, "ansible_port": 1}}}}
if sys.argv[1] == "--host":
    print(json.dumps(hosts[sys.argv[2]]))
else:
    print(json.dumps({{"gpus": {{"hosts": list(hosts), "vars": {{"rack": 1}}}}{meta}}}))
"""


@dataclass(frozen=True)
class Shape:
    """An inventory and the nodes it reaches with the project's ansible.cfg and with a foreign one."""

    files: dict[str, str]
    reached: set[str]
    alone: set[str] = field(default_factory=set)
    source: str = ""
    only_home: str = ""  # the home this shape needs


SHAPES = {
    "kubespray": Shape(
        {
            "inventory.ini": "[all]\nnode1 ansible_host=127.0.0.1 ip=10.3.0.1 etcd_member_name=etcd1\n"
            "node2 ansible_host=127.0.0.1 ansible_port=1\n\n[kube_control_plane]\nnode1\n[etcd]\nnode1\n"
            "[kube_node]\nnode1\nnode2\n[calico_rr]\n[k8s_cluster:children]\nkube_control_plane\nkube_node\n"
        },
        {"node1"},
    ),
    "deepops": Shape(
        {
            "config/inventory": "[all]\nmgmt01  ansible_host=127.0.0.1\ngpu01   ansible_host=127.0.0.1\n"
            "#gpu02  ansible_host=10.0.0.2\n[slurm-master]\nmgmt01\n[slurm-node]\ngpu01\n"
            "[slurm-cluster:children]\nslurm-master\nslurm-node\n[all:vars]\nansible_user={user}\n"
            "ansible_port={port}\nansible_ssh_private_key_file='{key}'\nansible_ssh_common_args='{args}'\n"
        },
        {"mgmt01", "gpu01"},
        {"mgmt01", "gpu01"},
    ),
    "ranges in YAML": Shape(
        {"i.yml": "all:\n  children:\n    gpus:\n      hosts: {{'gpu-[01:03]': }}\n"
         "      vars: {{ansible_host: 127.0.0.1}}\n"},
        {"gpu-01", "gpu-02", "gpu-03"},
    ),
    "gpu operator": Shape(
        {"hosts": "[master]\n127.0.0.1 ansible_ssh_port={port} ansible_ssh_user={user} "
         "ansible_ssh_private_key_file={key} ansible_ssh_extra_args='{args}'\n[nodes]\n"},
        {"127.0.0.1"},
        {"127.0.0.1"},
    ),
    "group_vars and host_vars": Shape(
        {
            "i/hosts": "[login]\nlogin\n[compute]\nc[1:2]\n",
            "i/group_vars/all/main.yml": "ansible_host: 127.0.0.1\n",
            "i/group_vars/compute.yml": "ansible_port: 1\n",
            "i/host_vars/c2/connection.yaml": "ansible_port: {port}\nansible_ssh_private_key_file: {key}\n",
            "i/host_vars/c2/more.json": '{{"ansible_user": "{user}", "ansible_ssh_common_args": "{args}"}}',
        },
        {"login", "c2"},
        {"c2"},
        source="i/hosts",
    ),
    "a vaulted file": Shape(
        {
            "i/hosts.yml": "all: {{hosts: {{gpu-01: {{ansible_host: 127.0.0.1}}}}}}\n",
            "i/group_vars/all/vars.yml": 'ansible_user: "{{{{ vault_user }}}}"\n',
            "i/group_vars/all/vault.yml": "VAULT vault_user: {user}\n",
        },
        {"gpu-01"},
        source="i/hosts.yml",
    ),
    "a comma list": Shape({}, {"127.0.0.1"}, source="127.0.0.1,no-such-host.invalid,"),
    "a folder of several files": Shape(
        {
            "i/01-static": "[rack1]\ngpu-01\n",
            "i/02-more.yml": "rack2: {{hosts: {{gpu-02: }}}}\n",
            "i/group_vars/all.yml": "ansible_host: 127.0.0.1\n",
            "i/group_vars/rack2.yml": "ansible_user: nobody-here\n",
            "i/README.md": "not an inventory\n",
        },
        {"gpu-01"},
        source="i",
    ),
    "the constructed plugin": Shape(
        {
            "i/hosts": "gpu-01 rack=a\ngpu-02 rack=b\n",
            "i/zz.constructed.yml": "plugin: ansible.builtin.constructed\nstrict: true\ncompose:\n"
            "  ansible_host: \"'127.0.0.1' if rack == 'a' else '127.0.0.1.invalid'\"\n"
            "keyed_groups: [{{key: rack, prefix: rack}}]\n",
        },
        {"gpu-01"},
        source="i",
    ),
    "a script": Shape(
        {"inv.py": SCRIPT.replace("{meta}", ', "_meta": {{"hostvars": hosts}}')}, {"gpu-01"}
    ),
    "a script that is asked for each host": Shape({"inv.py": SCRIPT.replace("{meta}", "")}, {"gpu-01"}),
    "a jump host": Shape(
        {
            "hosts": f"gpu-01 ansible_host=127.0.0.1 {OWN}\n[all:vars]\n"
            "ansible_ssh_common_args=-F {folder}/ssh_config -o ProxyJump=bastion\n",
            "ssh_config": "Host bastion\n HostName 127.0.0.1\n Port {port}\n User {user}\n"
            "Host *\n IdentityFile {key}\n IdentitiesOnly yes\n UserKnownHostsFile {known}\n",
        },
        {"gpu-01"},
        {"gpu-01"},
    ),
    "this machine": Shape(
        {"hosts": "localhost ansible_connection=local\ngpu-01 ansible_host=127.0.0.1\n"},
        {"localhost", "gpu-01"},
        {"localhost"},
    ),
    "groups in groups": Shape(
        {
            "i.yml": "all:\n  vars: {{ansible_port: 1, ansible_host: 127.0.0.1}}\n  children:\n    site:\n"
            "      children:\n        row:\n          vars: {{ansible_port: 2}}\n          children:\n"
            "            rack:\n              vars: {{ansible_port: {port}}}\n              hosts: {{a: }}\n"
            "          hosts: {{b: }}\n"
        },
        {"a"},
    ),
    "IPv6": Shape(
        {"i.yml": 'all: {{hosts: {{gpu-01: {{ansible_host: "::ffff:127.0.0.1"}}, "::ffff:127.0.0.2": }}}}\n'},
        {"gpu-01"},
    ),
    "a port behind the name": Shape(
        {"hosts": "127.0.0.1:{port} ansible_user={user} ansible_private_key_file={key}\n"}, {"127.0.0.1"}
    ),
    "templates": Shape(
        {
            "i.yml": "all:\n  vars:\n    net: 127.0.0\n    base: 0\n"
            '    ansible_host: "{{{{ net }}}}.{{{{ rack }}}}"\n'
            '    ansible_port: "{{{{ base | int + {port} }}}}"\n'
            "    ansible_user: \"{{{{ lookup('ansible.builtin.env', 'NODE_USER') }}}}\"\n"
            "  hosts: {{gpu-01: {{rack: 1}}, gpu-02: {{rack: 1, base: '1'}}}}\n"
        },
        {"gpu-01"},
    ),
    "old names": Shape(
        {"hosts": "gpu-01 ansible_ssh_host=127.0.0.1 ansible_host=127.0.0.9 ansible_ssh_user={user} "
         "ansible_user=nobody-here\n"},
        {"gpu-01"},
    ),
    "JSON": Shape(
        {
            "i.json": '{{"all": {{"vars": {{"ansible_host": "127.0.0.1"}}, "hosts": {{'
            '"gpu-01": {{"ansible_port": "{port}"}}, "gpu-02": {{"ansible_ssh_common_args": ""}}}}}}}}'
        },
        {"gpu-01"},
    ),
    "a key in one's home": Shape(
        {"hosts": "gpu-01 ansible_host=127.0.0.1 ansible_ssh_private_key_file=~/id\n"},
        {"gpu-01"},
        only_home="another",
    ),
    "host keys that nobody checks": Shape(
        {"hosts": f"gpu-01 ansible_host=127.0.0.1 {OWN} ansible_host_key_checking=false\n"},
        {"gpu-01"},
        {"gpu-01"},
    ),
}  # fmt: skip
HOMES = ("own", "another", "none")
CONFIGS = ("project", "foreign")
# Each run checks a few of each kind against Ansible's own answer; `--long` checks all.
FEW = [("deepops", "project", "another"), ("kubespray", "foreign", "none"), ("IPv6", "project", "own")]
ALL = [(shape, cfg, home) for shape in SHAPES for cfg in CONFIGS for home in HOMES]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd) -> Iterator[Callable[..., Path]]:
    """Build an inventory and its surroundings, enter the working folder and return its path."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NODE_USER", sshd.user)
    monkeypatch.setenv("ANSIBLE_NOCOLOR", "1")
    work = tmp_path / "work"
    (work / "keys").mkdir(parents=True)
    shutil.copy(sshd.key_file, work / "keys/id")
    known = work / "known_hosts"
    line = sshd.known_hosts.read_text()
    known.write_text(line + line.replace("127.0.0.1", "::ffff:127.0.0.1"))
    args = f"-F none -o UserKnownHostsFile={known} -o GlobalKnownHostsFile=/dev/null -o IdentityAgent=none"
    values = {"port": sshd.port, "user": sshd.user, "key": work / "keys/id", "known": known, "args": args}
    values |= {"folder": work, "python": sys.executable}
    # At most Ansible reads this home's files: ssh takes its home folder from the password database.
    another = tmp_path / "home"
    (another / ".ssh").mkdir(parents=True)
    (another / ".ssh/config").write_text("Host *\n Port 1\n")
    (another / ".ansible.cfg").write_text("[defaults]\nremote_user = wrong\n")
    shutil.copy(sshd.key_file, another / "id")

    def made(shape: Shape, cfg: str, home: str) -> Path:
        for name, text in shape.files.items():
            file = work / name
            file.parent.mkdir(parents=True, exist_ok=True)
            text = text.format(**values)
            file.write_text(text.removeprefix("VAULT "))
            if text.startswith("VAULT "):
                vault.run(vault.password_file(tmp_path), "encrypt", file)
            if text.startswith("#!"):
                file.chmod(0o755)
        if cfg == "project":
            (work / "ansible.cfg").write_text(WHOLE.format(**values))
        else:
            (tmp_path / "foreign.cfg").write_text(FOREIGN.format(**values))
            monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "foreign.cfg"))
        if any(text.startswith("VAULT ") for text in shape.files.values()):
            monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "password"))
        if home != "own":
            monkeypatch.setenv("HOME", str({"another": another, "none": tmp_path / "nowhere"}[home]))
        monkeypatch.chdir(work)
        return work

    config.login.cache_clear()
    yield made
    config.login.cache_clear()


def source_of(shape: Shape) -> str:
    return shape.source or next(iter(shape.files))


def planned(shape: Shape) -> set[str]:
    """Return the nodes that the observation of `gpuprov plan` reaches."""
    words = ["plan", "-i", source_of(shape), "--set", "ansible_become=false"]
    options = cli.parsed(words)
    fleet, _ = fleet_options.load(options)
    files = fleet.vault_password_files
    seen = observe(list(fleet.nodes.values()), {}, timeout=30, vault_password_files=files)
    return {name for name, observation in seen.items() if observation.error is None}


def played(shape: Shape, folder: Path) -> set[str]:
    """Return the nodes that a play of `gpuprov up` reaches."""
    playbook = folder / "ping.yml"
    playbook.write_text("- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.ping: }]\n")
    options = cli.parsed(["up", "-i", source_of(shape)])
    fleet, _ = fleet_options.load(options)
    outcomes = run_playbook(
        playbook,
        {name: node.variables for name, node in fleet.nodes.items()},
        vault_password_files=fleet.vault_password_files,
    )
    return {name for name, outcome in outcomes.items() if outcome.status == "ok"}


def pinged(shape: Shape) -> set[str]:
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible", "all", "-i", source_of(shape), "-m", "ping", "-o"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "pong" in done.stdout or done.returncode != 0, done.stderr
    return set(re.findall(r"^(\S+) \| SUCCESS", done.stdout, re.MULTILINE))


def wanted(name: str, cfg: str, home: str) -> set[str]:
    shape = SHAPES[name]
    if shape.only_home not in ("", home):
        return set()
    return shape.reached if cfg == "project" else shape.alone


@pytest.mark.parametrize("name", SHAPES)
def test_plan_reaches_what_an_inventory_describes(name: str, place: Callable[..., Path]) -> None:
    place(SHAPES[name], "project", "another")
    assert planned(SHAPES[name]) == wanted(name, "project", "another")


@pytest.mark.parametrize(("name", "cfg", "home"), FEW)
def test_plan_reaches_what_ansible_reaches(
    name: str, cfg: str, home: str, place: Callable[..., Path]
) -> None:
    work = place(SHAPES[name], cfg, home)
    assert planned(SHAPES[name]) == pinged(SHAPES[name]) == wanted(name, cfg, home)
    assert played(SHAPES[name], work) == wanted(name, cfg, home)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "cfg", "home"), [each for each in ALL if each not in FEW])
def test_plan_reaches_what_ansible_reaches_everywhere(
    name: str, cfg: str, home: str, place: Callable[..., Path]
) -> None:
    work = place(SHAPES[name], cfg, home)
    assert planned(SHAPES[name]) == pinged(SHAPES[name]) == wanted(name, cfg, home)
    assert played(SHAPES[name], work) == wanted(name, cfg, home)


PASSWORD = "sesame-open-4711"


def test_a_password_that_was_typed_is_kept_nowhere(
    place: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place(SHAPES["kubespray"], "project", "another")
    typed = iter([PASSWORD, "", PASSWORD])
    monkeypatch.setattr(passwords, "typed", lambda *_words, **_may: next(typed))
    cli.main(["drift", "-i", "inventory.ini", "-kK", "--json"])
    said = capfd.readouterr()
    assert "node1" in said.out
    assert PASSWORD not in said.out + said.err
    # A resumed run: the state records that there was a password, and the user is prompted again.
    asked = cli.parsed(["up", "-i", "inventory.ini", "-K", "-u", "ops"])
    fleet, _ = fleet_options.load(asked)
    assert fleet.nodes["node1"].variables["ansible_become_password"] == PASSWORD
    RunFolder.create("up", up._remembered(asked)).note(inventory="inventory.ini", nodes=["node1"])
    again = cli.parsed(["up", "--resume"])
    up._resumed(again)
    assert (again.ask_become_pass, again.ask_pass, again.user) == (True, False, "ops")
    kept = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert len(kept) > 3
    assert not [file for file in kept if PASSWORD.encode() in file.read_bytes()]


SPELLED = (
    "true",
    "True",
    "yes",
    "on",
    "1",
    "TRUE",
    "Yes",
    "false",
    "False",
    "no",
    "off",
    "0",
    "No",
    "'False'",
)


def test_a_truth_in_ini_means_what_it_means_to_ansible(tmp_path: Path) -> None:
    """Covers host variables and group variables."""
    lines = [f"h{number} nvidia_driver_hold={word}\n" for number, word in enumerate(SPELLED)]
    for number, word in enumerate(SPELLED):
        lines.append(
            f"[g{number}]\nk{number}\n[g{number}:vars]\nansible_become = {word}\ngpuprov_canary={word}\n"
        )
    (tmp_path / "hosts").write_text("".join(lines))
    nodes = variable_types.typed(inventory.load(tmp_path / "hosts")).nodes
    for number, word in enumerate(SPELLED):
        meant = boolean(word.strip("'"))
        assert nodes[f"h{number}"].variables["nvidia_driver_hold"] is meant, word
        assert nodes[f"k{number}"].variables["ansible_become"] is meant, word
        assert nodes[f"k{number}"].variables["gpuprov_canary"] is meant, word


def test_texts_and_numbers_become_what_the_roles_want(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        'a nvidia_driver_version=580 gpuprov_roles=nccl,rdma gpuprov_expected_gpus=8 nccl_version="{{ x }}"\n'
        "b other=false\nc other=false\n"
    )
    fleet = inventory.load(tmp_path / "hosts")
    nodes = variable_types.typed(fleet).nodes
    assert nodes["a"].variables == {
        "nvidia_driver_version": "580",
        "gpuprov_roles": ["nccl", "rdma"],
        "gpuprov_expected_gpus": 8,
        "nccl_version": "{{ x }}",
    }
    assert nodes["b"].variables == {"other": "false"}
    assert nodes["b"].variables is fleet.nodes["b"].variables
