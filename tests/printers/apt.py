"""A signed repository of small packages on 127.0.0.1, and the real apt of a Debian release using it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

from gpuprov_lab import signing
from tests.printers.root import Root

PACKAGES = (
    *("apt", "dpkg", "dash", "coreutils", "diffutils", "findutils", "grep", "sed", "tar", "mawk", "gpgv"),
    *("libc-bin", "libpam-runtime"),
)
# Only as root; without terminals, which a root made of packages lacks; without a name service.
_SETTINGS = """\
APT::Sandbox::User "root";
Dpkg::Use-Pty "false";
Acquire::Retries "0";
"""
DAY = 86400


@dataclass
class Repository:
    """The files of a repository in `folder`; `home`: the keyring that signs it."""

    folder: Path
    url: str
    home: Path
    packages: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, name: str, version: str = "1.0", **fields: str) -> Path:
        """Build a package without files. `fields`: Depends and other fields of its control file."""
        tree = self.folder / "build"
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        control = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "t <t@t.t>"}
        control |= {"Description": "t", **fields}
        text = "".join(f"{key}: {value}\n" for key, value in control.items())
        (tree / "DEBIAN/control").write_text(text)
        file = self.folder / f"{name}_{version}_all.deb"
        subprocess.run(["dpkg-deb", "-b", str(tree), str(file)], check=True, capture_output=True)
        content = file.read_bytes()
        control |= {"Filename": file.name, "Size": str(len(content))}
        self.packages[file.name] = control | {"SHA256": hashlib.sha256(content).hexdigest()}
        return file

    def publish(self, *, signed: bool = True, **release: str) -> None:
        """Write the index and its signature."""
        stanzas = ("".join(f"{k}: {v}\n" for k, v in one.items()) for one in self.packages.values())
        index = "\n".join(stanzas).encode()
        sums = []
        for name, content in {"Packages": index, "Packages.gz": gzip.compress(index, mtime=0)}.items():
            (self.folder / name).write_bytes(content)
            sums.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n")
        head = {"Origin": "Debian", "Suite": "stable", "Codename": "t", "Date": date(0), **release}
        text = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in head.items())
        (self.folder / "Release").write_text(text + "SHA256:\n" + "".join(sums))
        for name in ("InRelease", "Release.gpg"):
            (self.folder / name).unlink(missing_ok=True)
        if signed:
            signing.sign(self.home, signing.fingerprint(self.home, "repository"), self.folder / "Release")


def date(days: float) -> str:
    """Return the time `days` from now in the format of Release files."""
    return formatdate(time.time() + days * DAY, usegmt=True).replace("GMT", "UTC")


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Stay silent."""

    def send_head(self) -> Any:
        """Send the file regardless of its time: tests replace it within a second."""
        del self.headers["If-Modified-Since"]
        return super().send_head()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder on 127.0.0.1; yields the address."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Apt:
    """apt of one release, with the tests' own sources."""

    root: Root

    def __post_init__(self) -> None:
        (self.root.own / "etc/apt/apt.conf.d/99test").write_text(_SETTINGS)
        (self.root.own / "etc/apt/apt.conf.d/70debconf").unlink(missing_ok=True)
        (self.root.own / "var/lib/dpkg/status").touch()

    def sources(self, **files: str) -> None:
        """Replace the one-line sources: the name of a file → its text."""
        folder = self.root.own / "etc/apt/sources.list.d"
        for old in folder.iterdir():
            old.unlink()
        for name, text in files.items():
            (folder / f"{name}.list").write_text(f"{text}\n")

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell as root, with the environment that gpuprov_packages gives to apt."""
        environment = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        return self.root.run("sh", "-c", script, network=True, environment=environment)
