"""Builds Debian packages with dpkg-deb: the same bytes for the same content."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov_lab.command import call

# A fixed date for all packages and files, so that a package depends on its content only; dpkg accepts it.
DATED = {"SOURCE_DATE_EPOCH": "1700000000"}


@dataclass(frozen=True)
class PackedFile:
    """One file of a package: bytes and mode, or a symbolic link if `link` is set."""

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
        """The file name as in a repository: NAME_VERSION_ARCHITECTURE.deb, the version without its epoch."""
        version = self.control["Version"].partition(":")[2] or self.control["Version"]
        return f"{self.control['Package']}_{version}_{self.control['Architecture']}.deb"

    def fields(self) -> dict[str, str]:
        """Return the control fields with the installed size (KiB) filled in where dpkg expects it."""
        size = sum(len(file.content) for file in self.files.values())
        return {**self.control, "Installed-Size": str(1 + size // 1024)}

    def build(self, folder: Path) -> Path:
        """Build the .deb file in `folder`, uncompressed, since nodes fetch it over a bridge of this host."""
        inside = {"control": control_text(self.fields())}
        if self.conffiles:
            inside["conffiles"] = "".join(f"{path}\n" for path in self.conffiles)
        files = {f"/DEBIAN/{name}": PackedFile(text.encode()) for name, text in inside.items()}
        files |= {f"/DEBIAN/{name}": PackedFile(text.encode(), 0o755) for name, text in self.scripts.items()}
        made = folder / self.filename
        with tempfile.TemporaryDirectory(dir=folder) as tree:
            unpack({**self.files, **files}, Path(tree))
            call("dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, made, extra=DATED)
        return made


def unpack(files: Mapping[str, PackedFile], tree: Path) -> None:
    """Lay out a package's files below `tree`, as on the node that installs it."""
    tree.mkdir(exist_ok=True)
    tree.chmod(0o755)
    for path, file in files.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.link:
            target.symlink_to(file.link)
        else:
            target.write_bytes(file.content)
            target.chmod(file.mode)


def control_text(fields: Mapping[str, str]) -> str:
    """Render `fields` as a control stanza (deb-control(5)) with the description at the end."""
    lines = [f"{key}: {value}" for key, value in fields.items() if value and key != "Description"]
    first, *rest = fields.get("Description", "").strip().splitlines() or ["no description"]
    lines += [f"Description: {first}", *(f" {line.strip() or '.'}" for line in rest)]
    return "\n".join(lines) + "\n"
