"""Reader of group_vars and host_vars: the files of each group and host, and their variables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provision.desired.inventory import ansible_inventory
from provision.desired.inventory.plain import documents
from provision.desired.inventory.plain.not_plain import NotPlainError
from provision.errors import InventoryError

EXTENSIONS = ("", ".yml", ".yaml", ".json")  # the first that is there counts


class Folder:
    """`group_vars` or `host_vars`, listed once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise NotPlainError(f"{path} is not a folder")
        self._entries = {entry.name for entry in path.iterdir()} if path.is_dir() else set()

    def files_of(self, name: str) -> list[Path]:
        """The files about one group or host, the later ones winning."""
        if not self._entries or name.startswith("/"):
            return []
        if "/" in name or "$" in name or name in (".", ".."):
            raise NotPlainError(f"{name!r} as the name of a file")
        for extension in EXTENSIONS:
            path = self.path / (name + extension)
            if path.name in self._entries and path.exists():
                return _below(path) if path.is_dir() else [path]
        return []


def _below(folder: Path) -> list[Path]:
    found = []
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        extension = os.path.splitext(path.name)[1]  # noqa: PTH122 - a name that ends in a dot has one for Ansible
        if path.name.startswith(".") or path.name.endswith("~"):
            continue
        if path.is_dir():
            found += _below(path) if not extension else []
        elif extension in EXTENSIONS and path.exists():
            found.append(path)
    return found


class Contents:
    """What the files say. Those that only Ansible understands (whole vaults, unusual YAML) are asked of it,
    all at once, each as the variables of a host of its own."""

    def __init__(self, known: dict[str, Any], vault_password_files: Sequence[Path]) -> None:
        self._known = known
        self._vault_password_files = vault_password_files
        self._read: dict[Path, dict[str, Any]] = {}

    def read(self, files: Sequence[Path]) -> None:
        """Read files, to be looked up with `of`. Raises NotPlainError when Ansible cannot read one either."""
        odd = []
        for file in dict.fromkeys(files):
            try:
                self._read[file] = self._mapping(read_text(file))
            except NotPlainError:
                odd.append(file)
        if odd:
            self._read.update(zip(odd, self._asked(odd), strict=True))

    def of(self, files: Sequence[Path]) -> dict[str, Any]:
        """The variables of files that were read, the later ones winning."""
        found: dict[str, Any] = {}
        for file in files:
            found.update(self._read[file])
        return found

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
    """The text of a regular file that is neither vaulted nor anything but UTF-8. Raises NotPlainError."""
    try:
        if not file.is_file():
            raise NotPlainError(f"{file} is not a regular file")
        text = file.read_bytes().decode("utf-8")  # line ends as they are
    except (OSError, UnicodeDecodeError) as trouble:
        raise NotPlainError(f"{file}: {trouble}") from None
    if text.startswith(documents.VAULT_HEADER):
        raise NotPlainError(f"{file} is vaulted")
    return text
