"""Ansible's connection settings from files and environment, converted to node variables.
Each keeps the meaning that it has for Ansible."""

from __future__ import annotations

import os
import pty
import re
import select
import stat
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.config.manager import find_ini_config_file  # type: ignore[import-untyped]
from ansible.plugins import become, connection  # type: ignore[import-untyped]

from provision.api import fleets
from provision.api.source import Source
from provision.commands import passwords
from provision.desired.inventory.ansible import ansible_settings
from provision.desired.inventory.ansible.ansible_settings import SETTINGS
from provision.errors import InventoryError, UsageError
from provision.fleet import Fleet, Node


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a working folder and a home, and clear the settings of the user who runs the tests."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(ansible_settings, "SYSTEM", tmp_path / "etc.cfg")
    monkeypatch.chdir(work)
    return work


def variables(text: str = "", **environment: str) -> dict[str, Any]:
    if text:
        Path("ansible.cfg").write_text(text)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        return dict(ansible_settings.read().variables)


def test_without_any_nothing_is_said() -> None:
    assert ansible_settings.read() == ansible_settings.Settings()


def test_what_a_file_says_of_connections() -> None:
    found = variables(
        "[defaults]\nremote_user = ops ; not root\nremote_port: 2222\nprivate_key_file = keys/id\ntimeout=7\n"
        "host_key_checking = no\ninterpreter_python = /opt/py\nforks = 500\nroles_path = x\n"
        "[ssh_connection]\nssh_args =\nssh_common_args = '-J jump'\npipelining = True\nretries = 3\n"
        "[privilege_escalation]\nbecome = True\nbecome_method = sudo\nbecome_user = root\n"
    )
    assert found == {
        "ansible_user": "ops",
        "ansible_port": 2222,
        "ansible_ssh_private_key_file": f"{Path.cwd()}/keys/id",
        "ansible_ssh_timeout": 7,
        "ansible_host_key_checking": False,
        "ansible_python_interpreter": "/opt/py",
        "ansible_ssh_args": "",
        "ansible_ssh_common_args": "-J jump",
        "ansible_ssh_retries": 3,
        "ansible_become_method": "sudo",
        "ansible_become_user": "root",
    }


def test_an_interpreter_that_is_looked_for_is_none() -> None:
    assert variables("[defaults]\ninterpreter_python = auto_silent\n") == {}


def test_the_environment_wins_over_the_file_and_a_path_is_of_where_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "there" / "x.cfg"
    file.parent.mkdir()
    file.write_text("[defaults]\nprivate_key_file = id\nremote_user = ops\n")
    named = {"ANSIBLE_CONFIG": str(file)}
    assert variables(**named)["ansible_ssh_private_key_file"] == f"{file.parent}/id"
    found = variables(**named, ANSIBLE_PRIVATE_KEY_FILE="id", ANSIBLE_REMOTE_USER="me")
    assert found == {"ansible_ssh_private_key_file": f"{Path.cwd()}/id", "ansible_user": "me"}
    assert variables(**named, ANSIBLE_PRIVATE_KEY_FILE="~/id")["ansible_ssh_private_key_file"] == str(
        Path.home() / "id"
    )
    assert variables(**named, ANSIBLE_REMOTE_USER="") == {"ansible_ssh_private_key_file": f"{file.parent}/id"}


@pytest.mark.parametrize("named", [None, "file", "folder", "nowhere"])
@pytest.mark.parametrize("open_to_all", [False, True])
@pytest.mark.parametrize("there", [(), ("here",), ("home",), ("here", "home")])
def test_the_file_that_counts_is_ansibles(
    tmp_path: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    open_to_all: bool,
    there: tuple[str, ...],
) -> None:
    chosen = {"file": tmp_path / "named.cfg", "folder": tmp_path / "f", "nowhere": tmp_path / "none"}
    chosen["file"].touch()
    chosen["folder"].mkdir()
    (chosen["folder"] / "ansible.cfg").touch()
    if named:
        monkeypatch.setenv("ANSIBLE_CONFIG", str(chosen[named]))
    for each in there:
        {"here": place / "ansible.cfg", "home": Path.home() / ".ansible.cfg"}[each].touch()
    if open_to_all:
        place.chmod(0o777)
    warnings: set[str] = set()
    wanted = find_ini_config_file(warnings)
    found, notes = ansible_settings._file()
    assert (str(found) if found else None) == wanted
    assert bool(notes) == bool(warnings)
    place.chmod(stat.S_IRWXU)


NONE = "not a configuration Ansible reads: that line "


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[defaults]\na = b\nremote_port = ssh\n", ":3: remote_port must be a whole number, not 'ssh'"),
        ("[defaults]\na=1\na=2\n", f":3: {NONE}is there twice"),
        ("[defaults]\nwhat is this\n", f":2: {NONE}is no `name = value`"),
        ("remote_user = a\n", f":1: {NONE}is no `name = value`"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_line(text: str, answer: str) -> None:
    with pytest.raises(InventoryError) as caught:
        variables(text)
    assert caught.value.what == f"{Path.cwd()}/ansible.cfg{answer}"


def test_that_plays_become_root_all_the_same_is_said() -> None:
    Path("ansible.cfg").write_text("[privilege_escalation]\nbecome = False\n")
    (note,) = ansible_settings.read().notes
    assert note.startswith(
        f"{Path.cwd()}/ansible.cfg:2: become is false, and the plays of gpuprov become root"
    )
    assert "ansible_become: false" in note
    assert not ansible_settings.read().variables


# Ansible options with variables that SETTINGS omits, and the reason.
LEFT_OUT = {
    "host": "has no setting",
    "remote_addr": "has no setting",
    "password": "has no setting",
    "pipelining": "on, always",
    "control_path": "a folder of the run's own",
    "control_path_dir": "a folder of the run's own",
    "verbosity": "up -v",
    "sudo_chdir": "bears on no connection",
    "async_dir": "bears on no connection",
    "system_tmpdirs": "bears on no connection",
    "admin_users": "bears on no connection",
    "common_remote_group": "for users other than root",
    "world_readable_temp": "for users other than root",
}


def test_every_setting_that_ansible_documents_of_its_connections_is_here() -> None:
    documented: dict[tuple[str, ...], tuple[list[str], list[tuple[str, str]]]] = {}
    folder = Path(connection.__file__).parent
    for file in (
        folder / "ssh.py",
        Path(become.__file__).parent / "sudo.py",
        folder.parent / "doc_fragments" / "shell_common.py",
    ):
        text = re.search(r'DOCUMENTATION = r?"""(.*?)"""', file.read_text(), re.DOTALL)
        assert text is not None
        for name, option in yaml.safe_load(text[1])["options"].items():
            if option.get("vars") and name not in LEFT_OUT:
                keys = [(each["section"], each["key"]) for each in option.get("ini", ())]
                names = tuple(each["name"] for each in option["vars"])
                documented[names] = ([each["name"] for each in option.get("env", ())], keys)
    assert len(documented) > 20
    ours = {frozenset(setting.names): setting for setting in SETTINGS}
    for names, (environment, keys) in documented.items():
        if "ansible_ssh_timeout" in names:  # see SETTINGS: the executor's value wins
            continue
        setting = ours[frozenset(names)]
        assert list(setting.environment) == environment, names
        assert list(setting.keys) == keys, names


def test_a_node_keeps_what_it_says_under_any_name_and_nodes_go_on_sharing() -> None:
    shared = {"a": 1}
    nodes = {
        "one": Node("one", (), shared),
        "two": Node("two", (), shared),
        "own": Node("own", (), {"ansible_ssh_user": "it", "ansible_port": 22}),
    }
    made = ansible_settings.with_defaults(
        Fleet(Path("x"), nodes, {}), {"ansible_user": "ops", "ansible_port": 2222}
    ).nodes
    assert made["one"].variables == {"a": 1, "ansible_user": "ops", "ansible_port": 2222}
    assert made["one"].variables is made["two"].variables
    assert made["own"].variables == {"ansible_ssh_user": "it", "ansible_port": 22}
    assert shared == {"a": 1}


# --- the command line ---


def completed(**options: Any) -> dict[str, Any]:
    fleet = Fleet(Path("x"), {"n": Node("n", (), {})}, {"all": ("n",)})
    made = fleets.completed(fleet, Source(**options), lambda _line: None, passwords.typed)
    return dict(made.nodes["n"].variables)


def test_the_user_of_the_command_line_wins_over_the_file() -> None:
    Path("ansible.cfg").write_text("[defaults]\nremote_user = ops\n")
    assert completed() == {"ansible_user": "ops"}
    assert completed(user="me") == {"ansible_user": "me"}


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of inputs to be typed, in order."""
    words: list[str] = []
    monkeypatch.setattr(passwords, "getpass", Namespace(getpass=lambda _prompt: words.pop(0)))
    monkeypatch.setattr("provision.commands.passwords.os.open", lambda *_: os.dup(0))
    return words


def test_passwords_become_variables(typing: list[str]) -> None:
    typing += ["sesame", ""]
    asked = completed(ask_password=True, ask_become_password=True)
    assert asked == {"ansible_password": "sesame", "ansible_become_password": "sesame"}
    typing += ["open"]
    assert completed(ask_become_password=True) == {"ansible_become_password": "open"}
    Path("ansible.cfg").write_text("[privilege_escalation]\nbecome_ask_pass = yes\n")
    typing += ["from the file"]
    assert completed() == {"ansible_become_password": "from the file"}


@pytest.mark.parametrize("typed", ["", "a{{b"])
def test_what_cannot_be_a_password_here_is_refused(typing: list[str], typed: str) -> None:
    typing.append(typed)
    with pytest.raises(UsageError, match=r"^-K: "):
        completed(ask_become_password=True)


PROGRAM = (
    "from provision.commands import passwords\n"
    'print(passwords.typed("sudo password: ", "-K", "ansible_become_password"))\n'
)


def test_a_password_is_typed_on_the_terminal_unseen() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(Path(__file__).parents[2])
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])  # noqa: S606
    said = b""
    end = time.monotonic() + 30
    typed = False
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                more = os.read(terminal, 4096)
            except OSError:
                break
            if not more:
                break
            said += more
        if b"password: " in said and not typed:
            os.write(terminal, b"sesame\n")
            typed = True
    os.waitpid(pid, 0)
    os.close(terminal)
    assert said.split() == b"sudo password: sesame".split()


def test_without_a_terminal_one_line_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr.splitlines()[-1].endswith("-K: there is no terminal to ask for the password on")
