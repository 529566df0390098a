"""Detection of Ansible settings under which an inventory means something other than usual.

What is listed here has no bearing on an inventory; any other setting, and any plugin of the user's, might.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from provision.desired.inventory.plain.not_plain import NotPlainError

_SECTIONS = frozenset(
    {
        *(
            "ssh_connection",
            "paramiko_connection",
            "persistent_connection",
            "connection",
            "privilege_escalation",
        ),
        *("colors", "diff", "galaxy", "selinux"),
    }
)
_DEFAULTS = frozenset(
    {
        *("action_plugins", "any_errors_fatal", "ask_pass", "bin_ansible_callbacks", "callback_plugins"),
        *("callback_result_format", "callback_whitelist", "callbacks_enabled", "connection_plugins"),
        *("collections_path", "collections_paths", "deprecation_warnings", "devel_warning"),
        *("display_args_to_stdout", "display_ok_hosts", "display_skipped_hosts", "executable"),
        *("filter_plugins", "force_color", "force_handlers", "forks", "gather_subset", "gather_timeout"),
        *("gathering", "host_key_checking", "interpreter_python", "inventory", "library", "local_tmp"),
        *("localhost_warning", "log_path", "lookup_plugins", "max_diff_size", "module_name", "no_log"),
        *("no_target_syslog", "nocolor", "nocows", "pipelining", "poll_interval", "private_key_file"),
        *("remote_port", "remote_tmp", "remote_user", "retry_files_enabled", "retry_files_save_path"),
        *("roles_path", "show_custom_stats", "stdout_callback", "strategy", "strategy_plugins"),
        *("system_warnings", "timeout", "transport", "vault_identity", "vault_identity_list"),
        *("vault_password_file", "verbosity"),
    }
)
_ENVIRONMENT = frozenset(
    {
        *("CALLBACKS_ENABLED", "COLLECTIONS_PATH", "COLLECTIONS_PATHS", "CONFIG", "DEBUG"),
        *("DEPRECATION_WARNINGS", "DEVEL_WARNING", "DISPLAY_ARGS_TO_STDOUT", "DISPLAY_OK_HOSTS"),
        *("DISPLAY_SKIPPED_HOSTS", "FORCE_COLOR", "FORKS", "GATHERING", "HOST_KEY_CHECKING", "LIBRARY"),
        *("LOCALHOST_WARNING", "LOCAL_TEMP", "LOG_PATH", "NOCOLOR", "NOCOWS", "PIPELINING"),
        *("PRIVATE_KEY_FILE", "PYTHON_INTERPRETER", "REMOTE_PORT", "REMOTE_TEMP", "REMOTE_USER"),
        *("RETRY_FILES_ENABLED", "ROLES_PATH", "SSH_ARGS", "SSH_CONTROL_PATH_DIR", "STDOUT_CALLBACK"),
        *("SYSTEM_WARNINGS", "TIMEOUT", "TRANSFORM_INVALID_GROUP_CHARS", "VAULT_IDENTITY"),
        *("VAULT_IDENTITY_LIST", "VAULT_PASSWORD_FILE", "VERBOSITY"),
    }
)
_PLUGINS = (Path("~/.ansible/plugins"), Path("/usr/share/ansible/plugins"))
_SYSTEM = Path("/etc/ansible/ansible.cfg")


def check(environment: Mapping[str, str]) -> None:
    """Raise NotPlainError when a setting of Ansible's, by file or environment, may bear on inventories."""
    for name in environment:
        if name.startswith("ANSIBLE_") and name.removeprefix("ANSIBLE_") not in _ENVIRONMENT:
            raise NotPlainError(f"{name} is set")
    # Only the first of them counts, but which one that is has its own rules.
    if "$" in environment.get("ANSIBLE_CONFIG", ""):
        raise NotPlainError("ANSIBLE_CONFIG refers to a variable")
    chosen = Path(environment.get("ANSIBLE_CONFIG", "ansible.cfg")).expanduser()
    for file in (
        chosen / "ansible.cfg",
        chosen,
        Path("ansible.cfg"),
        Path("~/.ansible.cfg").expanduser(),
        _SYSTEM,
    ):
        if file.is_file():
            _check_file(file)
    for folder in _PLUGINS:
        for kind in ("cache", "inventory", "vars"):
            plugins = folder.expanduser() / kind
            if plugins.is_dir() and any(plugins.iterdir()):
                raise NotPlainError(f"{plugins} holds plugins")


def _check_file(file: Path) -> None:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error) as trouble:
        raise NotPlainError(f"{file}: {trouble}") from None
    settings = [(section, name) for section in parser.sections() for name in parser.options(section)]
    for section, name in [*settings, *(("DEFAULT", name) for name in parser.defaults())]:
        if section not in _SECTIONS and (section != "defaults" or name not in _DEFAULTS):
            raise NotPlainError(f"{file} sets {name} in [{section}]")
