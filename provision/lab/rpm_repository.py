"""Writes an rpm repository as createrepo_c does: packages, and repodata/ with their indexes and modules."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from provision.lab.rpmfile import Packed, Relation, Rpm, pack

_COMMON = 'xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm"'
_FLAGS = {"<": "LT", ">": "GT", "=": "EQ", "<=": "LE", ">=": "GE"}
_EPOCH = 1_700_000_000
MODULE = "nvidia-driver"
# The stream a machine gets that enabled none.
_DEFAULT_STREAM = "latest-dkms"
_MODULE_VERSION = 20251201000000


def write(
    folder: Path, rpms: list[Rpm], sign: Callable[[bytes], bytes] | None, major: str, modules: bool
) -> Path:
    """Write the packages and their indexes into `folder`; returns repomd.xml, not signed yet.

    `sign` makes the signature of a package's header; None: packages are not signed.
    """
    repodata = folder / "repodata"
    repodata.mkdir(parents=True)
    packed = [(rpm, pack(rpm, sign)) for rpm in rpms]
    for rpm, file in packed:
        (folder / rpm.filename).write_bytes(file.content)
    indexes = {
        "primary": _primary(packed),
        "filelists": _filelists(packed),
        "other": _other(packed),
    }
    if modules and any(rpm.streams for rpm in rpms):
        indexes["modules"] = modules_yaml(rpms, major)
    entries = [_write_index(repodata, kind, text) for kind, text in indexes.items()]
    repomd = repodata / "repomd.xml"
    repomd.write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<repomd xmlns="http://linux.duke.edu/metadata/repo">\n'
        f"  <revision>{_EPOCH}</revision>\n{''.join(entries)}</repomd>\n"
    )
    return repomd


def modules_yaml(rpms: Iterable[Rpm], major: str) -> str:
    """modules.yaml: one document per stream of the module, and which stream is the default one."""
    streams: dict[str, list[Rpm]] = {}
    for rpm in rpms:
        for stream in rpm.streams:
            streams.setdefault(stream, []).append(rpm)
    documents = [_stream(stream, found, major) for stream, found in sorted(streams.items())]
    defaults = (
        "---\ndocument: modulemd-defaults\nversion: 1\ndata:\n"
        f"  module: {MODULE}\n  stream: {_DEFAULT_STREAM}\n  profiles:\n"
        + "".join(f"    {stream}: [default]\n" for stream in sorted(streams))
        + "...\n"
    )
    return "".join([*documents, defaults])


def _stream(stream: str, rpms: list[Rpm], major: str) -> str:
    names = {rpm.name for rpm in rpms}
    manager = sorted(name for name in names if name.startswith("nvidia-fabric"))
    profiles = {"default": ["nvidia-driver-cuda"], "fm": ["nvidia-driver-cuda", *manager[:1]]}
    context = hashlib.sha256(f"{stream} {major}".encode()).hexdigest()[:8]
    lines = [
        "---",
        "document: modulemd",
        "version: 2",
        "data:",
        f"  name: {MODULE}",
        f'  stream: "{stream}"',
        f"  version: {_MODULE_VERSION}",
        f'  context: "{context}"',
        "  arch: x86_64",
        f"  summary: Nvidia driver for {stream} branch",
        "  description: >-",
        "    This package provides the most recent NVIDIA display driver of this branch.",
        "  license:",
        "    module: [MIT]",
        "  dependencies:",
        "  - requires:",
        f"      platform: [el{major}]",
        "  profiles:",
        *(f"    {name}: {{rpms: [{', '.join(wanted)}]}}" for name, wanted in profiles.items()),
        "  artifacts:",
        "    rpms:",
        *(f"    - {nevra}" for nevra in sorted(rpm.nevra for rpm in rpms)),
        "...",
    ]
    return "\n".join(lines) + "\n"


def _primary(packed: list[tuple[Rpm, Packed]]) -> str:
    parts = [
        f'<package type="rpm">\n  <name>{rpm.name}</name>\n  <arch>{rpm.architecture}</arch>\n'
        f"  {_version(rpm)}\n"
        f'  <checksum type="sha256" pkgid="YES">{_sha256(file.content)}</checksum>\n'
        f"  <summary>{escape(rpm.summary)}</summary>\n  <description>{escape(rpm.summary)}</description>\n"
        f"  <packager></packager>\n  <url></url>\n"
        f'  <time file="{_EPOCH}" build="{_EPOCH}"/>\n'
        f'  <size package="{len(file.content)}" installed="{file.installed_size}"'
        f' archive="{file.archive_size}"/>\n'
        f"  <location href={quoteattr(rpm.filename)}/>\n  <format>\n"
        f"    <rpm:license>Proprietary</rpm:license>\n    <rpm:group>Unspecified</rpm:group>\n"
        f"    <rpm:sourcerpm>{rpm.name}-{rpm.upstream}-{rpm.release}.src.rpm</rpm:sourcerpm>\n"
        f'    <rpm:header-range start="{file.header_start}" end="{file.header_end}"/>\n'
        f"{_relations(rpm)}"
        f"{_files(path for path in rpm.files if '/bin/' in path or path.startswith('/etc/'))}"
        "  </format>\n</package>\n"
        for rpm, file in packed
    ]
    return _document("metadata", _COMMON, parts)


def _relations(rpm: Rpm) -> str:
    text = ""
    for kind in ("provides", "requires", "conflicts", "obsoletes", "recommends"):
        entries = "".join(f"      <rpm:entry {_relation(one)}/>\n" for one in rpm.related(kind))
        if entries:
            text += f"    <rpm:{kind}>\n{entries}    </rpm:{kind}>\n"
    return text


def _relation(one: Relation) -> str:
    if not one.operator:
        return f"name={quoteattr(one.name)}"
    epoch, colon, rest = one.version.partition(":")
    version, _, release = (rest if colon else one.version).partition("-")
    fields = {
        "name": one.name,
        "flags": _FLAGS[one.operator],
        "epoch": epoch if colon else "0",
        "ver": version,
    }
    if release:
        fields["rel"] = release
    return " ".join(f"{key}={quoteattr(value)}" for key, value in fields.items())


def _filelists(packed: list[tuple[Rpm, Packed]]) -> str:
    parts = [f"{_head(rpm, file)}  {_version(rpm)}\n{_files(rpm.files)}</package>\n" for rpm, file in packed]
    return _document("filelists", 'xmlns="http://linux.duke.edu/metadata/filelists"', parts)


def _other(packed: list[tuple[Rpm, Packed]]) -> str:
    parts = [f"{_head(rpm, file)}  {_version(rpm)}\n</package>\n" for rpm, file in packed]
    return _document("otherdata", 'xmlns="http://linux.duke.edu/metadata/other"', parts)


def _head(rpm: Rpm, file: Packed) -> str:
    return f'<package pkgid="{_sha256(file.content)}" name={quoteattr(rpm.name)} arch="{rpm.architecture}">\n'


def _version(rpm: Rpm) -> str:
    return f'<version epoch="{rpm.epoch}" ver={quoteattr(rpm.upstream)} rel={quoteattr(rpm.release)}/>'


def _files(paths: Iterable[str]) -> str:
    return "".join(f"  <file>{escape(path)}</file>\n" for path in sorted(paths))


def _document(kind: str, namespaces: str, parts: list[str]) -> str:
    head = f'<?xml version="1.0" encoding="UTF-8"?>\n<{kind} {namespaces} packages="{len(parts)}">\n'
    return f"{head}{''.join(parts)}</{kind}>\n"


def _write_index(repodata: Path, kind: str, text: str) -> str:
    content = text.encode()
    packed = gzip.compress(content, compresslevel=6, mtime=0)
    suffix = "yaml" if kind == "modules" else "xml"
    name = f"{_sha256(packed)}-{kind}.{suffix}.gz"
    (repodata / name).write_bytes(packed)
    return (
        f'  <data type="{kind}">\n    <checksum type="sha256">{_sha256(packed)}</checksum>\n'
        f'    <open-checksum type="sha256">{_sha256(content)}</open-checksum>\n'
        f'    <location href="repodata/{name}"/>\n    <timestamp>{_EPOCH}</timestamp>\n'
        f"    <size>{len(packed)}</size>\n    <open-size>{len(content)}</open-size>\n  </data>\n"
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
