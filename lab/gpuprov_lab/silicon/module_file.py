"""Kernel modules on a node's disk: their files, their .modinfo, and their settings in modprobe.d."""

import platform
import shlex
import struct
from pathlib import Path

ENDINGS = (".ko", ".ko.xz")


def find(root: Path, name: str):
    """Find the module's file for the running kernel, or None; DKMS's folders win, as in depmod."""
    base = root / "lib/modules" / platform.release()
    module = name.replace("-", "_")
    found = []
    for path in base.rglob("*.ko*") if base.is_dir() else ():
        for ending in ENDINGS:
            if path.name.endswith(ending) and path.name[: -len(ending)].replace("-", "_") == module:
                found.append(path)
    found.sort(key=lambda path: ("updates" not in path.parts, str(path)))
    return found[0] if found else None


def information(path: Path) -> dict:
    """Parse the key=value pairs of a .modinfo section (ELF64, little-endian); {} if it is not a module."""
    data = path.read_bytes()
    if path.name.endswith(".xz"):
        import lzma

        data = lzma.decompress(data)
    if data[:6] != b"\x7fELF\x02\x01":
        return {}
    table, size, count, names = struct.unpack_from("<Q", data, 40) + struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    texts = headers[names]
    for header in headers:
        start = texts[4] + header[0]
        if data[start : data.index(b"\0", start)] == b".modinfo":
            section = data[header[4] : header[4] + header[5]]
            pairs = [one.partition(b"=") for one in section.split(b"\0") if one]
            return {key.decode("latin-1"): value.decode("latin-1") for key, _, value in pairs}
    return {}


class Settings:
    """/etc/modprobe.d and similar folders: `blacklisted` names, `install` commands, `options` by module."""

    def __init__(self, root: Path) -> None:
        self.blacklisted = set()
        self.install = {}
        self.options = {}
        files = {}
        for place in ("usr/lib/modprobe.d", "lib/modprobe.d", "run/modprobe.d", "etc/modprobe.d"):
            for path in (root / place).glob("*.conf"):
                files[path.name] = path
        for name in sorted(files):
            self._read(files[name])

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(errors="replace").replace("\\\n", " ").splitlines()
        except OSError:
            return
        for line in lines:
            words = line.split()
            if len(words) < 2 or words[0].startswith("#"):
                continue
            name = words[1].replace("-", "_")
            if words[0] == "blacklist":
                self.blacklisted.add(name)
            elif words[0] == "install":
                self.install[name] = " ".join(words[2:])
            elif words[0] == "options":
                self.options.setdefault(name, []).extend(words[2:])

    def never_loads(self, name: str) -> bool:
        """Whether `install NAME /bin/false` or the like prevents any loading of the module."""
        command = shlex.split(self.install.get(name, ""))
        return bool(command) and Path(command[0]).name in ("false", "true", ":")
