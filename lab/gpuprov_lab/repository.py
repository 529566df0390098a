"""The fixture repositories in NVIDIA's layout: built from fixtures/, indexed, signed, cached.

They are laid out like the originals, so a role takes its production path with only URL and key changed:

    cuda/repos/debian13/x86_64/            flat; key 8793F200.pub        (debian12: key 3bf863cc.pub)
    cuda/repos/ubuntu2404/x86_64/          flat; Ubuntu's package names
    cuda/repos/rhel9/x86_64/               rpm, module streams; key D42D0685.pub (10: none; CDF6BA43.pub)
    libnvidia-container/stable/deb/amd64/  flat; key libnvidia-container/gpgkey (stable/rpm/x86_64: rpm)
    tools/                                 flat; key tools/site.asc (tools/el9: rpm)
    doca/3.2.1/debian13/x86_64/            flat; key GPG-KEY-Mellanox.pub there (doca/3.2.1/rhel9/x86_64: rpm)
    amd/                                   AMD's server (amd_repository.py)
    system/el9/                            the RHEL family's own packages, as far as roles need them
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpuprov_lab import (
    amd_repository,
    debfile,
    elf,
    packages,
    rpm_packages,
    rpm_repository,
    rpmfile,
    signing,
)
from gpuprov_lab.command import waiting_lock
from gpuprov_lab.debfile import Deb
from gpuprov_lab.places import CACHE, PACKAGES
from gpuprov_lab.releases import RELEASES
from gpuprov_lab.rpmfile import Rpm

_CACHE = CACHE / "repository"


@dataclass(frozen=True)
class Layout:
    """The place of one repository below the server's root: its folder and its public key file."""

    folder: str
    key: str


HTTP_PORT = 8080  # of the lab's server, on the bridge
_CUDA = "cuda/repos"
_DOCA = "doca/3.2.1"
_TOOLKIT_KEY = "libnvidia-container/gpgkey"

# repository -> release (or "" for all others) -> layout
LAYOUTS: Mapping[str, Mapping[str, Layout]] = {
    "cuda": {
        "debian13": Layout(f"{_CUDA}/debian13/x86_64", f"{_CUDA}/debian13/x86_64/8793F200.pub"),
        "debian12": Layout(f"{_CUDA}/debian12/x86_64", f"{_CUDA}/debian12/x86_64/3bf863cc.pub"),
        "ubuntu2404": Layout(f"{_CUDA}/ubuntu2404/x86_64", f"{_CUDA}/ubuntu2404/x86_64/3bf863cc.pub"),
        "ubuntu2204": Layout(f"{_CUDA}/ubuntu2204/x86_64", f"{_CUDA}/ubuntu2204/x86_64/3bf863cc.pub"),
        "el10": Layout(f"{_CUDA}/rhel10/x86_64", f"{_CUDA}/rhel10/x86_64/CDF6BA43.pub"),
        "el9": Layout(f"{_CUDA}/rhel9/x86_64", f"{_CUDA}/rhel9/x86_64/D42D0685.pub"),
        "el8": Layout(f"{_CUDA}/rhel8/x86_64", f"{_CUDA}/rhel8/x86_64/D42D0685.pub"),
    },
    "toolkit": {
        "": Layout("libnvidia-container/stable/deb/amd64", _TOOLKIT_KEY),
        **{
            f"el{n}": Layout("libnvidia-container/stable/rpm/x86_64", _TOOLKIT_KEY)
            for n in rpm_packages.MAJORS
        },
    },
    "tools": {
        "": Layout("tools", "tools/site.asc"),
        **{f"el{n}": Layout(f"tools/el{n}", "tools/site.asc") for n in rpm_packages.MAJORS},
    },
    "doca": {
        name: Layout(f"{_DOCA}/{folder}/x86_64", f"{_DOCA}/{folder}/x86_64/GPG-KEY-Mellanox.pub")
        for name, folder in (
            *((f"debian{n}", f"debian{n}") for n in (12, 13)),
            *(("ubuntu2204", "ubuntu22.04"), ("ubuntu2404", "ubuntu24.04")),
            *((f"el{n}", f"rhel{n}") for n in rpm_packages.MAJORS),
        )
    },
    "amd": {"": Layout(amd_repository.TOP, amd_repository.KEY)},
    "system": {f"el{n}": Layout(f"system/el{n}", "system/RPM-GPG-KEY") for n in rpm_packages.MAJORS},
}
ORIGINS = {
    **{"cuda": "NVIDIA", "toolkit": "https://nvidia.github.io/libnvidia-container"},
    **{"tools": "site", "doca": "DOCA"},
}
_MODULAR = ("8", "9")  # RHEL 10 has no module streams
# Repositories that roles use, with the prefix of the roles' variables for them; the distribution's own
# packages come with the node.
OFFERED = {
    **{name: f"nvidia_repository_{name}" for name in ("cuda", "toolkit", "tools")},
    "doca": "rdma_doca",
    "amd": "amd_repository",
}


def layout(repository: str, release: str) -> Layout:
    """Return the layout of `repository` for nodes of `release`."""
    places, system = LAYOUTS[repository], RELEASES[release]
    return places.get(f"el{system.major}" if system.dnf else release) or places[""]


@dataclass(frozen=True)
class Repository:
    """The built repositories: the folder to serve, and the key fingerprint of each."""

    www: Path
    fingerprints: Mapping[str, str]


def ensure_repository(
    say: Callable[[str], None],
    source: Path = PACKAGES,
    cache: Path = _CACHE,
    releases: Iterable[str] = ("debian13",),
) -> Repository:
    """Build the repositories that nodes of `releases` need from `source`.
    The cached ones are reused until the source, the builder or the kernel changes.
    """
    kernel, families = os.uname().release, _families(releases)
    done = cache / content_key(source, kernel, families)
    with waiting_lock(cache.with_suffix(".lock")):
        if not (done / "fingerprints.json").exists():
            building = cache / f"building-{os.getpid()}"
            shutil.rmtree(building, ignore_errors=True)
            try:
                _build(building, source, kernel, families, say)
                shutil.rmtree(done, ignore_errors=True)
                building.rename(done)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return Repository(done / "www", json.loads((done / "fingerprints.json").read_text()))


def _families(releases: Iterable[str]) -> tuple[str, ...]:
    """Return the families to build for `releases`: always Debian and Ubuntu, rpms only if needed."""
    majors = {RELEASES[release].major for release in releases if RELEASES[release].dnf}
    return ("debian", "ubuntu", *(f"el{major}" for major in rpm_packages.MAJORS if major in majors))


def content_key(source: Path, kernel: str, families: Iterable[str] = ("debian", "ubuntu")) -> str:
    """Return a cache key that changes with the fixtures, this code, the kernel and the families."""
    digest = hashlib.sha256(f"{kernel} {' '.join(families)}".encode())
    modules = (amd_repository, debfile, elf, packages, signing, rpmfile, rpm_packages, rpm_repository)
    for module in modules:
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    # Without any file, read_packages raises an error.
    for file in (*packages.fixture_files(source), *packages.fixture_files(source / "redhat")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(
    folder: Path, source: Path, kernel: str, families: tuple[str, ...], say: Callable[[str], None]
) -> None:
    www = folder / "www"
    with signing.keyring() as home:
        keys = {name: signing.fingerprint(home, name) for name in LAYOUTS}
        published = {name: signing.public_key(home, key) for name, key in keys.items()}
        for family in families:
            if family in packages.DISTRIBUTIONS:
                debs = packages.read_packages(source, kernel, family)
                say(f"building {sum(map(len, debs.values()))} fixture packages for {family}")
                for name, some in debs.items():
                    if not amd_repository.is_amds(name):
                        _write_apt(www, home, keys[name], name, family, some)
                    elif family == "ubuntu":  # Debian's would be identical
                        amd_repository.write_apt(www, home, keys["amd"], name, some)
            else:
                rpms = rpm_packages.read_rpms(source, kernel, family.removeprefix("el"))
                say(f"building {sum(map(len, rpms.values()))} fixture packages for {family}")
                for name, made in rpms.items():
                    if not made:
                        continue  # AMD offers it for other releases only
                    if amd_repository.is_amds(name):
                        folder_of = amd_repository.rpm_folder(name, family)
                        _write_rpm(www / folder_of, home, keys["amd"], made, family)
                    else:
                        _write_rpm(www / LAYOUTS[name][family].folder, home, keys[name], made, family)
        for name, places in LAYOUTS.items():
            for place in places.values():
                (www / place.key).parent.mkdir(parents=True, exist_ok=True)
                (www / place.key).write_text(published[name])
    (folder / "fingerprints.json").write_text(json.dumps(keys) + "\n")


def _write_apt(www: Path, home: Path, key: str, name: str, family: str, debs: list[Deb]) -> None:
    """Write one flat repository to every place where nodes of `family` expect it."""
    places = [place for release, place in LAYOUTS[name].items() if release.startswith(family)]
    if not places and family == "debian":
        places = [LAYOUTS[name][""]]
    for place in places[:1]:
        write_index(www / place.folder, debs, ORIGINS[name])
        signing.sign(home, key, www / place.folder / "Release")
    for place in places[1:]:
        shutil.copytree(www / places[0].folder, www / place.folder, copy_function=os.link)


def _write_rpm(folder: Path, home: Path, key: str, rpms: list[Rpm], family: str) -> None:
    if folder.exists():
        return  # one repository for all major releases, as for the container toolkit
    major = family.removeprefix("el")
    # NVIDIA signs the packages of its CUDA repository, but only the index of the container toolkit's.
    sign = None if "stable/rpm" in str(folder) else functools.partial(signing.sign_packages, home, key)
    index = rpm_repository.write(folder, rpms, sign, major, major in _MODULAR)
    signing.sign(home, key, index, {"--detach-sign": "repomd.xml.asc"})


def write_index(folder: Path, debs: list[Deb], origin: str) -> None:
    """Write the packages and a flat repository's Packages and Release (not signed yet) into `folder`."""
    folder.mkdir(parents=True)
    stanzas = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda deb: deb.build(folder), debs))
    for deb, path in zip(debs, built, strict=True):
        content = path.read_bytes()
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
