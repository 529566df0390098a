"""The lab's paths on the host: one folder per lab, one cache for all of them. Root only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STATE = Path("/var/lib/gpuprov-lab")
CACHE = Path("/var/cache/gpuprov-lab")
LOCKS = Path("/run/gpuprov-lab")
SILICON = Path(__file__).resolve().with_name("silicon")
PACKAGES = Path(__file__).resolve().with_name("fixtures")

# Every network namespace of every lab is called PREFIX.<lab>.<node>, which identifies leftovers.
PREFIX = "gpuprov"


def make_root_only(folder: Path) -> Path:
    """Create `folder` if needed and close it to everyone but root, since it holds a private key."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chmod(folder, 0o700)  # noqa: PTH101 - mkdir's mode is masked by umask
    return folder


@dataclass(frozen=True)
class NodePlace:
    """The folder of one node."""

    lab: str
    name: str

    @property
    def folder(self) -> Path:
        return STATE / self.lab / "nodes" / self.name

    @property
    def disk(self) -> Path:
        """The node's own files: the upper directory of its overlay."""
        return self.folder / "disk"

    @property
    def image(self) -> Path:
        """The list of further disks below this one, newest first: see node.prepare."""
        return self.folder / "image.json"

    @property
    def silicon(self) -> Path:
        return self.folder / "silicon"

    @property
    def boot_log(self) -> Path:
        return self.folder / "boot.log"

    @property
    def boot_plan(self) -> Path:
        """The supervisor's input: see supervisor.py."""
        return self.folder / "boot.json"

    @property
    def pidfile(self) -> Path:
        return self.folder / "supervisor.pid"

    @property
    def namespace(self) -> str:
        """The node's network namespace, which is also systemd-nspawn's name for the node."""
        return f"{PREFIX}.{self.lab}.{self.name}"


@dataclass(frozen=True)
class LabPlace:
    """The folder of one lab."""

    name: str

    @property
    def folder(self) -> Path:
        return STATE / self.name

    @property
    def record(self) -> Path:
        return self.folder / "state.json"

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def www(self) -> Path:
        """A link to the fixture repository that this lab serves."""
        return self.folder / "www"

    @property
    def namespace_prefix(self) -> str:
        return f"{PREFIX}.{self.name}."

    def node(self, name: str) -> NodePlace:
        return NodePlace(self.name, name)
