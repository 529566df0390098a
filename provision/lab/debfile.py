"""Writes Debian packages without dpkg (deb(5)): the same bytes for the same content."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

# All files are dated so; dpkg does not mind, and the archive depends on its content alone.
_EPOCH = 1_700_000_000


@dataclass(frozen=True)
class PackedFile:
    """One file of a package: its bytes and mode, or, when `link` is set, a symbolic link to it."""

    content: bytes = b""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True)
class Deb:
    """One package: `control` fields in order, `files` by absolute path, maintainer `scripts` by name."""

    control: Mapping[str, str]
    files: Mapping[str, PackedFile] = field(default_factory=dict)
    conffiles: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def filename(self) -> str:
        """As in a repository: NAME_VERSION_ARCHITECTURE.deb, the version without its epoch."""
        version = self.control["Version"].partition(":")[2] or self.control["Version"]
        return f"{self.control['Package']}_{version}_{self.control['Architecture']}.deb"

    def fields(self) -> dict[str, str]:
        """The control fields with the installed size (KiB) filled in where dpkg expects it."""
        size = sum(len(file.content) for file in self.files.values())
        return {**self.control, "Installed-Size": str(1 + size // 1024)}

    def pack(self) -> bytes:
        """The .deb file."""
        members = {
            "debian-binary": b"2.0\n",
            "control.tar.gz": _tar(self._control_files()),
            "data.tar.gz": _tar(self.files),
        }
        return b"!<arch>\n" + b"".join(_ar_member(name, content) for name, content in members.items())

    def _control_files(self) -> dict[str, PackedFile]:
        sums = "".join(
            f"{hashlib.md5(file.content, usedforsecurity=False).hexdigest()}  {path.lstrip('/')}\n"
            for path, file in sorted(self.files.items())
            if not file.link
        )
        inside = {"/control": control_text(self.fields()), "/md5sums": sums}
        if self.conffiles:
            inside["/conffiles"] = "".join(f"{path}\n" for path in self.conffiles)
        packed = {name: PackedFile(text.encode()) for name, text in inside.items()}
        return {**packed, **{f"/{name}": PackedFile(t.encode(), 0o755) for name, t in self.scripts.items()}}


def control_text(fields: Mapping[str, str]) -> str:
    """`fields` as a control stanza (deb-control(5)); the description goes last, its later lines indented."""
    lines = [f"{key}: {value}" for key, value in fields.items() if value and key != "Description"]
    first, *rest = fields.get("Description", "").strip().splitlines() or ["no description"]
    lines += [f"Description: {first}", *(f" {line.strip() or '.'}" for line in rest)]
    return "\n".join(lines) + "\n"


def _tar(files: Mapping[str, PackedFile]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
        for folder in sorted(folders | {"/"}):
            entry = _entry("." + folder.rstrip("/") + "/", 0o755)
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        for path, file in sorted(files.items()):
            entry = _entry("." + path, file.mode)
            if file.link:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, file.link, 0o777
                archive.addfile(entry)
            else:
                entry.size = len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return gzip.compress(buffer.getvalue(), compresslevel=6, mtime=0)


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.uname, entry.gname = mode, _EPOCH, "root", "root"
    return entry


def _ar_member(name: str, content: bytes) -> bytes:
    header = f"{name:<16}{_EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
    return header.encode() + content + (b"\n" if len(content) % 2 else b"")
