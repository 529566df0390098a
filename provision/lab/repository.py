"""The fixture repositories: NVIDIA's names and layout, built from fixtures/, indexed, signed, cached.

Laid out as the originals, so that a role's production path is taken with only URL and key changed:

    cuda/repos/debian13/x86_64/            flat; key 8793F200.pub        (debian12: key 3bf863cc.pub)
    libnvidia-container/stable/deb/amd64/  flat; key libnvidia-container/gpgkey
    tools/                                 flat; key tools/site.asc
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.lab import debfile, elf, packages, signing
from provision.lab.command import waiting_lock
from provision.lab.debfile import Deb
from provision.lab.places import CACHE, PACKAGES

_CACHE = CACHE / "repository"


@dataclass(frozen=True)
class Layout:
    """Where one repository is below the server's root: its folder and its public key's file."""

    folder: str
    key: str


# repository -> Debian release (or "" for all) -> where
LAYOUTS: Mapping[str, Mapping[str, Layout]] = {
    "cuda": {
        "debian13": Layout("cuda/repos/debian13/x86_64", "cuda/repos/debian13/x86_64/8793F200.pub"),
        "debian12": Layout("cuda/repos/debian12/x86_64", "cuda/repos/debian12/x86_64/3bf863cc.pub"),
    },
    "toolkit": {"": Layout("libnvidia-container/stable/deb/amd64", "libnvidia-container/gpgkey")},
    "tools": {"": Layout("tools", "tools/site.asc")},
}
ORIGINS = {"cuda": "NVIDIA", "toolkit": "https://nvidia.github.io/libnvidia-container", "tools": "site"}


def layout(repository: str, release: str) -> Layout:
    """Where `repository` is for nodes of `release`."""
    places = LAYOUTS[repository]
    return places.get(release) or places[""]


@dataclass(frozen=True)
class Repository:
    """The built repositories: the folder to serve, and the key fingerprint of each."""

    www: Path
    fingerprints: Mapping[str, str]


def ensure_repository(
    say: Callable[[str], None], source: Path = PACKAGES, cache: Path = _CACHE
) -> Repository:
    """The repositories built from `source`; from the cache unless it, the builder or the kernel changed."""
    kernel = os.uname().release
    key = content_key(source, kernel)
    done = cache / key
    with waiting_lock(cache.with_suffix(".lock")):
        if not (done / "fingerprints.json").exists():
            built = packages.read_packages(source, kernel)
            say(f"building {sum(map(len, built.values()))} fixture packages")
            building = cache / f"building-{os.getpid()}"
            shutil.rmtree(building, ignore_errors=True)
            try:
                _build(building, built)
                shutil.rmtree(done, ignore_errors=True)
                building.rename(done)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return Repository(done / "www", json.loads((done / "fingerprints.json").read_text()))


def content_key(source: Path, kernel: str) -> str:
    """A name for what would be built: it changes with the fixtures, our code and the kernel."""
    digest = hashlib.sha256(kernel.encode())
    for module in (debfile, elf, packages, signing):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    for file in packages.fixture_files(source):  # when there is none, read_packages says so
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path, built: Mapping[str, list[Deb]]) -> None:
    www = folder / "www"
    fingerprints = {}
    with signing.keyring() as home:
        for name, debs in built.items():
            places = list(LAYOUTS[name].values())
            first = www / places[0].folder
            fingerprints[name] = signing.fingerprint(home, name)
            write_index(first, debs, ORIGINS[name])
            signing.sign(home, fingerprints[name], first / "Release")
            for place in places[1:]:
                shutil.copytree(first, www / place.folder, copy_function=os.link)
            for place in places:
                (www / place.key).parent.mkdir(parents=True, exist_ok=True)
                (www / place.key).write_text(signing.public_key(home, fingerprints[name]))
    (folder / "fingerprints.json").write_text(json.dumps(fingerprints) + "\n")


def write_index(folder: Path, debs: list[Deb], origin: str) -> None:
    """Write the packages and a flat repository's Packages and Release (not signed yet) into `folder`."""
    folder.mkdir(parents=True)
    stanzas = []
    for deb in debs:
        content = deb.pack()
        (folder / deb.filename).write_bytes(content)
        file = {"Filename": f"./{deb.filename}", "Size": str(len(content)), **_sums(content)}
        fields = deb.fields()
        description = fields.pop("Description")
        stanzas.append(debfile.control_text({**fields, **file, "Description": description}))
    index = "\n".join(stanzas).encode()
    indexes = {"Packages": index, "Packages.gz": gzip.compress(index, mtime=0)}
    for name, content in indexes.items():
        (folder / name).write_bytes(content)
    now = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
    lines = [f"Origin: {origin}", f"Label: {origin}", "Architectures: amd64 all", f"Date: {now}", "SHA256:"]
    lines += [f" {_sums(content)['SHA256']} {len(content)} {name}" for name, content in indexes.items()]
    (folder / "Release").write_text("\n".join(lines) + "\n")


def _sums(content: bytes) -> dict[str, str]:
    return {"SHA256": hashlib.sha256(content).hexdigest()}
