"""Tiny, valid ELF64 files for fixture packages: kernel modules that `modinfo` reads, and libraries.

Layouts: the ELF-64 object file format (Tool Interface Standard); `.modinfo` is a list of `key=value` texts,
each terminated by NUL (Linux, include/linux/moduleparam.h).
"""

from __future__ import annotations

import hashlib
import platform
import struct
from collections.abc import Sequence

_MACHINES = {"x86_64": 62, "aarch64": 183}
_REL, _DYN = 1, 3
_PROGBITS, _STRTAB, _DYNAMIC, _SYMTAB = 1, 3, 6, 2
_HEADER = 64
# The license of each flavour of NVIDIA's module, which distinguishes them on disk; and amdgpu's.
LICENSES = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA", "gpl": "GPL and additional rights"}
# Aliases that the hardware requests at boot.
ALIASES = {
    "nvidia": "pci:v000010DEd*sv*sd*bc03sc02i00*",
    "amdgpu": "pci:v00001002d*sv*sd*bc12sc00i00*",
}


def kernel_module(name: str, version: str, flavour: str, kernel: str, depends: Sequence[str] = ()) -> bytes:
    """Build a relocatable object for module `name` at `version`, built for `kernel`, without any code.

    `flavour` is `open` or `proprietary`, as NVIDIA's own modules, or `gpl`; it decides the license.
    """
    underscored = name.replace("-", "_")
    lines = {
        "license": LICENSES[flavour],
        "version": version,
        "srcversion": hashlib.sha256(f"{name}{version}{flavour}".encode()).hexdigest()[:23].upper(),
        "depends": ",".join(depends),
        "retpoline": "Y",
        "name": underscored,
        "vermagic": f"{kernel} SMP preempt mod_unload modversions ",
    }
    if name in ALIASES:
        lines = {"alias": ALIASES[name], **lines}
    modinfo = b"".join(f"{key}={value}".encode() + b"\0" for key, value in lines.items())
    # depmod requires a symbol table, even an empty one: a null symbol, and the empty string that names it.
    sections = [
        (".modinfo", _PROGBITS, 2, modinfo, 1, 0, 0),
        (".symtab", _SYMTAB, 0, b"\0" * 24, 8, 24, 3),
        (".strtab", _STRTAB, 0, b"\0", 1, 0, 0),
    ]
    return _object(sections)


def _object(sections: Sequence[tuple[str, int, int, bytes, int, int, int]]) -> bytes:
    """Build a relocatable ELF file of sections (name, type, flags, content, alignment, entry size, link)."""
    names = b"\0" + b"".join(section[0].encode() + b"\0" for section in sections) + b".shstrtab\0"
    everything = [*sections, (".shstrtab", _STRTAB, 0, names, 1, 0, 0)]
    body, headers = b"", b"\0" * 64
    for name, kind, flags, content, alignment, entry, link in everything:
        body += b"\0" * (-(_HEADER + len(body)) % alignment)
        offset = _HEADER + len(body)
        where = names.index(b"\0" + name.encode() + b"\0") + 1
        # sh_info of a symbol table: the first non-local symbol.
        info = 1 if kind == _SYMTAB else 0
        headers += struct.pack(
            "<IIQQQQIIQQ", where, kind, flags, 0, offset, len(content), link, info, alignment, entry
        )
        body += content
    body += b"\0" * (-(_HEADER + len(body)) % 8)
    count = len(everything) + 1
    return _header(_REL, _HEADER + len(body), count, count - 1) + body + headers


def _header(kind: int, sections_at: int, sections: int, names: int, segments: int = 0) -> bytes:
    identity = b"\x7fELF" + bytes([2, 1, 1]) + b"\0" * 9  # 64 bits, little-endian, version 1
    machine = _MACHINES.get(platform.machine(), 62)
    segments_at = _HEADER if segments else 0
    return identity + struct.pack(
        "<HHIQQQIHHHHHH",
        *(kind, machine, 1, 0, segments_at, sections_at, 0),
        *(_HEADER, 56 if segments else 0, segments, 64 if sections else 0, sections, names),
    )


def shared_library(soname: str) -> bytes:
    """Build a shared library without code; `soname` is the name of ldconfig's link (`libnvidia-ml.so.1`)."""
    strings = b"\0" + soname.encode() + b"\0"
    dynamic_at = _HEADER + 2 * 56
    tags = [
        (14, 1),
        (5, dynamic_at + 16 * 5),
        (6, 0),
        (10, len(strings)),
        (0, 0),
    ]  # SONAME STRTAB SYMTAB STRSZ NULL
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in tags)
    size = dynamic_at + len(dynamic) + len(strings)
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 0x1000)
    where = struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    return _header(_DYN, 0, 0, 0, segments=2) + load + where + dynamic + strings
