"""Reads fixtures/*.yml, which describe the fixture packages with their versions and files.

They have the names, versions, dependencies and file layout of NVIDIA's own repository for Debian (of AMD's
repositories, and of a site's repository of validation tools), so that the roles take their production path.
Library files are tiny ELF objects; tools are launchers of the simulated ones.

- name: nvidia-utils                 # placeholders are usable in every text: {version} 1:580.95.05-1,
  versions: ["580.95.05-1"]          # {upstream} 580.95.05, {branch} 580, {kernel_release} (uname -r), {name}
  repository: cuda                   # cuda, toolkit, tools, doca, or one of AMD's: rocm/7.2.3
  distributions: [debian]            # debian, ubuntu; default: both
  architecture: amd64                # or all
  depends: ["libnvidia-ml1 (= {version})"]      # and the other relations: recommends, conflicts, provides…
  description: NVIDIA utilities
  files:
    /usr/bin/nvidia-smi: {launcher: nvidia-smi}             # launches the simulated tool of that name
    /etc/x.conf: {content: "text", mode: "0644"}
    /usr/lib/libx.so.1: {link: libx.so.{upstream}}
    /usr/lib/libx.so.{upstream}: {elf: true, soname: libx.so.1}
    /lib/modules/{kernel_release}/updates/dkms/nvidia.ko: {kernel_module: nvidia, flavour: open, depends: []}
                                                            # and version, if it differs from the package's
  conffiles: [/etc/x.conf]
  scripts: {postinst: "#!/bin/sh\\nexit 0\\n"}   # also preinst, prerm, postrm
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuprov_lab.debfile import Deb, PackedFile
from gpuprov_lab.elf import LICENSES, kernel_module, shared_library
from provision.errors import LabError

# AMD has a repository for each release.
AMD = ("amdgpu/6.4.4", "amdgpu/30.20.1", "amdgpu/30.30.3", "rocm/6.4.4", "rocm/7.2.3", "graphics/7.2.3",
       "amd-container-toolkit")  # fmt: skip
REPOSITORIES = ("cuda", "toolkit", "tools", "doca", *AMD)
DISTRIBUTIONS = ("debian", "ubuntu")
_RELATIONS = (
    "pre-depends",
    "depends",
    "recommends",
    "suggests",
    "conflicts",
    "breaks",
    "provides",
    "replaces",
)
_PLAIN = (
    "name",
    "versions",
    "repository",
    "distributions",
    "architecture",
    "section",
    "description",
    "files",
    "conffiles",
    "scripts",
)
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
PLACEHOLDER = re.compile(r"\{(version|upstream|kernel_release|name|branch|dist)\}")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_VERSION = re.compile(r"(\d+:)?[0-9][A-Za-z0-9.+~-]*\Z")


def upstream(version: str) -> str:
    """Return a Debian version without epoch and revision: `1:580.95.05-1~deb13` → `580.95.05`."""
    without_epoch = version.partition(":")[2] or version
    return without_epoch.rpartition("-")[0] or without_epoch


def read_packages(path: Path, kernel: str, distribution: str = "debian") -> dict[str, list[Deb]]:
    """Read the packages of `path` (a folder of fixtures, or one file) for `distribution`, by repository.

    `kernel`: the release that their modules are for. Raises LabError that names the file, the entry and the
    key.
    """
    files = fixture_files(path)
    if not files:
        raise LabError(f"{path} is missing: the lab has no packages to offer", "reinstall gpuprov")
    repositories: dict[str, list[Deb]] = {name: [] for name in REPOSITORIES}
    seen: set[tuple[str, str, str]] = set()
    for entry, where in entries(files):
        check_entry(entry, where)
        if distribution not in entry.get("distributions", DISTRIBUTIONS):
            continue
        for version in entry["versions"]:
            deb = _package(entry, version, kernel, where)
            key = (entry["repository"], deb.control["Package"], version)
            if key in seen:
                raise LabError(f"{where}: version {version} is there twice", "remove one")
            seen.add(key)
            repositories[entry["repository"]].append(deb)
    return repositories


def fixture_files(path: Path) -> list[Path]:
    """Return the fixture files: all files of a folder, or a single file."""
    return sorted(path.glob("*.yml")) if path.is_dir() else [path] if path.exists() else []


def entries(files: list[Path]) -> Iterator[tuple[Any, str]]:
    """Yield every described package with its location."""
    import yaml

    for path in files:
        try:
            entries = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise LabError(f"{path} is not YAML: {error}", "correct it") from error
        if not isinstance(entries, list):
            raise LabError(
                f"{path}: expected a list of packages", "see lab/gpuprov_lab/packages.py for the format"
            )
        for number, entry in enumerate(entries, start=1):
            name = f" ({entry.get('name', 'no name')})" if isinstance(entry, dict) else ""
            yield entry, f"{path.name}, package {number}{name}"


def check_entry(entry: Any, where: str) -> None:
    fix = "see lab/gpuprov_lab/packages.py for the format"
    if not isinstance(entry, dict):
        raise LabError(f"{where}: expected a mapping", fix)
    for key in ("name", "versions", "repository"):
        if not entry.get(key):
            raise LabError(f"{where}: {key!r} is missing", fix)
    unknown = sorted(set(entry) - {*_PLAIN, *_RELATIONS})
    if unknown:
        raise LabError(f"{where}: unknown key {unknown[0]!r}", fix)
    if entry["repository"] not in REPOSITORIES:
        raise LabError(
            f"{where}: repository {entry['repository']!r} is not one of {', '.join(REPOSITORIES)}", fix
        )
    for key in ("versions", "conffiles", "distributions", *_RELATIONS):
        texts = entry.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise LabError(f"{where}: {key!r} must be a list of texts (quote versions)", fix)
    for one in entry.get("distributions", ()):
        if one not in DISTRIBUTIONS:
            raise LabError(f"{where}: distribution {one!r} is not one of {', '.join(DISTRIBUTIONS)}", fix)
    for version in entry["versions"]:
        if not _VERSION.match(version):
            raise LabError(f"{where}: {version!r} is not a Debian version", fix)
    if set(entry.get("scripts") or {}) - set(_SCRIPTS):
        raise LabError(f"{where}: scripts are {', '.join(_SCRIPTS)}", fix)


def _package(entry: Mapping[str, Any], version: str, kernel: str, where: str) -> Deb:
    words = {"version": version, "upstream": upstream(version), "kernel_release": kernel, "dist": ""}
    words["branch"] = words["upstream"].partition(".")[0]

    def fill(text: str) -> str:
        return PLACEHOLDER.sub(lambda match: words[match[1]], text)

    words["name"] = name = fill(str(entry["name"]))
    if not _NAME.match(name):
        raise LabError(f"{where}: {name!r} is not a Debian package name", "lower case letters, digits, + . -")
    control = {
        "Package": name,
        "Version": version,
        "Architecture": str(entry.get("architecture", "amd64")),
        "Maintainer": "gpuprov lab <lab@localhost>",
        "Section": str(entry.get("section", "non-free/libs")),
        "Priority": "optional",
        **{key.title(): ", ".join(map(fill, entry.get(key, []))) for key in _RELATIONS},
        "Description": fill(str(entry.get("description", name))),
    }
    files = {}
    for path, spec in (entry.get("files") or {}).items():
        place = fill(str(path))
        if not place.startswith("/") or ".." in place.split("/"):
            raise LabError(f"{where}: {place!r} is not an absolute path", "start it with /")
        files[place] = packed_file(spec, place, words, f"{where}, {place}")
    scripts = {key: fill(str(text)) for key, text in (entry.get("scripts") or {}).items()}
    return Deb(control, files, tuple(map(fill, entry.get("conffiles", []))), scripts)


def packed_file(spec: Any, path: str, words: Mapping[str, str], where: str) -> PackedFile:
    """Build one file of a package from its fixture, with `words` in place of the placeholders."""

    def fill(text: object) -> str:
        return PLACEHOLDER.sub(lambda match: words[match[1]], str(text))

    kinds = [kind for kind in ("launcher", "content", "link", "kernel_module", "elf") if kind in (spec or {})]
    if not isinstance(spec, dict) or len(kinds) != 1:
        raise LabError(
            f"{where}: needs exactly one of launcher, content, link, kernel_module, elf", "correct it"
        )
    if kinds == ["link"]:
        return PackedFile(link=fill(spec["link"]))
    if kinds == ["content"]:
        return PackedFile(fill(spec["content"]).encode(), int(str(spec.get("mode", "0644")), 8))
    if kinds == ["elf"]:
        return PackedFile(shared_library(fill(spec.get("soname", path.rpartition("/")[2]))))
    if kinds == ["launcher"]:
        run = "exec /usr/bin/python3 -I -S /usr/lib/silicon/run.py"
        text = f'#!/bin/sh\nSILICON_VERSION={words["upstream"]} {run} {fill(spec["launcher"])} "$@"\n'
        return PackedFile(text.encode(), 0o755)
    module, flavour = fill(spec["kernel_module"]), spec.get("flavour", "open")
    if flavour not in LICENSES:
        raise LabError(f"{where}: flavour {flavour!r} is none of {', '.join(LICENSES)}", "correct it")
    depends = spec.get("depends", [] if module == "nvidia" else ["nvidia"])
    version = str(spec.get("version", words["upstream"]))
    return PackedFile(kernel_module(module, version, flavour, words["kernel_release"], depends))
