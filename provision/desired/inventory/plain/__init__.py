"""Reader of plain inventories (YAML, JSON, INI; group_vars and host_vars) that needs no Ansible process.

The answer is that of `ansible-inventory --list`, which takes 25 times as long for 10,000 hosts; a test
compares the two on thousands of random inventories. Anything unusual or wrong in an inventory, or configured
in Ansible, raises NotPlainError, and Ansible is used instead.
"""

from __future__ import annotations

import configparser
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.desired.inventory.ansible import ansible_inventory, ansible_settings
from provision.desired.inventory.plain import documents
from provision.desired.inventory.plain.documents import NotPlainError
from provision.desired.inventory.plain.groups import ALL, Groups, add_ini, add_yaml
from provision.errors import InventoryError
from provision.fleet import sources

# What Ansible ignores in a folder of inventories.
_IGNORED_NAMES = ("group_vars", "host_vars", "vars_plugins")
_IGNORED_ENDS = (
    *(".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst"),
    *(".orig", ".cfg", ".retry"),
)
# Ansible's own variables: `--list` leaves them out even if an inventory sets them.
_INTERNAL = frozenset(
    {
        *("ansible_async_path", "ansible_collection_name", "ansible_config_file"),
        *("ansible_dependent_role_names", "ansible_diff_mode", "ansible_facts", "ansible_forks"),
        *("ansible_inventory_sources", "ansible_limit", "ansible_play_batch", "ansible_play_hosts"),
        *("ansible_play_hosts_all", "ansible_play_role_names", "ansible_playbook_python"),
        *("ansible_role_name", "ansible_role_names", "ansible_run_tags", "ansible_skip_tags"),
        *("ansible_verbosity", "ansible_version", "group_names", "groups", "hostvars", "inventory_dir"),
        *("inventory_file", "inventory_hostname", "inventory_hostname_short", "play_hosts", "playbook_dir"),
        *("role_name", "role_names", "role_path", "role_uuid"),
    }
)


def read(source: Path, vault_password_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Read `source` like `ansible-inventory --list`. Raises NotPlainError if only Ansible can read it."""
    try:
        _check_settings(ansible_settings.environment())
    except OSError as trouble:  # an unreadable home
        raise NotPlainError(str(trouble)) from None
    if any("," in str(each) or "$" in str(each) for each in sources(source)):
        raise NotPlainError("not the names of files or folders")
    # Like Ansible, resolve `..` by the text of the path, even behind a link.
    paths = [Path(os.path.abspath(each)) for each in sources(source)]  # noqa: PTH100
    groups = Groups()
    scalars: dict[str, Any] = {}
    spellings: dict[str, Any] = {}
    try:
        for path in paths:
            for file in _files(path):
                _add(file, groups, scalars, spellings)
        groups.complete()
        folders = [(path if path.is_dir() else path.parent).resolve() for path in paths]
        return _answer(groups, folders, Contents(scalars, vault_password_files))
    except (OSError, RecursionError) as trouble:
        raise NotPlainError(str(trouble)) from None


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    has_entries = False
    for entry in sorted(path.iterdir(), key=lambda entry: os.fsencode(entry.name)):
        if entry.name.startswith(".") or entry.name.endswith(_IGNORED_ENDS) or entry.name in _IGNORED_NAMES:
            continue
        has_entries = True
        yield from _files(entry)
    if not has_entries:
        raise NotPlainError(f"{path} is empty")


def _add(file: Path, groups: Groups, known: dict[str, Any], spellings: dict[str, Any]) -> None:
    text = read_text(file)
    if os.access(file, os.X_OK):  # Ansible would run it as an inventory script
        raise NotPlainError(f"{file} can be executed")
    if text.startswith("#!"):
        raise NotPlainError(f"{file} is a script")
    extension = os.path.splitext(file)[1]  # noqa: PTH122 - as in Ansible
    if extension == ".toml":
        raise NotPlainError("TOML")
    if extension in (".yml", ".yaml", ".json", ""):
        try:
            document = documents.parse(text, known)
        except documents.NoYamlError:
            if extension:
                raise
            document = None  # usually INI, which has no extension either
        if isinstance(document, dict) and document:
            add_yaml(document, groups)
            return
        if extension and not all(line.strip()[:1] in ("", "#") for line in text.splitlines()):
            raise NotPlainError(f"{file} is not a mapping")
    add_ini(text, groups, spellings)


def _answer(groups: Groups, folders: Sequence[Path], contents: Contents) -> dict[str, Any]:
    group_files = _files_of(groups.children, [Folder(folder / "group_vars") for folder in folders])
    host_files = _files_of(groups.of_host, [Folder(folder / "host_vars") for folder in folders])
    contents.read([file for each in (group_files, host_files) for files in each.values() for file in files])
    shared = documents.Shared()
    precedence, ancestors = groups.precedence(), groups.ancestors()
    common: dict[frozenset[str], dict[str, Any]] = {}
    hostvars = {}
    for host in sorted(groups.of_host):
        belongs = frozenset[str]().union(*(ancestors[name] for name in groups.of_host[host]))
        if belongs not in common:
            ordered = sorted({*belongs, ALL}, key=precedence.__getitem__)
            merged: dict[str, Any] = {}
            for name in ordered:
                merged.update(groups.variables[name])
            # A second loop, because in Ansible a group_vars file wins over the inventory's own variables of
            # every group, even of groups nearer to the host.
            for name in ordered:
                merged.update(contents.of(group_files[name]))
            common[belongs] = _shown(merged, shared)
        own = _shown({**groups.host_variables[host], **contents.of(host_files[host])}, shared)
        variables = dict(sorted({**common[belongs], **own}.items())) if own else common[belongs]
        if variables:
            hostvars[host] = variables
    return dict(sorted({"_meta": {"hostvars": hostvars}, **_membership(groups)}.items()))


def _shown(variables: dict[str, Any], shared: documents.Shared) -> dict[str, Any]:
    return {name: shared.value(value) for name, value in sorted(variables.items()) if name not in _INTERNAL}


def _membership(groups: Groups) -> dict[str, Any]:
    members = {}
    for name in sorted(groups.children):
        described = {
            "children": list(groups.children[name]),
            "hosts": list(groups.hosts[name]) if name != ALL else [],
        }
        if shown := {kind: names for kind, names in described.items() if names}:
            members[name] = shown
    return members


_SECTIONS = frozenset(
    {
        *(
            "ssh_connection",
            "paramiko_connection",
            "persistent_connection",
            "connection",
            "privilege_escalation",
            "sudo_become_plugin",
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
        *("ASK_PASS", "BECOME", "BECOME_ASK_PASS", "INVENTORY"),
        *(name.removeprefix("ANSIBLE_") for each in ansible_settings.SETTINGS for name in each.environment),
    }
)
_PLUGINS = (Path("~/.ansible/plugins"), Path("/usr/share/ansible/plugins"))
_SYSTEM = Path("/etc/ansible/ansible.cfg")


def _check_settings(environment: Mapping[str, str]) -> None:
    """Raise NotPlainError if a setting of Ansible, by file or environment, may affect inventories."""
    for name in environment:
        if name.startswith("ANSIBLE_") and name.removeprefix("ANSIBLE_") not in _ENVIRONMENT:
            raise NotPlainError(f"{name} is set")
    # Only the first of these files counts, but since Ansible has its own rules for the choice, check all.
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


EXTENSIONS = ("", ".yml", ".yaml", ".json")  # the first existing one counts


class Folder:
    """The folder `group_vars` or `host_vars`, listed once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise NotPlainError(f"{path} is not a folder")
        self._entries = {entry.name for entry in path.iterdir()} if path.is_dir() else set()

    def files_of(self, name: str) -> list[Path]:
        """Return the files about one group or host; later ones win."""
        if not self._entries or name.startswith("/"):
            return []
        if "/" in name or "$" in name or name in (".", ".."):
            raise NotPlainError(f"{name!r} as the name of a file")
        for extension in EXTENSIONS:
            path = self.path / (name + extension)
            if path.name in self._entries and path.exists():
                return _below(path) if path.is_dir() else [path]
        return []


def _files_of(names: Iterable[str], folders: Sequence[Folder]) -> dict[str, list[Path]]:
    return {name: [file for folder in folders for file in folder.files_of(name)] for name in names}


def _below(folder: Path) -> list[Path]:
    files = []
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        extension = os.path.splitext(path.name)[1]  # noqa: PTH122 - a name that ends in a dot has one for Ansible
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir():
            files += _below(path) if not extension else []
        elif extension in EXTENSIONS and path.exists():
            files.append(path)
    return files


class Contents:
    """The variables in files, some of which only Ansible can read (whole vaults, unusual YAML).
    Ansible reads these all at once, each as the variables of a separate host."""

    def __init__(self, known: dict[str, Any], vault_password_files: Sequence[Path]) -> None:
        self._known = known
        self._vault_password_files = vault_password_files
        self._read: dict[Path, dict[str, Any]] = {}

    def read(self, files: Sequence[Path]) -> None:
        """Read files for later calls of `of`. Raises NotPlainError if Ansible cannot read one either."""
        odd = []
        for file in dict.fromkeys(files):
            try:
                self._read[file] = self._mapping(read_text(file))
            except NotPlainError:
                odd.append(file)
        if odd:
            self._read.update(zip(odd, self._asked(odd), strict=True))

    def of(self, files: Sequence[Path]) -> dict[str, Any]:
        """Return the variables of files that were read; later files win."""
        variables: dict[str, Any] = {}
        for file in files:
            variables.update(self._read[file])
        return variables

    def _mapping(self, text: str) -> dict[str, Any]:
        value = documents.parse(text, self._known) or {}
        if not isinstance(value, dict):
            raise NotPlainError("it is not a mapping")
        return value

    def _asked(self, files: Sequence[Path]) -> list[dict[str, Any]]:
        names = [f"file{number}" for number in range(len(files))]
        with tempfile.TemporaryDirectory(prefix="gpuprov-vars-") as folder:
            hosts = Path(folder, "hosts")
            hosts.write_text("\n".join(names) + "\n", encoding="utf-8")
            Path(folder, "host_vars").mkdir()
            for name, file in zip(names, files, strict=True):
                Path(folder, "host_vars", name).symlink_to(file)
            try:
                answer = ansible_inventory.read(hosts, self._vault_password_files)
            except InventoryError as trouble:
                raise NotPlainError(str(trouble)) from None
        hostvars = answer.get("_meta", {}).get("hostvars", {})
        return [hostvars.get(name, {}) for name in names]


def read_text(file: Path) -> str:
    """Return the text of a regular UTF-8 file that is not vaulted. Raises NotPlainError."""
    try:
        if not file.is_file():
            raise NotPlainError(f"{file} is not a regular file")
        text = file.read_bytes().decode("utf-8")  # line ends unchanged
    except (OSError, UnicodeDecodeError) as trouble:
        raise NotPlainError(f"{file}: {trouble}") from None
    if text.startswith(documents.VAULT_HEADER):
        raise NotPlainError(f"{file} is vaulted")
    return text
