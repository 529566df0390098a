"""The files of a simulated node that are not surfaces of the lab: the contents of its packages."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from gpuprov_lab.elf import kernel_module, shared_library

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")
DRIVER = "580.126.09"
AMDGPU, ROCM = "6.12.12", "6.4.1-83"
# Driver and ROCm of SKUs that need newer ones.
NEWER = {"mi355x": ("6.16.13", "7.2.1-43"), "mi300a": ("6.16.13", "7.2.1-43")}
RELEASE = """\
PRETTY_NAME="Debian GNU/Linux 13 (trixie)"
ID=debian
VERSION_ID="13"
VERSION_CODENAME=trixie
"""
PACKAGE = """\
Package: {name}
Status: install ok installed
Architecture: amd64
Version: {version}
"""


def lay_out(root: Path, driver: str, library: str, module: str, package: tuple[str, str] | None) -> None:
    """Write a node's files: driver, user space, fabric manager or IMEX, Docker, a scratch disk.
    `library`: version of the user space. `module`: the kernel module is `loaded`, `none` or on the
    `blacklist`. `package`: (name, version) of fabric manager or IMEX, if installed."""
    _system(root, PACKAGE.format(name=package[0], version=package[1]) if package else "")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name, version in (
        ("libnvidia-ml.so.1", library),
        ("libcuda.so.1", library),
        ("libnccl.so.2", "2.27.7"),
    ):
        file = f"{name.partition('.so.')[0]}.so.{version}"
        (libraries / file).write_bytes(_library(name))
        (libraries / name).symlink_to(file)
    if module != "none":
        lines = "blacklist nouveau\noptions nouveau modeset=0\n"
        write(root, "etc/modprobe.d/blacklist-nouveau.conf", lines)
    if module != "loaded":
        return
    _modules(root, driver, MODULES)


def lay_out_amd(root: Path, sku: str, driver: str, module: str) -> None:
    """Write a node's files: ROCm and AMD's driver (default: the SKU's); `module`: `loaded` or `none`."""
    usual, rocm = NEWER.get(sku, (AMDGPU, ROCM))
    _system(root, "")
    write(root, "opt/rocm/.info/version", f"{rocm}\n")
    if module == "loaded":
        _modules(root, driver or usual, ("amdgpu",))


def _system(root: Path, packages: str) -> None:
    write(root, "etc/os-release", RELEASE)
    write(root, "proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-000000000001\n")
    write(root, "usr/share/gpu-burn/compare.ptx", "")
    write(root, "usr/bin/dockerd", "")
    for folder in ("dev/shm", "scratch"):
        (root / folder).mkdir(parents=True)
    write(root, "var/lib/dpkg/status", packages)


def _modules(root: Path, driver: str, names: tuple[str, ...]) -> None:
    release = platform.release()
    place = root / "lib/modules" / release / "updates/dkms"
    place.mkdir(parents=True)
    for name in names:
        (place / f"{name}.ko").write_bytes(_module(name, driver, release))


def write(root: Path, name: str, text: str) -> None:
    """Write a file below `root` and create its folders."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@functools.cache
def _library(name: str) -> bytes:
    return shared_library(name)


@functools.cache
def _module(name: str, driver: str, release: str) -> bytes:
    return kernel_module(name, driver, "open", release, [] if name in ("nvidia", "amdgpu") else ["nvidia"])
