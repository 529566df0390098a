"""Connection settings of ansible.cfg and ANSIBLE_* variables, as the equivalent inventory variables.

They become variables of every node that does not set one itself. So observations over SSH and Ansible's runs
use the same values, in Ansible's order: inventory variable, command line, environment, file. Nothing else in
a user's configuration affects the nodes; its settings about inventories are applied by `ansible-inventory`.
"""

from __future__ import annotations

import configparser
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from provision.errors import InventoryError
from provision.fleet import Fleet

SYSTEM = Path("/etc/ansible/ansible.cfg")
_TRUE = ("y", "yes", "on", "1", "true", "t")


@dataclass(frozen=True)
class Setting:
    """One option of Ansible; of `environment`, and of `keys` ([section] name), the last one set counts.
    `names`: its inventory variables; if none is set, the first gets the value."""

    names: tuple[str, ...]
    environment: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    kind: Literal["text", "arguments", "path", "paths", "number", "flag"] = "text"


def _ssh(name: str, kind: Literal["text", "arguments", "flag"] = "text", key: str = "") -> Setting:
    """Return an option with the same spelling in all three places."""
    spelled = name.removeprefix("ansible_")
    return Setting((name,), (name.upper(),), (("ssh_connection", key or spelled),), kind)


_BECOME = "privilege_escalation"
# A test compares this with Ansible's documentation of its plugins.
SETTINGS = (
    Setting(("ansible_connection",), ("ANSIBLE_TRANSPORT",), (("defaults", "transport"),)),
    Setting(("ansible_user", "ansible_ssh_user"), ("ANSIBLE_REMOTE_USER",), (("defaults", "remote_user"),)),
    Setting(
        ("ansible_port", "ansible_ssh_port"),
        ("ANSIBLE_REMOTE_PORT",),
        (("defaults", "remote_port"),),
        "number",
    ),
    Setting(
        ("ansible_ssh_private_key_file", "ansible_private_key_file"),
        ("ANSIBLE_PRIVATE_KEY_FILE",),
        (("defaults", "private_key_file"),),
        "path",
    ),
    # Ansible documents ANSIBLE_SSH_TIMEOUT and [ssh_connection] timeout, too, and ignores both.
    Setting(
        ("ansible_ssh_timeout", "ansible_timeout"),
        ("ANSIBLE_TIMEOUT",),
        (("defaults", "timeout"),),
        "number",
    ),
    Setting(
        ("ansible_host_key_checking", "ansible_ssh_host_key_checking"),
        ("ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_SSH_HOST_KEY_CHECKING"),
        (("defaults", "host_key_checking"), ("ssh_connection", "host_key_checking")),
        "flag",
    ),
    Setting(
        ("ansible_python_interpreter",),
        ("ANSIBLE_PYTHON_INTERPRETER",),
        (("defaults", "interpreter_python"),),
    ),
    _ssh("ansible_ssh_args", "arguments"),
    _ssh("ansible_ssh_common_args", "arguments"),
    _ssh("ansible_ssh_extra_args", "arguments"),
    _ssh("ansible_scp_extra_args", "arguments"),
    _ssh("ansible_sftp_extra_args", "arguments"),
    _ssh("ansible_ssh_executable"),
    _ssh("ansible_scp_executable"),
    _ssh("ansible_sftp_executable"),
    _ssh("ansible_sftp_batch_mode", "flag"),
    _ssh("ansible_ssh_transfer_method", key="transfer_method"),
    _ssh("ansible_ssh_password_mechanism", key="password_mechanism"),
    _ssh("ansible_sshpass_prompt"),
    Setting(
        ("ansible_ssh_pkcs11_provider",),
        ("ANSIBLE_PKCS11_PROVIDER",),
        (("ssh_connection", "pkcs11_provider"),),
    ),
    Setting(("ansible_ssh_use_tty",), ("ANSIBLE_SSH_USETTY",), (("ssh_connection", "usetty"),), "flag"),
    Setting(
        ("ansible_ssh_retries",),
        ("ANSIBLE_SSH_RETRIES",),
        (("connection", "retries"), ("ssh_connection", "retries")),
        "number",
    ),
    Setting(("ansible_private_key", "ansible_ssh_private_key"), ("ANSIBLE_PRIVATE_KEY",), ()),
    Setting(
        ("ansible_private_key_passphrase", "ansible_ssh_private_key_passphrase"),
        ("ANSIBLE_PRIVATE_KEY_PASSPHRASE",),
        (),
    ),
    Setting(
        ("ansible_become_method",),
        ("ANSIBLE_BECOME_METHOD",),
        ((_BECOME, "become_method"),),
    ),
    Setting(
        ("ansible_become_user", "ansible_sudo_user"),
        ("ANSIBLE_BECOME_USER", "ANSIBLE_SUDO_USER"),
        ((_BECOME, "become_user"), ("sudo_become_plugin", "user")),
    ),
    Setting(
        ("ansible_become_exe", "ansible_sudo_exe"),
        ("ANSIBLE_BECOME_EXE", "ANSIBLE_SUDO_EXE"),
        ((_BECOME, "become_exe"), ("sudo_become_plugin", "executable")),
    ),
    Setting(
        ("ansible_become_flags", "ansible_sudo_flags"),
        ("ANSIBLE_BECOME_FLAGS", "ANSIBLE_SUDO_FLAGS"),
        ((_BECOME, "become_flags"), ("sudo_become_plugin", "flags")),
    ),
    Setting(
        ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass"),
        ("ANSIBLE_BECOME_PASS", "ANSIBLE_SUDO_PASS"),
        (("sudo_become_plugin", "password"),),
    ),
    Setting(
        ("ansible_remote_tmp",),
        ("ANSIBLE_REMOTE_TEMP", "ANSIBLE_REMOTE_TMP"),
        (("defaults", "remote_tmp"),),
    ),
    Setting(("ansible_shell_executable",), ("ANSIBLE_EXECUTABLE",), (("defaults", "executable"),)),
)
PASSWORD = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_NAMES = {setting.names[0]: setting.names for setting in SETTINGS} | {PASSWORD[0]: PASSWORD}
# No variable corresponds to these.
_ASK = Setting((), ("ANSIBLE_ASK_PASS",), (("defaults", "ask_pass"),), "flag")
_ASK_BECOME = Setting((), ("ANSIBLE_BECOME_ASK_PASS",), ((_BECOME, "become_ask_pass"),), "flag")
_VAULT = Setting((), ("ANSIBLE_VAULT_PASSWORD_FILE",), (("defaults", "vault_password_file"),), "path")
_INVENTORY = Setting((), ("ANSIBLE_INVENTORY",), (("defaults", "inventory"),), "paths")
_ROOT = Setting((), ("ANSIBLE_BECOME",), ((_BECOME, "become"),), "flag")


@dataclass(frozen=True)
class Settings:
    """The configured settings, with `variables` by the first of their names.
    `notes`: messages on settings without effect; `inventories`: paths and lists of hosts, and where from."""

    variables: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ask_pass: bool = False
    ask_become_pass: bool = False
    vault_password_file: str | None = None
    inventories: tuple[str, ...] = ()
    inventories_from: str = ""
    notes: tuple[str, ...] = ()


def read() -> Settings:
    """Return the settings in force in this folder and environment. Raises InventoryError (file, line)."""
    path, notes = _file()
    if path is None and not any(name.startswith("ANSIBLE_") for name in os.environ):
        return Settings(notes=tuple(notes))
    source = _Source(path)
    variables = {}
    for setting in SETTINGS:
        value = source.value(setting)
        if value is not None and (value != "" or setting.kind == "arguments"):
            variables[setting.names[0]] = value
    if str(variables.get("ansible_python_interpreter", "")).startswith("auto"):
        del variables["ansible_python_interpreter"]  # the interpreter is detected in any case
    if source.value(_ROOT) is False:
        notes.append(
            f"{source.place(_ROOT)}: become is false, and the plays of gpuprov become root all the same, as "
            "any play with `become: true` does; ansible_become: false in the inventory is heeded"
        )
    return Settings(
        variables,
        ask_pass=bool(source.value(_ASK)),
        ask_become_pass=bool(source.value(_ASK_BECOME)),
        vault_password_file=source.value(_VAULT) or None,
        inventories=source.value(_INVENTORY) or (),
        inventories_from=source.place(_INVENTORY),
        notes=tuple(notes),
    )


def with_defaults(fleet: Fleet, variables: Mapping[str, Any]) -> Fleet:
    """Return the fleet with these variables on each node that sets them under none of their names.
    Nodes keep sharing equal variables."""
    if not variables:
        return fleet
    made: dict[int, Mapping[str, Any]] = {}
    nodes = {}
    for name, node in fleet.nodes.items():
        key = id(node.variables)
        if key not in made:
            missing = {
                first: value
                for first, value in variables.items()
                if not any(alias in node.variables for alias in _NAMES.get(first, (first,)))
            }
            made[key] = {**node.variables, **missing} if missing else node.variables
        nodes[name] = replace(node, variables=made[key])
    return replace(fleet, nodes=nodes)


def _file() -> tuple[Path | None, list[str]]:
    """Return the ansible.cfg in force, the first readable one in Ansible's order, and notes for the user."""
    candidates = []
    notes = []
    chosen = os.environ.get("ANSIBLE_CONFIG")
    if chosen is not None:
        named = Path(_whole(chosen, Path.cwd()))
        candidates.append(named / "ansible.cfg" if named.is_dir() else named)
    here = Path.cwd() / "ansible.cfg"
    skipped = bool(here.parent.stat().st_mode & stat.S_IWOTH)
    if not skipped:
        candidates.append(here)
    candidates += [Path("~/.ansible.cfg").expanduser(), SYSTEM]
    readable = next((path for path in candidates if os.access(path, os.R_OK)), None)
    if skipped and os.access(here, os.F_OK) and (chosen is None or readable != candidates[0]):
        notes.append(
            f"{here} is not read: everybody may write in that folder (as Ansible has it); "
            "chmod o-w the folder, or name the file in ANSIBLE_CONFIG"
        )
    return readable, notes


class _Source:
    """The sources of settings, first the environment and then one file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text = ""
        self._parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
        if path is None:
            return
        try:
            self._text = path.read_text(encoding="utf-8")
            self._parser.read_string(self._text, source=str(path))
        except UnicodeDecodeError as trouble:
            raise InventoryError(f"{path}: not UTF-8 text (byte {trouble.start})", "save it so") from None
        except OSError as trouble:
            raise InventoryError(f"{path}: cannot be read: {trouble.strerror}", "correct it") from None
        except configparser.Error as trouble:
            line = getattr(trouble, "lineno", None) or next(iter(getattr(trouble, "errors", ())), (None,))[0]
            what = "is there twice" if "already exists" in str(trouble) else "is no `name = value`"
            raise InventoryError(
                f"{path}{f':{line}' if line else ''}: not a configuration Ansible reads: that line {what}",
                "correct it",
            ) from None

    def value(self, setting: Setting) -> Any:
        """Return the configured value, or None. Raises InventoryError for a value of the wrong kind."""
        written = self._written(setting)
        if written is None:
            return None
        text, name = written
        if setting.kind == "flag":
            return text.strip().lower() in _TRUE
        if setting.kind == "number":
            if text == "":
                return None
            if not text.strip().isdecimal():
                raise InventoryError(
                    f"{self.place(setting)}: {name} must be a whole number, not {text!r}", "correct it"
                )
            return int(text)
        if setting.kind in ("path", "paths") and text:
            in_file = self._path is not None and not any(name in os.environ for name in setting.environment)
            base = self._path.parent if in_file and self._path else Path.cwd()
            if setting.kind == "path":
                return _whole(text, base)
            return tuple(_whole(part.strip(), base) for part in text.split(",") if part.strip())
        return text

    def place(self, setting: Setting) -> str:
        """Return `ansible.cfg:7`, or the name of the environment variable."""
        for name in reversed(setting.environment):
            if name in os.environ:
                return name
        for section, key in reversed(setting.keys):
            if self._parser.has_option(section, key):
                return f"{self._path}:{self._line(section, key)}"
        return str(self._path)

    def _written(self, setting: Setting) -> tuple[str, str] | None:
        for name in reversed(setting.environment):
            if name in os.environ:
                return os.environ[name], name
        for section, key in reversed(setting.keys):
            if self._parser.has_option(section, key):
                text = self._parser.get(section, key) or ""
                if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
                    text = text[1:-1]
                return text, key
        return None

    def _line(self, section: str, key: str) -> int:
        inside = False
        for number, line in enumerate(self._text.splitlines(), start=1):
            if line.startswith("["):
                inside = line.startswith(f"[{section}]")
            elif inside and re.match(rf"{re.escape(key)}\s*[=:]", line.strip(), re.IGNORECASE):
                return number
        return 1


def _whole(text: str, base: Path) -> str:
    """Complete a path as Ansible does for paths in its configuration."""
    text = text.replace("{{CWD}}", str(Path.cwd()))
    return os.path.normpath(base / Path(os.path.expandvars(text)).expanduser())


def environment() -> dict[str, str]:
    """Return our environment for ansible-inventory, without variables that change the form of its answer.

    The rest stays: inventory plugins and scripts find their credentials in it, and nothing here records it.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ANSIBLE_INVENTORY_"))
    }
    for name in ("ANSIBLE_INVENTORY_ENABLED", "ANSIBLE_INVENTORY_PLUGINS", "PYTHONWARNINGS"):
        if name in os.environ:
            kept[name] = os.environ[name]
    return {
        **kept,
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_VERBOSITY": "0",
        "ANSIBLE_DEBUG": "0",
        "ANSIBLE_DEPRECATION_WARNINGS": "0",
        "ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS": "ignore",
        "LC_ALL": "C.UTF-8",
    }
