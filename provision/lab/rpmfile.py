"""Writes RPM packages (version 4 of the format) without rpmbuild: the same bytes for the same content.

A file is a lead nobody reads any more, a signature header, the header (what the package is) and a
compressed cpio archive (its files). Both headers are sorted tables of (tag, type, offset, count) over one
store of values.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from provision.lab.debfile import PackedFile

# All files and packages are dated so: a package depends on its content alone.
_EPOCH = 1_700_000_000

_INT16, _INT32, _STRING, _BIN, _STRINGS, _I18N = 3, 4, 6, 7, 8, 9
_WIDTH = {_INT16: 2, _INT32: 4}

SENSES = {"<": 2, ">": 4, "=": 8, "<=": 10, ">=": 12}
_RPMLIB = 1 << 24 | SENSES["<="]
# What rpm itself must understand of the format, in every package.
_FEATURES = (
    ("rpmlib(CompressedFileNames)", "3.0.4-1"),
    ("rpmlib(FileDigests)", "4.6.0-1"),
    ("rpmlib(PayloadFilesHavePrefix)", "4.0-1"),
)
_SCRIPTS = {"pre": (1023, 1085), "post": (1024, 1086), "preun": (1025, 1087), "postun": (1026, 1088)}
# relation -> the tags of its names, flags and versions
_RELATIONS = {
    "provides": (1047, 1112, 1113),
    "requires": (1049, 1048, 1050),
    "conflicts": (1054, 1053, 1055),
    "obsoletes": (1090, 1114, 1115),
    "recommends": (5046, 5048, 5047),
}
_SHA256 = 8
_CONFIG = 1 | 1 << 4  # %config(noreplace)


@dataclass(frozen=True)
class Relation:
    """`name`, or `name operator version` with one of SENSES."""

    name: str
    operator: str = ""
    version: str = ""

    @classmethod
    def read(cls, text: str) -> Relation:
        """The relation written as in a spec file: `dkms`, `nvidia-kmod-common = 3:580.126.09`."""
        name, operator, version = [*text.split(), "", ""][:3]
        return cls(name, operator, version)


@dataclass(frozen=True)
class Rpm:
    """One package; `version` is EPOCH:VERSION-RELEASE, the epoch optional; relations as in a spec file."""

    name: str
    version: str
    summary: str
    architecture: str = "x86_64"
    files: Mapping[str, PackedFile] = field(default_factory=dict)
    configs: tuple[str, ...] = ()
    relations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[str, ...] = ()  # of the module it belongs to

    @property
    def epoch(self) -> str:
        return self.version.partition(":")[0] if ":" in self.version else "0"

    @property
    def upstream(self) -> str:
        return self.version.rpartition(":")[2].rpartition("-")[0]

    @property
    def release(self) -> str:
        return self.version.rpartition("-")[2]

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.upstream}-{self.release}.{self.architecture}.rpm"

    @property
    def nevra(self) -> str:
        """As modules.yaml names its packages: the epoch always written."""
        return f"{self.name}-{self.epoch}:{self.upstream}-{self.release}.{self.architecture}"

    def related(self, kind: str) -> list[Relation]:
        """Its relations of one kind, what every package provides included."""
        found = [Relation.read(text) for text in self.relations.get(kind, ())]
        if kind == "provides":
            own = f"{self.epoch}:" if self.epoch != "0" else ""
            found.append(Relation(self.name, "=", f"{own}{self.upstream}-{self.release}"))
        return found


@dataclass(frozen=True)
class Packed:
    """A package as a file, and where in it the header lies, which indexes name."""

    content: bytes
    header_start: int
    header_end: int
    installed_size: int
    archive_size: int


def pack(rpm: Rpm, sign: Callable[[bytes], bytes] | None = None) -> Packed:
    """The .rpm file; `sign` makes a binary OpenPGP signature of the header, which covers the rest."""
    archive = _cpio(rpm.files)
    payload = gzip.compress(archive, compresslevel=6, mtime=0)
    header = _table(63, _header(rpm, payload))
    signatures: dict[int, tuple[int, list[object]]] = {
        269: (_STRING, [hashlib.sha1(header, usedforsecurity=False).hexdigest()]),
        273: (_STRING, [hashlib.sha256(header).hexdigest()]),
        1000: (_INT32, [len(header) + len(payload)]),
        1004: (_BIN, [hashlib.md5(header + payload, usedforsecurity=False).digest()]),
        1007: (_INT32, [len(archive)]),
    }
    if sign is not None:
        signatures[267] = (_BIN, [sign(header)])  # the tag of every algorithm but RSA
    signature = _table(62, signatures)
    before = _lead(rpm) + signature + b"\0" * (-len(signature) % 8)
    size = sum(len(file.link or file.content) for file in rpm.files.values())
    return Packed(before + header + payload, len(before), len(before) + len(header), size, len(archive))


def _lead(rpm: Rpm) -> bytes:
    name = f"{rpm.name}-{rpm.upstream}-{rpm.release}".encode()[:65]
    return struct.pack(">4sBBhh66shh16x", b"\xed\xab\xee\xdb", 3, 0, 0, 1, name, 1, 5)


def _header(rpm: Rpm, payload: bytes) -> dict[int, tuple[int, list[object]]]:
    tags: dict[int, tuple[int, list[object]]] = {
        100: (_STRINGS, ["C"]),
        1000: (_STRING, [rpm.name]),
        1001: (_STRING, [rpm.upstream]),
        1002: (_STRING, [rpm.release]),
        1004: (_I18N, [rpm.summary]),
        1005: (_I18N, [rpm.summary]),
        1006: (_INT32, [_EPOCH]),
        1007: (_STRING, ["localhost"]),
        1009: (_INT32, [sum(len(file.link or file.content) for file in rpm.files.values())]),
        1014: (_STRING, ["Proprietary"]),
        1016: (_I18N, ["Unspecified"]),
        1021: (_STRING, ["linux"]),
        1022: (_STRING, [rpm.architecture]),
        1044: (_STRING, [f"{rpm.name}-{rpm.upstream}-{rpm.release}.src.rpm"]),
        1064: (_STRING, ["4.16.1.3"]),
        1124: (_STRING, ["cpio"]),
        1125: (_STRING, ["gzip"]),
        1126: (_STRING, ["6"]),
        5092: (_STRINGS, [hashlib.sha256(payload).hexdigest()]),
        5093: (_INT32, [_SHA256]),
    }
    if rpm.epoch != "0":
        tags[1003] = (_INT32, [int(rpm.epoch)])
    for kind, (names, flags, versions) in _RELATIONS.items():
        entries = [(one.name, SENSES.get(one.operator, 0), one.version) for one in rpm.related(kind)]
        if kind == "requires":
            entries += [(name, _RPMLIB, version) for name, version in _FEATURES]
        if entries:
            tags[names] = (_STRINGS, [entry[0] for entry in entries])
            tags[flags] = (_INT32, [entry[1] for entry in entries])
            tags[versions] = (_STRINGS, [entry[2] for entry in entries])
    for kind, text in rpm.scripts.items():
        body, program = _SCRIPTS[kind]
        tags[body], tags[program] = (_STRING, [text]), (_STRING, ["/bin/sh"])
    if rpm.files:
        tags |= _file_tags(rpm)
    return tags


def _file_tags(rpm: Rpm) -> dict[int, tuple[int, list[object]]]:
    paths = sorted(rpm.files)
    files = [rpm.files[path] for path in paths]
    folders = sorted({path.rpartition("/")[0] + "/" for path in paths})
    digests = ["" if file.link else hashlib.sha256(file.content).hexdigest() for file in files]
    columns: dict[int, tuple[int, list[object]]] = {
        1028: (_INT32, [len(file.link or file.content) for file in files]),
        1030: (_INT16, [_mode(file) for file in files]),
        1033: (_INT16, [0] * len(files)),
        1034: (_INT32, [_EPOCH] * len(files)),
        1035: (_STRINGS, [*digests]),
        1036: (_STRINGS, [file.link for file in files]),
        1037: (_INT32, [_CONFIG if path in rpm.configs else 0 for path in paths]),
        1039: (_STRINGS, ["root"] * len(files)),
        1040: (_STRINGS, ["root"] * len(files)),
        1045: (_INT32, [0xFFFFFFFF] * len(files)),
        1095: (_INT32, [1] * len(files)),
        1096: (_INT32, [*range(1, len(files) + 1)]),
        1097: (_STRINGS, [""] * len(files)),
        1116: (_INT32, [folders.index(path.rpartition("/")[0] + "/") for path in paths]),
        1117: (_STRINGS, [path.rpartition("/")[2] for path in paths]),
        1118: (_STRINGS, [*folders]),
        5011: (_INT32, [_SHA256]),
    }
    return columns


def _mode(file: PackedFile) -> int:
    return 0o120777 if file.link else 0o100000 | file.mode


def _table(region: int, tags: Mapping[int, tuple[int, list[object]]]) -> bytes:
    """A header: its index sorted by tag, and the region entry that makes it one signed whole."""
    index, store = [], b""
    for tag, (kind, values) in sorted(tags.items()):
        store += b"\0" * (-len(store) % _WIDTH.get(kind, 1))
        count = len(values) if kind != _BIN else len(_bytes(values[0]))
        index.append(struct.pack(">4i", tag, kind, len(store), count))
        store += b"".join(_value(kind, value) for value in values)
    entries = len(index) + 1
    index.insert(0, struct.pack(">4i", region, _BIN, len(store), 16))
    store += struct.pack(">4i", region, _BIN, -16 * entries, 16)
    return b"\x8e\xad\xe8\x01\0\0\0\0" + struct.pack(">2i", entries, len(store)) + b"".join(index) + store


def _value(kind: int, value: object) -> bytes:
    if kind == _BIN:
        return _bytes(value)
    if kind == _INT16:
        return struct.pack(">H", value)
    if kind == _INT32:
        return struct.pack(">I", value)
    return str(value).encode() + b"\0"


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"binary values are bytes, not {type(value).__name__}")
    return value


def _cpio(files: Mapping[str, PackedFile]) -> bytes:
    """The files as a cpio archive in the "new" format, every name below `.`."""
    parts = [
        _member(f".{path}", number, _mode(file), file.link.encode() if file.link else file.content)
        for number, (path, file) in enumerate(sorted(files.items()), start=1)
    ]
    return b"".join([*parts, _member("TRAILER!!!", 0, 0, b"", when=0)])


def _member(name: str, inode: int, mode: int, content: bytes, when: int = _EPOCH) -> bytes:
    numbers = (inode, mode, 0, 0, 1, when, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)
