"""Reads fixtures/redhat/*.yml: the fixture packages of the RHEL family, per major release.

- name: nvidia-driver-cuda             # placeholders as in packages.py, and {dist} (.el9)
  versions: ["3:580.126.09-1{dist}"]   # EPOCH:VERSION-RELEASE; or, in place of name and versions:
  nvr: "kernel-devel-{kernel_release}" # the whole name, which is split as by rpm
  repository: cuda                     # cuda, toolkit, tools or system (the distribution's own)
  architecture: noarch                 # default: x86_64
  majors: ["8", "9"]                   # releases that have it; default: all
  streams: ["{branch}-open"]           # of the module nvidia-driver, on releases with modules
  requires: ["nvidia-persistenced = {version}"]  # also provides, conflicts, obsoletes, recommends
  summary: CUDA integration for NVIDIA driver
  files: {}                            # as in packages.py
  configs: [/etc/x.conf]
  scripts: {post: "ldconfig\\n"}        # also pre, preun, postun

- same_as: "cuda-*"                    # the apt repository's packages with these names, converted to rpm
  name: libnccl                        # under another name
  streams: [open-dkms]
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprov_lab import packages
from gpuprov_lab.rpmfile import OPERATORS, RELATIONS, Rpm
from provision.errors import LabError

REPOSITORIES = (*packages.REPOSITORIES, "system")
MAJORS = ("8", "9", "10")
_KEYS = frozenset(
    {"name", "versions", "nvr", "repository", "architecture", "majors", "streams", "summary", "files"}
    | {"configs", "scripts", "same_as", *RELATIONS}
)
_SCRIPTS = ("pre", "post", "preun", "postun")
_FORMAT = "see lab/gpuprov_lab/rpm_packages.py for the format"
_VERSION = re.compile(r"(\d+:)?[0-9A-Za-z.+~^_]+-[0-9A-Za-z.+~^_]+\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*\Z")

# Debian's own packages that NVIDIA's depend on, with their names in the RHEL family.
_NAMES = {"libibumad3": "libibumad", "libibverbs1": "libibverbs"}
# Debian's maintainer scripts in rpm's terms: when they run, and with which arguments.
_DEB_SCRIPTS = {
    "preinst": ("pre", "set -- install"),
    "postinst": ("post", "set -- configure"),
    "prerm": ("preun", 'if [ "$1" = 0 ]; then set -- remove; else set -- upgrade; fi'),
    "postrm": ("postun", 'if [ "$1" = 0 ]; then set -- remove; else set -- upgrade; fi'),
}
_DEB_RELATION = re.compile(r"([a-z0-9+.-]+)(?:\s*\((<<|<=|=|>=|>>)\s*([^)]+)\))?")


@dataclass(frozen=True)
class _Target:
    """The release and the kernel that a package is made for."""

    major: str
    kernel: str

    def words(self, version: str) -> dict[str, str]:
        upstream = version.rpartition(":")[2].rpartition("-")[0]
        return {
            "version": version,
            "upstream": upstream,
            "branch": upstream.partition(".")[0],
            "dist": f".el{self.major}",
            "kernel_release": self.kernel,
            "name": "",
        }


def read_rpms(path: Path, kernel: str, major: str) -> dict[str, list[Rpm]]:
    """Read the packages of `path`/redhat for RHEL `major` and for modules of `kernel`, by repository.

    Raises LabError that names the file, the entry and the key.
    """
    target = _Target(major, kernel)
    described = list(packages.entries(packages.fixture_files(path / "redhat")))
    debian = list(packages.entries(packages.fixture_files(path)))
    names = {one["same_as"]: one["name"] for one, _ in described if "same_as" in one and "name" in one}
    repositories: dict[str, list[Rpm]] = {name: [] for name in REPOSITORIES}
    for entry, where in described:
        _check(entry, where)
        if major not in entry.get("majors", MAJORS):
            continue
        if "same_as" in entry:
            made = _translated(entry, debian, {**_NAMES, **names}, target, where)
        else:
            made = _described(entry, target, where)
        for repository, rpm in made:
            if rpm.filename in {known.filename for known in repositories[repository]}:
                raise LabError(f"{where}: {rpm.filename} is there twice", "remove one")
            repositories[repository].append(rpm)
    return repositories


def _check(entry: Any, where: str) -> None:
    if not isinstance(entry, dict):
        raise LabError(f"{where}: expected a mapping", _FORMAT)
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise LabError(f"{where}: unknown key {unknown[0]!r}", _FORMAT)
    if "same_as" in entry:
        return
    if entry.get("repository") not in REPOSITORIES:
        raise LabError(
            f"{where}: repository {entry.get('repository')!r} is not one of {', '.join(REPOSITORIES)}",
            _FORMAT,
        )
    if not entry.get("nvr") and not (entry.get("name") and entry.get("versions")):
        raise LabError(f"{where}: name and versions, or nvr, are missing", _FORMAT)
    for key in ("versions", "configs", "streams", "majors", *RELATIONS):
        texts = entry.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise LabError(f"{where}: {key!r} must be a list of texts (quote versions)", _FORMAT)
    for kind in RELATIONS:
        for text in entry.get(kind, []):
            words = text.split()
            if len(words) not in (1, 3) or (len(words) == 3 and words[1] not in OPERATORS):
                raise LabError(f"{where}: {kind} {text!r} is not NAME or NAME OPERATOR VERSION", _FORMAT)
    if set(entry.get("scripts") or {}) - set(_SCRIPTS):
        raise LabError(f"{where}: scripts are {', '.join(_SCRIPTS)}", _FORMAT)


def _described(entry: Mapping[str, Any], target: _Target, where: str) -> Iterator[tuple[str, Rpm]]:
    name, versions = entry.get("name", ""), entry.get("versions", [])
    if "nvr" in entry:
        name, version = _parted(_filled(entry["nvr"], target.words("")))
        versions = [version]
    for version in versions:
        words = target.words(_filled(version, target.words("")))
        yield entry["repository"], _rpm(entry, str(name), words, where)


def _parted(nvr: str) -> tuple[str, str]:
    """Split a package name like rpm, at its last two hyphens, into name and version.

    >>> _parted("kernel-devel-5.14.0-503.el9.x86_64")
    ('kernel-devel', '5.14.0-503.el9')
    """
    parts = nvr.removesuffix(".x86_64").rsplit("-", 2)
    if not parts[1][:1].isdigit() and parts[-1][:1].isdigit():
        return "-".join(parts[:-1]), f"{parts[-1]}-1"
    return parts[0], "-".join(parts[1:])


def _rpm(entry: Mapping[str, Any], name: str, words: dict[str, str], where: str) -> Rpm:
    words["name"] = name = _filled(name, words)
    if not _NAME.match(name) or not _VERSION.match(words["version"]):
        raise LabError(f"{where}: {name} {words['version']} is not a name and a version of rpm", _FORMAT)
    files = {}
    for path, spec in (entry.get("files") or {}).items():
        place = _filled(str(path), words)
        files[place] = packages.packed_file(spec, place, words, f"{where}, {place}")
    return Rpm(
        name,
        words["version"],
        _filled(str(entry.get("summary", name)), words),
        str(entry.get("architecture", "x86_64")),
        files,
        tuple(_filled(text, words) for text in entry.get("configs", [])),
        {kind: tuple(_filled(text, words) for text in entry.get(kind, [])) for kind in RELATIONS},
        {kind: _filled(text, words) for kind, text in (entry.get("scripts") or {}).items()},
        tuple(_filled(text, words) for text in entry.get("streams", [])),
    )


def _filled(text: str, words: Mapping[str, str]) -> str:
    return packages.PLACEHOLDER.sub(lambda match: words[match[1]], text)


def _translated(
    entry: Mapping[str, Any],
    debian: Iterable[tuple[Any, str]],
    names: Mapping[str, str],
    target: _Target,
    where: str,
) -> Iterator[tuple[str, Rpm]]:
    """Yield the matching packages of the apt repository with the layout, scripts and relations of an rpm."""
    found = [(deb, of) for deb, of in debian if fnmatch.fnmatchcase(str(deb.get("name")), entry["same_as"])]
    if not found:
        raise LabError(f"{where}: no package of the apt repository is called {entry['same_as']}", _FORMAT)
    for deb, of in found:
        name = str(entry.get("name", deb["name"]))
        relations = {
            kind: [_relation(text, names) for text in deb.get(of_deb, [])]
            for kind, of_deb in (("requires", "depends"), ("recommends", "recommends"))
        }
        described = {
            **relations,
            "repository": deb["repository"],
            "summary": str(deb.get("description", name)).strip().splitlines()[0],
            "architecture": "noarch" if deb.get("architecture") == "all" else "x86_64",
            "configs": deb.get("conffiles", []),
            "streams": entry.get("streams", []),
            "scripts": dict(_script(kind, text) for kind, text in (deb.get("scripts") or {}).items()),
            "files": {_place(file): spec for file, spec in (deb.get("files") or {}).items()},
        }
        for version in deb["versions"]:
            yield deb["repository"], _rpm(described, name, target.words(version), of)


def _relation(text: str, names: Mapping[str, str]) -> str:
    """Convert a relation, `libnccl2 (= 2.29.7-1)` → `libnccl = 2.29.7-1`; the first of alternatives."""
    match = _DEB_RELATION.match(text.strip())
    if match is None:
        raise LabError(f"{text!r} is not a Debian relation", _FORMAT)
    name, operator, version = match.groups()
    operator = {"<<": "<", ">>": ">"}.get(operator, operator)
    known = names.get(name, name)
    return f"{known} {operator} {version}" if operator else known


def _script(kind: str, text: str) -> tuple[str, str]:
    ours, arguments = _DEB_SCRIPTS[kind]
    return ours, f"{arguments}\n{text}"


def _place(path: str) -> str:
    return path.replace("/usr/lib/x86_64-linux-gnu/", "/usr/lib64/")
